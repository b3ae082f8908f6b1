// Package faultproxy is a proxy between a client and a real HTTP service that injects
// faults of networks and services into single requests: a write that succeeds and
// whose answer is lost, a stale answer, a connection that ends. It is for tests.
package faultproxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// A Mode is what a fault does to a request.
type Mode int

// The modes.
const (
	Refuse     Mode = iota // not forwarded; the client gets Status and Body
	Replace                // forwarded; the client gets Status and Body
	Cut                    // not forwarded; the connection ends
	LoseAnswer             // forwarded; the connection ends
	Hang                   // forwarded; no answer until the client gives up
	Stale                  // the first answer is repeated for all later requests
	Strip                  // forwarded without the headers in Headers
)

// A Fault affects requests.
type Fault struct {
	Mode    Mode
	Match   func(*http.Request) bool // which requests; nil: all
	Skip    int                      // number of matching requests to pass first
	Times   int                      // number of requests to affect then; 0 means one, negative means all
	Status  int
	Body    string
	Headers []string

	kept *answer
}

// Proxy is an http.Handler that passes requests on to a service. The client's
// Host header stays, because clients sign it. It is safe for concurrent use.
type Proxy struct {
	target    *url.URL
	transport *http.Transport

	mu     sync.Mutex
	faults []*Fault
	seen   map[string]int // requests by method
	spoilt int
}

// New returns a proxy, without faults at first, in front of the service at a
// URL such as http://127.0.0.1:9000.
func New(target string) (*Proxy, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	// Only the client decides about compression.
	return &Proxy{target: u, transport: &http.Transport{DisableCompression: true}, seen: map[string]int{}}, nil
}

// Inject adds faults. Of several that match a request, the oldest applies.
func (p *Proxy) Inject(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range faults {
		if f.Times == 0 {
			f.Times = 1
		}
		p.faults = append(p.faults, &f)
	}
}

// ClearFaults removes all faults.
func (p *Proxy) ClearFaults() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = nil
}

// Count returns the number of requests with this method.
func (p *Proxy) Count(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[method]
}

// FaultsHit returns the number of requests that a fault has affected.
func (p *Proxy) FaultsHit() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spoilt
}

// Close closes idle connections to the service.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

// takeFault returns the fault that applies to a request, or nil.
func (p *Proxy) takeFault(r *http.Request) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[r.Method]++
	for _, f := range p.faults {
		switch {
		case f.Times == 0, f.Match != nil && !f.Match(r):
		case f.Skip > 0:
			f.Skip--
		default:
			f.Times--
			p.spoilt++
			return f
		}
	}
	return nil
}

// An answer is the response of the service.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
	f := p.takeFault(r)
	if f == nil {
		p.pass(w, r, body)
		return
	}
	switch f.Mode {
	case Refuse:
		f.answer(w)
	case Replace:
		p.forward(r, body)
		f.answer(w)
	case Cut:
		panic(http.ErrAbortHandler) // closes the connection
	case LoseAnswer:
		p.forward(r, body)
		panic(http.ErrAbortHandler)
	case Hang:
		p.forward(r, body)
		<-r.Context().Done()
	case Stale:
		p.replay(w, r, body, f)
	case Strip:
		for _, h := range f.Headers {
			r.Header.Del(h)
		}
		p.pass(w, r, body)
	}
}

func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, body []byte) {
	p.forward(r, body).write(w)
}

func (p *Proxy) replay(w http.ResponseWriter, r *http.Request, body []byte, f *Fault) {
	p.mu.Lock()
	kept := f.kept
	p.mu.Unlock()
	if kept == nil {
		kept = p.forward(r, body)
		p.mu.Lock()
		f.kept = kept
		p.mu.Unlock()
	}
	kept.write(w)
}

// forward sends a request to the service, even if the client disconnects. If the
// service does not answer, the client's connection ends.
func (p *Proxy) forward(r *http.Request, body []byte) *answer {
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.URL.Scheme, out.URL.Host = p.target.Scheme, p.target.Host
	out.RequestURI = ""
	out.Body, out.ContentLength, out.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	if len(body) == 0 {
		out.Body = http.NoBody
	}
	out.Header.Del("Expect") // answered here already
	resp, err := p.transport.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return &answer{status: resp.StatusCode, header: resp.Header, body: data}
}

func (f *Fault) answer(w http.ResponseWriter) {
	h := http.Header{"Content-Type": {"application/xml"}}
	if strings.HasPrefix(f.Body, "{") {
		h.Set("Content-Type", "application/json")
	}
	(&answer{status: f.Status, header: h, body: []byte(f.Body)}).write(w)
}

func (a *answer) write(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	if a.header.Get("Content-Length") == "" && a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the client may have closed the connection
}
