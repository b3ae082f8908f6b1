package kubeconfig

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance"
)

// requestTime is how long a request may take, with its answer: API servers end theirs after a minute.
// Watches have no limit.
const requestTime = time.Minute

// A Connection reaches a cluster with the latest of its kubeconfigs. Its clients stay when
// credentials or addresses change. It is safe for concurrent use.
type Connection struct {
	refused func()

	mu  sync.Mutex
	now *way
}

// A way is how a kubeconfig says that its cluster is reached.
type way struct {
	data      []byte
	server    *url.URL
	transport http.RoundTripper
}

// Connect returns a Connection that begins with a kubeconfig. It calls refused, which must
// not block, whenever the cluster refuses the credentials in use (401). Fails as Parse does.
func Connect(data []byte, refused func()) (*Connection, error) {
	w, err := newWay(data)
	if err != nil {
		return nil, err
	}
	return &Connection{refused: refused, now: w}, nil
}

func newWay(data []byte) (*way, error) {
	cfg, err := Parse(data)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(cfg.Host)
	if err != nil { // Parse has read it
		return nil, err
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, nstance.FieldError("kubeconfig", "correct the key value of the Secret", "%v", err)
	}
	return &way{bytes.Clone(data), server, transport}, nil
}

// Use has requests from now on go as another kubeconfig says, and reports whether it differs
// from the one before, which stays in use when it fails as Parse does.
func (c *Connection) Use(data []byte) (changed bool, err error) {
	if bytes.Equal(data, c.current().data) {
		return false, nil
	}
	w, err := newWay(data)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = w
	return true, nil
}

func (c *Connection) current() *way {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Config returns the configuration of clients that outlive a kubeconfig. Its server is that of
// now, for their errors: each request is sent to that of its moment.
func (c *Connection) Config() *rest.Config {
	server := c.current().server
	return &rest.Config{Host: server.Scheme + "://" + server.Host, Transport: c}
}

// RoundTrip implements http.RoundTripper.
func (c *Connection) RoundTrip(r *http.Request) (*http.Response, error) {
	w := c.current()
	ctx, cancel := limited(r)
	sent := r.Clone(ctx)
	sent.Host, sent.URL.Scheme, sent.URL.Host = "", w.server.Scheme, w.server.Host
	if prefix := strings.TrimSuffix(w.server.Path, "/"); prefix != "" {
		sent.URL.Path, sent.URL.RawPath = prefix+sent.URL.Path, ""
	}
	resp, err := w.transport.RoundTrip(sent)
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.StatusCode == http.StatusUnauthorized && c.current() == w {
		c.refused()
	}
	resp.Body = answer{resp.Body, cancel}
	return resp, nil
}

func limited(r *http.Request) (context.Context, context.CancelFunc) {
	if r.URL.Query().Has("watch") {
		return context.WithCancel(r.Context())
	}
	return context.WithTimeout(r.Context(), requestTime)
}

// An answer ends its request when it is closed.
type answer struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (a answer) Close() error {
	defer a.cancel()
	return a.ReadCloser.Close()
}
