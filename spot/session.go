package spot

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	tokenPath   = "latest/api/token"
	tokenHeader = "X-aws-ec2-metadata-token"
	ttlHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
	tokenTTL    = 6 * time.Hour // the longest that is granted (EC2 user guide, "How IMDSv2 works")
	maxTokenLen = 1024
)

// A session holds the token of the aws metadata service, version 2. Its fields
// belong to whoever holds turn, which is not a mutex: those who wait for it
// leave when their context ends.
type session struct {
	o    *Options
	turn chan struct{} // holds one element while free

	token   string
	refresh time.Time // when to ask for a new one
	expiry  time.Time
	legacy  bool // the service knows no tokens: version 1
}

func newSession(o *Options) *session {
	s := &session{o: o, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// header returns what a read must carry.
func (s *session) header(ctx context.Context) (map[string]string, error) {
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	defer s.give()
	if !s.legacy && !time.Now().Before(s.refresh) {
		if err := s.renew(ctx); err != nil && !time.Now().Before(s.expiry) {
			return nil, err
		}
	}
	if s.legacy {
		return nil, nil
	}
	return map[string]string{tokenHeader: s.token}, nil
}

// refused forgets what led to a 401, unless somebody else already has.
func (s *session) refused(ctx context.Context, sent map[string]string) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if s.token == sent[tokenHeader] {
		s.token, s.refresh, s.expiry, s.legacy = "", time.Time{}, time.Time{}, false
	}
	return nil
}

func (s *session) take(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.turn:
		return nil
	}
}

func (s *session) give() { s.turn <- struct{}{} }

// renew asks for a token. Only a service that says that it has no such thing
// is a version 1 service; one that is silent or broken is merely that.
func (s *session) renew(ctx context.Context) error {
	asked := time.Now()
	a, err := s.o.do(ctx, request{
		method:  http.MethodPut,
		path:    tokenPath,
		header:  map[string]string{ttlHeader: seconds(tokenTTL)},
		timeout: requestTimeout,
	})
	if err != nil {
		return hopLimit(err)
	}
	if a.status == http.StatusNotFound || a.status == http.StatusMethodNotAllowed {
		s.o.Log.Info("metadata service has no session tokens, using version 1")
		s.legacy = true
		return nil
	}
	if err := a.check(tokenPath); err != nil {
		return err
	}
	if !tokenLike(a.body) {
		return nstance.Errorf(nstance.Internal, "/%s: not a token", tokenPath)
	}
	ttl := grantedTTL(a.header)
	s.token = string(a.body)
	s.expiry = asked.Add(ttl)
	s.refresh = s.expiry.Add(-min(time.Minute, ttl/10))
	return nil
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
