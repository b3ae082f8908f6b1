// Package lease decides who leads a shard. A grant is a [Term]: it has an
// epoch, which is durable and grows with every grant, and a context, which
// ends before another server can lead. Everything a leader writes carries the
// epoch; everything it does hangs on the context.
//
// [Lease] is the elector for any number of servers. It needs a storage.Store
// and nothing else: no clock that others agree with, no quorum, no peer. The
// holder renews one small object. A standby that has not seen it change for the
// ttl that it names may replace it.
//
// The methods of a [Term] may be called concurrently. Campaign and Resign of an [Elector]
// are called by one goroutine at a time.
package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
)

// An Elector grants terms. Its methods are called by one goroutine at a time.
type Elector interface {
	// Campaign blocks until this process leads, or ctx ends. The term goes on
	// after ctx has ended: it ends by Resign, or by itself when the lease is
	// lost. Fails like the storage beneath; it may be called again.
	Campaign(ctx context.Context) (*Term, error)

	// Resign ends the term at once, whatever storage says, and then gives the
	// lease back, so that another can lead without waiting. Nil if there is no
	// term. After an error the lease runs out by itself.
	Resign(ctx context.Context) error
}

// ErrResigned is the cause of a term that was released.
var ErrResigned = errors.New("the lease was released")

// Causes of a term that ended by itself.
var (
	errRanOut    = errors.New("it was not renewed in time")
	errLost      = errors.New("another process has written the lease")
	errCampaigns = errors.New("campaigned again")
)

// A Term is one span of leadership. Its methods may be called concurrently.
type Term struct {
	epoch       uint64
	ctx         context.Context
	end         context.CancelCauseFunc
	clock       Clock
	until       atomic.Int64 // nanoseconds of clock; the term is valid before
	confirmedAt atomic.Int64 // nanoseconds of clock; when until was last set
}

// newTerm begins a term that is independent of the campaign's own context, and
// ends at until unless it is extended.
func newTerm(ctx context.Context, epoch uint64, c Clock, until time.Duration) *Term {
	t := &Term{epoch: epoch, clock: c}
	t.ctx, t.end = context.WithCancelCause(context.WithoutCancel(ctx))
	t.confirmedAt.Store(int64(c.Now()))
	t.until.Store(int64(until))
	t.watch()
	return t
}

// watch ends the term when its time has come. A term that has ended otherwise
// leaves one timer behind, which does nothing.
func (t *Term) watch() {
	t.clock.AfterFunc(time.Duration(t.until.Load())-t.clock.Now(), func() {
		if t.Err() == nil {
			t.watch()
		}
	})
}

// extend lets the term last until then, unless it is over already or would be.
// There is no way back from the end, whatever is confirmed afterwards.
func (t *Term) extend(until time.Duration) {
	if t.Err() == nil {
		t.confirmedAt.Store(int64(t.clock.Now()))
		t.until.Store(max(t.until.Load(), int64(until)))
	}
}

// Epoch returns the term's number, from 1. No two terms of a shard share one.
func (t *Term) Epoch() uint64 { return t.epoch }

// Age returns how long ago this process learned that the term was granted or
// renewed, for metrics.
func (t *Term) Age() time.Duration {
	return t.clock.Now() - time.Duration(t.confirmedAt.Load())
}

// Context ends with the term.
func (t *Term) Context() context.Context { return t.ctx }

// Err returns nil while the term lasts, and then an Unavailable error that says
// how it ended. It looks at the clock, so that a process which was paused or a
// machine that slept knows at once. Ask it immediately before every act.
func (t *Term) Err() error {
	if int64(t.clock.Now()) >= t.until.Load() {
		t.end(errRanOut)
	}
	if t.ctx.Err() == nil {
		return nil
	}
	return nstance.Errorf(nstance.Unavailable, "term %d is over: %w", t.epoch, context.Cause(t.ctx))
}
