package bucket

import (
	"net/http"
	"time"
)

// idleConnections is how many connections a pool keeps: more than a server makes
// calls at once, so that none of them begins with a handshake.
const idleConnections = 128

// How soon HTTP/2 finds out that nothing answers on a connection.
const (
	pingAfter   = 5 * time.Second // of silence while calls wait
	pingTimeout = 5 * time.Second
)

// A Pool sends requests over connections of its own. A nil Pool is a client that
// is not ours to look after.
type Pool struct {
	client    *http.Client
	transport *http.Transport
}

// NewPool returns a pool that connects as transport does, and is otherwise like
// the client, which may be nil.
func NewPool(transport *http.Transport, client *http.Client) *Pool {
	p := &Pool{transport: transport.Clone(), client: &http.Client{}}
	p.transport.MaxIdleConns, p.transport.MaxIdleConnsPerHost = idleConnections, idleConnections
	p.transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	if client != nil {
		*p.client = *client
	}
	p.client.Transport = p.transport
	return p
}

// DefaultPool returns a pool that connects as Go programs do.
func DefaultPool() *Pool {
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		return NewPool(t, nil)
	}
	return NewPool(&http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}, nil)
}

// Separate returns a pool that connects likewise, with no connection in common.
// Each of its calls has a connection to itself (HTTP/1.1), so that one which is
// given up takes its connection with it.
func (p *Pool) Separate() *Pool {
	out := NewPool(p.transport, p.client)
	out.transport.Protocols = new(http.Protocols)
	out.transport.Protocols.SetHTTP1(true)
	return out
}

// CloseIdle closes the connections that are not in use.
func (p *Pool) CloseIdle() {
	if p != nil {
		p.transport.CloseIdleConnections()
	}
}

// Do sends a request.
func (p *Pool) Do(r *http.Request) (*http.Response, error) { return p.client.Do(r) }

// RoundTrip sends a request and follows no redirects.
func (p *Pool) RoundTrip(r *http.Request) (*http.Response, error) { return p.transport.RoundTrip(r) }
