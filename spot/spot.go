// Package spot detects, on a machine, what its cloud announces for it: reclaims,
// rebalance recommendations, maintenance, and stops through the cloud's API. It
// reads the cloud's metadata service over plain HTTP and links no cloud SDK.
//
// AWS, GCP and Azure are detectors; Detect picks one. An announcement becomes an
// nstance.Notice whose EventID depends on the announcement alone: the same
// announcement is the same event in every process and at any time.
//
// Only a definite answer counts. A missing key, or an explicit value, means that
// nothing is announced. An error changes nothing.
//
// Detectors are safe for concurrent use; notices are values.
package spot

import (
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// DefaultPollInterval is how often a key is read where the service has no long
// poll. AWS recommends 5 s; 2 s use less of the two minutes between warning and
// interruption.
const DefaultPollInterval = 2 * time.Second

// Options configure a detector. Nil and zero fields mean the defaults.
type Options struct {
	BaseURL      string           // of the metadata service, without a path; empty: the cloud's own address
	PollInterval time.Duration    // 0: DefaultPollInterval; at least 1 ms
	Client       *http.Client     // nil: one that uses no proxy and follows no redirect; its own Timeout must exceed the long poll of 10 s
	Log          *slog.Logger     // nil: discard
	Now          func() time.Time // the machine's clock, for times in notices; nil: time.Now

	// AzureEventsVersion is the api-version of Azure's scheduled events; empty:
	// 2020-07-01. Rebalance recommendations need a later one. A version that the
	// service refuses is replaced by the default.
	AzureEventsVersion string
}

// resolve returns a copy of o with every field set, or an Invalid error. The
// receiver may be nil.
func (o *Options) resolve(baseURL string) (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.BaseURL == "" {
		r.BaseURL = baseURL
	}
	if err := checkBaseURL(r.BaseURL); err != nil {
		return r, err
	}
	r.BaseURL = strings.TrimRight(r.BaseURL, "/")
	if r.PollInterval == 0 {
		r.PollInterval = DefaultPollInterval
	}
	if err := validate.Setting("poll_interval", r.PollInterval, time.Hour); err != nil {
		return r, err
	}
	if r.AzureEventsVersion == "" {
		r.AzureEventsVersion = azureEventsVersion
	}
	if !azureVersion.MatchString(r.AzureEventsVersion) {
		return r, nstance.FieldError("azure_events_version", "use a date such as "+azureEventsVersion+", or leave it empty",
			"%q is not an api-version", r.AzureEventsVersion)
	}
	if r.Client == nil {
		r.Client = directClient()
	}
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	return r, nil
}

func checkBaseURL(s string) error {
	const field, remedy = "metadata_url", "use http://host or http://host:port"
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nstance.FieldError(field, remedy, "is not a URL")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil:
		return nstance.FieldError(field, remedy, "%q is not an address of a web server", u.Redacted())
	case u.RawQuery != "", u.Fragment != "":
		return nstance.FieldError(field, remedy, "%q has a query or a fragment", u.Redacted())
	}
	return nil
}

// directClient ignores HTTP_PROXY: a proxy would return the metadata of its own
// machine, or pass on this machine's secrets.
func directClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:               nil,
			DialContext:         (&net.Dialer{Timeout: requestTimeout}).DialContext,
			MaxIdleConnsPerHost: 8,
			IdleConnTimeout:     time.Minute,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
