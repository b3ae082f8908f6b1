// Package inmemory calls a test cloud without a socket, for synctest bubbles. Transports may
// be used concurrently.
package inmemory

import (
	"errors"
	"io"
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

// RoundTrip implements [http.RoundTripper]. A handler that aborts its answer breaks the
// connection.
func (t Transport) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	select {
	case <-time.After(t.Latency):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	r = r.Clone(r.Context())
	if r.Body == nil {
		r.Body = http.NoBody
	}
	if r.Host == "" {
		r.Host = r.URL.Host
	}
	defer func() {
		broken := recover()
		if aborted, ok := broken.(error); ok && errors.Is(aborted, http.ErrAbortHandler) {
			answer, err = nil, io.ErrUnexpectedEOF
		} else if broken != nil {
			panic(broken)
		}
	}()
	w := httptest.NewRecorder()
	t.Handler.ServeHTTP(w, r)
	return w.Result(), nil
}
