package proxmox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
)

// maxAnswer bounds an answer: 64 MiB hold the resources of 100,000 machines.
const maxAnswer = 64 << 20

// How long a request may take, its answer included. Work in the background has no other
// deadline.
const (
	requestTimeout = 30 * time.Second
	uploadTimeout  = 2 * time.Minute
)

// An apiError is an answer that is not 200. go-proxmox takes 404, 429, 503 and
// 595 to 599 for success and loses the texts of the others: the transport below
// turns every one into this, which it passes on.
type apiError struct {
	status int
	method string
	text   string            // the message, from the body or the status line
	fields map[string]string // what is wrong with parameters, by name
}

func (e *apiError) Error() string {
	s := e.text
	for name, msg := range e.fields {
		s += " " + name + ": " + strings.TrimSpace(msg)
	}
	return strings.TrimSpace(s)
}

// A transport sends each request to the first endpoint that takes the
// connection: every node answers for the whole cluster. After a request without an answer
// the next endpoint is the first.
type transport struct {
	base      http.RoundTripper
	endpoints []*url.URL
	current   atomic.Int32
}

// newTransport returns a transport over base; nil: one of its own.
func newTransport(o Options, base http.RoundTripper) (*transport, error) {
	t := &transport{base: base}
	if base == nil {
		own, err := newBase(o)
		if err != nil {
			return nil, err
		}
		t.base = own
	}
	for _, e := range append([]string{o.Endpoint}, o.FallbackEndpoints...) {
		u, err := url.Parse(e)
		if err != nil {
			return nil, nstance.FieldError("options.endpoint", "", "%v", err)
		}
		t.endpoints = append(t.endpoints, u)
	}
	return t, nil
}

func newBase(o Options) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 32, IdleConnTimeout: 30 * time.Second,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if o.CAFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, nstance.FieldError("options.ca_file", "name a file that the server may read", "%v", err)
	}
	t.TLSClientConfig.RootCAs = x509.NewCertPool()
	if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
		return nil, nstance.FieldError("options.ca_file", "copy /etc/pve/pve-root-ca.pem", "%s holds no certificate", o.CAFile)
	}
	return t, nil
}

// CloseIdleConnections is what http.Client calls.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip returns answers with status 200 and an error for all others.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	limit := requestTimeout
	if strings.HasSuffix(r.URL.Path, "/upload") {
		limit = uploadTimeout
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	res, err := t.send(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	res.Body = boundedBody{http.MaxBytesReader(nil, res.Body, maxAnswer), cancel}
	return res, nil
}

// A boundedBody ends the timeout of its request when it is closed.
type boundedBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b boundedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// send returns the answer of the first endpoint that takes the connection.
func (t *transport) send(r *http.Request) (*http.Response, error) {
	var res *http.Response
	var err error
	first := t.current.Load()
	for i := range len(t.endpoints) {
		n := (int(first) + i) % len(t.endpoints)
		req := r.Clone(r.Context())
		req.URL.Scheme, req.URL.Host, req.Host = t.endpoints[n].Scheme, t.endpoints[n].Host, ""
		if i > 0 && r.GetBody != nil {
			if req.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		if res, err = t.base.RoundTrip(req); err == nil || !unsent(err) || r.Context().Err() != nil {
			t.prefer(first, n, err)
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	return nil, readError(r.Method, res)
}

// prefer makes the called endpoint the first, or the one after it when it did not answer. A
// request that began with another first endpoint changes nothing: its answer is older than
// the silence of that one.
func (t *transport) prefer(first int32, called int, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		called = (called + 1) % len(t.endpoints)
	}
	t.current.CompareAndSwap(first, int32(called))
}

// unsent reports whether the request cannot have reached a node.
func unsent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// readError reads the message from the body, where Proxmox VE puts it since
// version 8 (pve-http-server, Formatter/Standard.pm), else from the status line,
// which HTTP/2 does not have.
func readError(method string, res *http.Response) error {
	defer func() { _ = res.Body.Close() }()
	var body struct {
		Message string            `json:"message"`
		Errors  map[string]string `json:"errors"`
	}
	e := &apiError{status: res.StatusCode, method: method}
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err == nil && json.Unmarshal(b, &body) == nil {
		e.text, e.fields = strings.TrimSpace(body.Message), body.Errors
	}
	if _, reason, _ := strings.Cut(res.Status, " "); e.text == "" {
		e.text = reason
	}
	if e.text == "" {
		e.text = "status " + itoa(e.status)
	}
	return e
}
