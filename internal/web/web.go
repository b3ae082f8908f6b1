// Package web serves a shard's read-only pages: liveness, and a status page. They
// have no authentication, so the page shows what every operator may see; only
// where that is configured it shows the groups and instances of all tenants, and
// what happened last.
package web

import (
	"context"
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
)

// Options say what the pages show. All fields are required. The functions are called
// concurrently.
type Options struct {
	Status  func(ctx context.Context) Status
	Leading func() bool     // this server leads its shard
	Ending  <-chan struct{} // closed when the server ends: streams end with it
}

//go:embed page
var files embed.FS

// Handler serves GET and HEAD of
//
//	/             the status page
//	/status.json  what it shows, at most a second old
//	/stream       the same, and every change of it, as server-sent events
//	/healthz      200 while the process serves, leading or not
//	/readyz       200 while this server leads its shard, else 503
func Handler(o *Options) http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil { // which only an invalid name can cause
		panic(err)
	}
	mux := http.NewServeMux()
	shared := &feed{status: o.Status, ending: o.Ending}
	for path, file := range map[string]string{"/{$}": "status.html", "/status.css": "status.css", "/status.js": "status.js"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, page, file) })
	}
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, r *http.Request) {
		now, err := shared.latest(r.Context())
		if err != nil {
			cannotShow(w, err)
			return
		}
		reply(w, http.StatusOK, now.status)
	})
	mux.Handle("GET /stream", shared)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !o.Leading() {
			reply(w, http.StatusServiceUnavailable, map[string]string{"status": "not leading"})
			return
		}
		reply(w, http.StatusOK, map[string]string{"status": "leading"})
	})
	return guard(mux)
}

// guard keeps the pages from being framed, sniffed, cached or made to load
// anything from elsewhere.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v) // before the header: half a page would look like a whole one
	if err != nil {
		cannotShow(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // the peer is gone if this fails
}

func cannotShow(w http.ResponseWriter, err error) {
	http.Error(w, "the page cannot be shown: "+err.Error(), http.StatusInternalServerError)
}
