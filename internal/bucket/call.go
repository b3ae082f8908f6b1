package bucket

import (
	"context"
	"errors"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// A call is one request of a caller, under way.
type call struct {
	ctx     context.Context // ends with the caller's or at the time limit
	cancel  context.CancelFunc
	op, key string
	write   bool        // it may change something
	sent    atomic.Bool // something went out to some server
}

// begin is how every call starts: nothing has happened yet.
func (s *Store) begin(ctx context.Context, op, key string) (*call, error) {
	if err := storage.ValidateKey(key); err != nil {
		return nil, err
	}
	return s.start(ctx, op, key)
}

// start notes when a request goes out, so that a failure before that is known
// to have changed nothing. Requests for credentials count too, which only
// makes an answer more careful.
func (s *Store) start(ctx context.Context, op, key string) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, nstance.Errorf(nstance.Unavailable, "%s %s: %w", op, key, err)
	}
	c := &call{op: op, key: key}
	ctx, c.cancel = context.WithTimeout(ctx, s.timeout)
	c.ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaderField: func(string, []string) { c.sent.Store(true) },
		WroteHeaders:     func() { c.sent.Store(true) },
	})
	return c, nil
}

// failed classifies what the client library returned.
func (s *Store) failed(c *call, err error) error {
	if f, ok := s.driver.Fault(err); ok {
		return nstance.Errorf(f.meaning(c.write), "%s %s: the store answers %s", c.op, c.key, f)
	}
	return s.unanswered(c, err)
}

// unanswered classifies an error that is not the service's answer about the key. A
// call that has run out of time may have been sent on a connection that nothing
// answers any more, as after a packet filter's restart; then the others that have
// stood idle are no better.
func (s *Store) unanswered(c *call, err error) error {
	if errors.Is(context.Cause(c.ctx), context.DeadlineExceeded) {
		s.pool.CloseIdle()
	}
	code := nstance.Unavailable
	if c.write && c.sent.Load() {
		code = nstance.Ambiguous
	}
	// The URL in a url.Error may hold a signature.
	if broken, ok := errors.AsType[*url.Error](err); ok {
		err = broken.Err
	}
	if cause := c.ctx.Err(); cause != nil && !errors.Is(err, cause) {
		return nstance.Errorf(code, "%s %s: %v: %w", c.op, c.key, err, cause)
	}
	return nstance.Errorf(code, "%s %s: %w", c.op, c.key, err)
}
