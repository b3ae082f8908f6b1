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

	mu    sync.Mutex // guards what follows; not held while the service is asked
	token token
	asked *asking // under way; nil: none
}

// A token is what the service granted. It is replaced, never changed.
type token struct {
	value   string
	refresh time.Time // when to ask for a new one
	expiry  time.Time
	legacy  bool // the service knows no tokens: version 1
}

func (t token) header() map[string]string {
	if t.legacy {
		return nil
	}
	return map[string]string{tokenHeader: t.value}
}

// An asking is one request for a token, of which all that need one wait for the
// answer.
type asking struct {
	over  chan struct{} // closed when the rest is set
	token token
	err   error
	left  bool // the asking one's context ended: no answer
}

func newSession(o *Options) *session { return &session{o: o} }

// header returns what a read must carry. While one caller asks for a new token
// the others go on with the old one. Without one they wait for the same answer.
func (s *session) header(ctx context.Context) (map[string]string, error) {
	for {
		t, a, mine := s.next()
		if a == nil {
			return t.header(), nil
		}
		if mine {
			s.ask(ctx, a)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-a.over:
		}
		switch {
		case a.left && ctx.Err() != nil:
			return nil, ctx.Err()
		case a.left:
			continue
		case a.err == nil:
			return a.token.header(), nil
		case time.Now().Before(t.expiry):
			return t.header(), nil
		}
		return nil, a.err
	}
}

// next returns the token, and the request to wait for unless the token will do.
func (s *session) next() (t token, a *asking, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case s.token.legacy || now.Before(s.token.refresh):
		return s.token, nil, false
	case s.asked == nil:
		s.asked = &asking{over: make(chan struct{})}
		return s.token, s.asked, true
	case now.Before(s.token.expiry):
		return s.token, nil, false
	}
	return s.token, s.asked, false
}

// ask asks for a token, keeps it and wakes the callers that wait.
func (s *session) ask(ctx context.Context, a *asking) {
	a.token, a.err = s.renew(ctx)
	a.left = a.err != nil && ctx.Err() != nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = nil
	if a.err == nil {
		s.token = a.token
	} else { // not with every read, while there is one that will do
		s.token.refresh = time.Now().Add(refreshPause)
		if s.token.refresh.After(s.token.expiry) {
			s.token.refresh = s.token.expiry
		}
	}
	close(a.over)
}

// refused forgets the token that led to a 401, unless another caller already has.
func (s *session) refused(sent map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token.value == sent[tokenHeader] {
		s.token = token{}
	}
}

// renew asks for a token. Only a service that says that it has no such thing
// is a version 1 service; one that is silent or broken is merely that.
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
	if s, silent := errors.AsType[*silence](err); !ok || !silent || !s.timedOut {
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

// grantedTTL is what the service says, or what was asked for.
func grantedTTL(h http.Header) time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(h.Get(ttlHeader)))
	ttl := time.Duration(n) * time.Second
	if err != nil || n < 1 || n > int(tokenTTL/time.Second) {
		return tokenTTL
	}
	return ttl
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }
