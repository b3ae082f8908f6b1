package config

import (
	"net/url"
	"time"

	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/internal/webhook"
)

// maxWebhooks bounds the endpoints: each may have as many messages waiting as its queue holds.
const maxWebhooks = 16

// A WebhookName names a webhook.
type WebhookName string

// Validate returns nil or an Invalid error that names field.
func (n WebhookName) Validate(field string) error { return validate.Name(field, string(n)) }

// A Webhook is told what happens to machines.
type Webhook struct {
	URL         string         `name:"url" required:"true" doc:"where each message is posted to; https, or http. It is shown nowhere"`
	Secret      SecretName     `name:"secret" absent:"unsigned" doc:"name of the secret that signs messages, from shard.secrets"`
	Events      []webhook.Kind `name:"events" none:"true" absent:"all of them" enum:"notice|loss|missed_deadline|rebalance|maintenance|drain_ended|drain_started" doc:"what it is told"`
	Template    string         `name:"template" absent:"JSON of the whole message" doc:"body of a message, as a template of Go"`
	ContentType string         `name:"content_type" default:"application/json" doc:"type of the body"`
	Timeout     time.Duration  `name:"timeout" default:"5s" min:"1ms" max:"1m" doc:"longest attempt to send one message; there are five"`
}

// Endpoints returns the webhooks by name.
func (c *Config) Endpoints() map[string]webhook.Endpoint {
	out := make(map[string]webhook.Endpoint, len(c.Webhooks))
	for name, w := range c.Webhooks {
		out[string(name)] = w.endpoint()
	}
	return out
}

func (w *Webhook) endpoint() webhook.Endpoint {
	kinds := w.Events
	if kinds == nil {
		kinds = webhook.Kinds()
	}
	return webhook.Endpoint{URL: w.URL, Kinds: kinds, Secret: string(w.Secret), Template: w.Template, Type: w.ContentType, Timeout: w.Timeout}
}

func (d *decoder) webhooks(all map[WebhookName]Webhook) {
	if n := len(all); n > maxWebhooks {
		d.wrong("webhooks", "keep at most 16", "has %d", n)
	}
	for name, w := range all {
		path := join("webhooks", string(name))
		if u, err := url.Parse(w.URL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			d.wrong(path+".url", "write one such as https://hooks.example.org/nstance", "is not a URL of https or http")
		}
		if err := webhook.Try(w.Template); err != nil {
			d.wrong(path+".template", "see docs/events.md for what a message has", "%v", err)
		}
	}
}
