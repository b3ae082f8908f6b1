package config

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/net/http/httpguts"

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
	Gather      time.Duration  `name:"gather" default:"0s" min:"0s" max:"5m" doc:"how long events of one kind are gathered into one message, which comes that much later and has their counts"`

	Headers       map[string]string     `name:"headers" doc:"more headers of each request. They are shown nowhere"`
	SecretHeaders map[string]SecretName `name:"secret_headers" doc:"by header, names of the secrets that are the values of further ones, such as Authorization"`
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
	secret := make(map[string]string, len(w.SecretHeaders))
	for header, name := range w.SecretHeaders {
		secret[header] = string(name)
	}
	return webhook.Endpoint{
		URL: w.URL, Kinds: kinds, Secret: string(w.Secret), Template: w.Template, Type: w.ContentType, Timeout: w.Timeout, Gather: w.Gather,
		Headers: w.Headers, SecretHeaders: secret,
	}
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
		d.headers(path, w)
	}
}

// maxHeaders bounds the headers that a webhook has of each kind.
const maxHeaders = 20

func (d *decoder) headers(path string, w Webhook) {
	given := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(w.Headers)) {
		at := join(path+".headers", name)
		d.header(at, name, given)
		if !httpguts.ValidHeaderFieldValue(w.Headers[name]) {
			d.wrong(at, "write one line", "has characters that a header cannot have")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.SecretHeaders)) {
		d.header(join(path+".secret_headers", name), name, given)
	}
	if len(given) > maxHeaders {
		d.wrong(path+".headers", "keep at most 20, with secret_headers", "has %d", len(given))
	}
}

// header checks the name of a header that is not the sender's own, and is given once.
func (d *decoder) header(at, name string, given map[string]bool) {
	key := http.CanonicalHeaderKey(name)
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		d.wrong(at, "write one such as X-Api-Key", "is not the name of a header")
	case key == "Content-Type":
		d.wrong(at, "set content_type", "is not set here")
	case slices.Contains(webhook.Reserved(), key):
		d.wrong(at, "leave it out", "is set by the sender")
	case given[key]:
		d.wrong(at, "keep one of them", "is given twice")
	}
	given[key] = true
}
