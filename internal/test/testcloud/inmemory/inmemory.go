// Package inmemory calls a test cloud without a socket, for synctest bubbles.
package inmemory

import (
	"net/http"
	"net/http/httptest"
	"time"
)

// Transport is an [http.RoundTripper] whose calls a handler answers after a
// latency.
type Transport struct {
	Handler http.Handler
	Latency time.Duration
}

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(t.Latency):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	r = r.Clone(r.Context())
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	t.Handler.ServeHTTP(w, r)
	return w.Result(), nil
}
