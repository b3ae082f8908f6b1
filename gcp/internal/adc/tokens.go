package adc

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// tokenTimeout bounds one request for a token.
const tokenTimeout = 10 * time.Second

// Context returns the context of a token source. It outlives ctx, and bounds each request for
// a token.
func Context(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, &http.Client{Timeout: tokenTimeout})
}

// Tokens is a token source whose callers wait no longer than their contexts permit. It is safe
// for concurrent use.
type Tokens struct {
	source oauth2.TokenSource
	calls  singleflight.Group
}

// NewTokens returns the tokens of a source, which keeps them until they expire.
func NewTokens(source oauth2.TokenSource) *Tokens { return &Tokens{source: source} }

// Client returns a client like c, which has the source. [oauth2.Transport] waits for a token
// without a context: it is to find one that is valid.
func (t *Tokens) Client(c *http.Client) *http.Client {
	out := *c
	out.Transport = waiting{t, c.Transport}
	return &out
}

type waiting struct {
	tokens *Tokens
	next   http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (w waiting) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := w.tokens.wait(r.Context()); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as every transport does
		}
		return nil, err
	}
	return w.next.RoundTrip(r)
}

// wait waits until the source has a valid token. One call of the source serves all that wait.
func (t *Tokens) wait(ctx context.Context) error {
	call := t.calls.DoChan("", func() (any, error) { return t.source.Token() })
	select {
	case result := <-call:
		return result.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}
