package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// The handshake checks a certificate once, and a connection may outlive it. So
// each call checks it again, and each stream ends with it.

// unexpired fails with Denied once the certificate of id has expired.
func (s *Server) unexpired(id nstance.Identity) error {
	if s.opts.Now().Before(id.NotAfter) {
		return nil
	}
	return &nstance.Error{
		Code: nstance.Denied, Msg: "certificate " + id.Serial + " expired at " + id.NotAfter.Format(time.RFC3339),
		Remedy: "connect again with a renewed certificate, or register again",
	}
}

// onExpiry calls end when the certificate of id has expired, unless stop was
// called before. A wall clock may be set, so it is read every KeyInterval.
// stop waits for end.
func (s *Server) onExpiry(id nstance.Identity, end func(error)) (stop func()) {
	var (
		mu    sync.Mutex
		timer *time.Timer
		over  bool
		check func()
	)
	check = func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		if err := s.unexpired(id); err != nil {
			over = true
			end(err)
			return
		}
		timer = time.AfterFunc(min(id.NotAfter.Sub(s.opts.Now()), s.opts.KeyInterval), check)
	}
	check()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		if timer != nil {
			timer.Stop()
		}
	}
}

// untilExpiry serves a stream whose context ends when the certificate of id
// expires. A client that does not read loses its connection soon after.
func (s *Server) untilExpiry(ctx context.Context, id nstance.Identity, serve func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.onExpiry(id, func(err error) {
		cancel(err)
		time.AfterFunc(farewell, hangUp(ctx))
	})()
	err := serve(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
