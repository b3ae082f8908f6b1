package faultproxy

import (
	"net/http"
	"time"
)

// ShiftDate returns h with the Date of its answers shifted by off, as a service on a
// machine with a wrong clock.
func ShiftDate(h http.Handler, off func() time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&shiftedDate{ResponseWriter: w, off: off}, r)
	})
}

type shiftedDate struct {
	http.ResponseWriter
	off  func() time.Duration
	sent bool // headers were sent
}

// WriteHeader implements http.ResponseWriter.
func (d *shiftedDate) WriteHeader(status int) {
	d.sent = true
	d.Header().Set("Date", time.Now().Add(d.off()).UTC().Format(http.TimeFormat))
	d.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (d *shiftedDate) Write(b []byte) (int, error) {
	if !d.sent {
		d.WriteHeader(http.StatusOK)
	}
	return d.ResponseWriter.Write(b)
}
