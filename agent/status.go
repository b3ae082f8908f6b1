package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// A Status is the state of the agent, as in GET /healthz.
type Status struct {
	Registered bool             `json:"registered"`           // it holds a certificate that has not expired
	Connected  bool             `json:"connected"`            // a server has welcomed it
	LastReport time.Time        `json:"last_report,omitzero"` // of the last acknowledged one
	Notices    []nstance.Notice `json:"notices"`              // every standing one
	Error      string           `json:"error,omitempty"`      // why it is not registered or connected

	// MetadataError says why the cloud's metadata service has not been readable for two
	// minutes: notices are missed.
	MetadataError string `json:"metadata_error,omitempty"`

	// ForeignIdentity says which identity of another instance was found on this machine and
	// set aside: the machine was made from an image of an enrolled one.
	ForeignIdentity string `json:"foreign_identity,omitempty"`

	// NoticesError says why the notices were not restored at the start, or are not
	// saved for the next one.
	NoticesError string `json:"notices_error,omitempty"`
}

// Healthy reports whether the agent is registered and connected.
func (s Status) Healthy() bool { return s.Registered && s.Connected }

// handler serves GET /healthz: 200 while the agent is healthy, 503 otherwise, with
// the Status in either case. While no server answers, every agent returns 503, so
// it must not trigger a restart. The watchdog restarts an agent whose loops make
// no progress, and for no other reason.
func handler(status func() Status) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		s := status()
		w.Header().Set("Content-Type", "application/json")
		if !s.Healthy() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(s) // it fails only if the client has gone
	})
	return mux
}

// listen opens the health address; a missing host means loopback.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, nstance.FieldError(envHealthAddr, "use :port for loopback, or host:port", "%v", err)
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(or(host, "127.0.0.1"), port))
	if err != nil {
		return nil, nstance.FieldError(envHealthAddr, "use another port, or leave it out", "%v", err)
	}
	return ln, nil
}

// Waits until the health address is tried again: another program may have it.
const (
	firstHealthRetry = time.Second
	maxHealthRetry   = time.Minute
)

// serveHealth answers on the health address until ctx ends. An agent that cannot does all else.
func (a *Agent) serveHealth(ctx context.Context) {
	for failures := 1; ; failures++ {
		ln, err := listen(ctx, a.o.HealthAddr)
		if err == nil {
			failures = 0
			err = serve(ctx, ln, handler(a.Status))
		}
		if ctx.Err() != nil {
			return
		}
		a.o.Log.Warn("/healthz is not served: trying again", "code", nstance.CodeOf(err), "err", err)
		if !sleep.For(ctx, sleep.Backoff(max(failures, 1), firstHealthRetry, maxHealthRetry)) {
			return
		}
	}
}

// serve answers on ln until ctx ends.
func serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler: h, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10,
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve /healthz: %w", err)
	}
	return nil
}
