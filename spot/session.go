package spot

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	tokenPath   = "latest/api/token"
	tokenHeader = "X-aws-ec2-metadata-token"
	ttlHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
	tokenTTL    = 6 * time.Hour // the longest that is granted (EC2 user guide, "How IMDSv2 works")
	maxTokenLen = 1024

	// refreshPause is the time between attempts to replace a token that is still
	// good.
	refreshPause = 5 * time.Second
)

// A session holds the token of the aws metadata service, version 2.
type session struct {
	o *Options

	mu      sync.Mutex // guards the fields below; not held during a request
	token   token
	pending *tokenRequest // nil: none
}

// A token is what the service granted. It is replaced, never changed.
type token struct {
	value   string
	refresh time.Time // when to ask for a new one
	expiry  time.Time
	legacy  bool // the service has no tokens: version 1
}

func (t token) header() map[string]string {
	if t.legacy {
		return nil
	}
	return map[string]string{tokenHeader: t.value}
}

// A tokenRequest is one request for a token. Every caller that needs a token waits
// for its answer.
type tokenRequest struct {
	done      chan struct{} // closed when the fields below are set
	token     token
	err       error
	cancelled bool // the sender's context ended before the answer
}

func newSession(o *Options) *session { return &session{o: o} }

// header returns the headers of a read. While one caller requests a new token the
// others use the old one. If there is none they wait for the same request.
func (s *session) header(ctx context.Context) (map[string]string, error) {
	for {
		t, r, isSender := s.next()
		if r == nil {
			return t.header(), nil
		}
		if isSender {
			s.sendRequest(ctx, r)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.done:
		}
		switch {
		case r.cancelled && ctx.Err() != nil:
			return nil, ctx.Err()
		case r.cancelled:
			continue
		case r.err == nil:
			return r.token.header(), nil
		case time.Now().Before(t.expiry):
			return t.header(), nil
		}
		return nil, r.err
	}
}

// next returns the token, and the request to wait for unless the token is fresh.
// isSender says that the caller must send the request.
func (s *session) next() (t token, r *tokenRequest, isSender bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case s.token.legacy || now.Before(s.token.refresh):
		return s.token, nil, false
	case s.pending == nil:
		s.pending = &tokenRequest{done: make(chan struct{})}
		return s.token, s.pending, true
	case now.Before(s.token.expiry):
		return s.token, nil, false
	}
	return s.token, s.pending, false
}

// sendRequest requests a token, keeps it and wakes the waiting callers.
func (s *session) sendRequest(ctx context.Context, r *tokenRequest) {
	r.token, r.err = s.renew(ctx)
	r.cancelled = r.err != nil && ctx.Err() != nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = nil
	if r.err == nil {
		s.token = r.token
	} else { // while the old token is valid, do not retry with every read
		s.token.refresh = time.Now().Add(refreshPause)
		if s.token.refresh.After(s.token.expiry) {
			s.token.refresh = s.token.expiry
		}
	}
	close(r.done)
}

// refused drops the token that led to a 401, unless another caller already has.
func (s *session) refused(sent map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token.value == sent[tokenHeader] {
		s.token = token{}
	}
}

// renew requests a token. Only a definite answer that there are no tokens means
// version 1. No answer or an error says nothing about the version.
func (s *session) renew(ctx context.Context) (token, error) {
	asked := time.Now()
	a, err := s.o.do(ctx, request{
		method:  http.MethodPut,
		path:    tokenPath,
		header:  map[string]string{ttlHeader: seconds(tokenTTL)},
		timeout: requestTimeout,
	})
	if err != nil {
		return token{}, hopLimit(err)
	}
	if a.status == http.StatusNotFound || a.status == http.StatusMethodNotAllowed {
		s.o.Log.Info("metadata service has no session tokens, using version 1")
		return token{legacy: true}, nil
	}
	if err := a.check(tokenPath); err != nil {
		if e, ok := errors.AsType[*nstance.Error](err); ok && e.Code == nstance.Denied {
			e.Remedy = "enable the metadata service in the instance's metadata options (HttpEndpoint); in a container raise HttpPutResponseHopLimit to 2"
		}
		return token{}, err
	}
	if !tokenLike(a.body) {
		return token{}, nstance.Errorf(nstance.Internal, "/%s: not a token", tokenPath)
	}
	ttl := grantedTTL(a.header)
	expiry := asked.Add(ttl)
	return token{value: string(a.body), expiry: expiry, refresh: expiry.Add(-min(time.Minute, ttl/10))}, nil
}

// hopLimit adds the usual remedy to a PUT that times out: its answer is sent with
// a hop limit of 1, too low for a container behind a bridge. A refused or broken
// connection has another cause.
func hopLimit(err error) error {
	e, ok := errors.AsType[*nstance.Error](err)
	if s, unanswered := errors.AsType[*noAnswer](err); !ok || !unanswered || !s.timedOut {
		return err
	}
	hinted := *e
	hinted.Remedy = "in a container raise the instance's HttpPutResponseHopLimit to 2"
	return &hinted
}

// tokenLike reports whether b can be sent back in a header.
func tokenLike(b []byte) bool {
	if len(b) == 0 || len(b) > maxTokenLen {
		return false
	}
	for _, c := range b {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// grantedTTL returns the TTL in the answer, or the requested one.
func grantedTTL(h http.Header) time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(h.Get(ttlHeader)))
	ttl := time.Duration(n) * time.Second
	if err != nil || n < 1 || n > int(tokenTTL/time.Second) {
		return tokenTTL
	}
	return ttl
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }
