package servercmd

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/config"
)

// startingPages answer on the HTTP port while the server cannot start: the process lives,
// and serves nothing yet.
type startingPages struct {
	address string
	log     *slog.Logger
	web     *http.Server   // nil: not open
	served  sync.WaitGroup // web's goroutine
}

// open listens, unless it does. A port that is taken is not an error here: the server
// itself reports it when it opens its ports.
func (p *startingPages) open(ctx context.Context) {
	if p.web != nil {
		return
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.address)
	if err != nil {
		p.log.Debug("no port for GET /healthz during the start", "addr", p.address, "err", err)
		return
	}
	p.web = &http.Server{Handler: http.HandlerFunc(starting), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	p.web.SetKeepAlivesEnabled(false) // the next request is for the server itself
	web := p.web
	p.served.Go(func() { _ = web.Serve(lis) })
}

// close frees the port.
func (p *startingPages) close() {
	if p.web != nil {
		_ = p.web.Close() // frees it in any case
		p.served.Wait()
		p.web = nil
	}
}

// starting answers every request. Why the server cannot start is in its log: these pages
// have no authentication.
func starting(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path != "/healthz" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(`{"status":"starting"}` + "\n")) // the peer is gone if this fails
}

// httpAddress returns where this server will serve HTTP, as far as that is known before
// storage is read: by the flag, by a configuration in a file, or by default.
func (r *running) httpAddress() string {
	if r.ownBind.HTTP != "" {
		return r.ownBind.HTTP
	}
	if r.config != "" {
		if conf, err := config.Load(r.config, r.parts.Kinds...); err == nil { // else the attempt reports it
			return string(conf.Shard.Bind.HTTP)
		}
	}
	return string(config.DefaultBind().HTTP)
}
