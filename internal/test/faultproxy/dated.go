package faultproxy

import (
	"net/http"
	"time"
)

// Dated returns h with the Date of its answers off by so much: the service of a
// machine whose clock is wrong.
func Dated(h http.Handler, off func() time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&dated{ResponseWriter: w, off: off}, r)
	})
}

type dated struct {
	http.ResponseWriter
	off  func() time.Duration
	sent bool // the headers are
}

// WriteHeader implements http.ResponseWriter.
func (d *dated) WriteHeader(status int) {
	d.sent = true
	d.Header().Set("Date", time.Now().Add(d.off()).UTC().Format(http.TimeFormat))
	d.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (d *dated) Write(b []byte) (int, error) {
	if !d.sent {
		d.WriteHeader(http.StatusOK)
	}
	return d.ResponseWriter.Write(b)
}
