// Package lease decides who leads a shard. A grant is a [Term]: it has an
// epoch, which is durable and grows with every grant, and a context, which
// ends before anybody else can lead. Everything a leader writes carries the
// epoch; everything it does hangs on the context.
package lease

import (
	"context"
	"errors"

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

// ErrResigned is the cause of a term that was given back.
var ErrResigned = errors.New("the lease was given back")

// A Term is one span of leadership. Its methods may be called concurrently.
type Term struct {
	epoch uint64
	ctx   context.Context
	end   context.CancelCauseFunc
}

// newTerm begins a term that is independent of the campaign's own context.
func newTerm(ctx context.Context, epoch uint64) *Term {
	t := &Term{epoch: epoch}
	t.ctx, t.end = context.WithCancelCause(context.WithoutCancel(ctx))
	return t
}

// Epoch returns the term's number, from 1. No two terms of a shard share one.
func (t *Term) Epoch() uint64 { return t.epoch }

// Context ends with the term.
func (t *Term) Context() context.Context { return t.ctx }

// Err returns nil while the term lasts, and then an Unavailable error that says
// how it ended. Ask it immediately before every act.
func (t *Term) Err() error {
	if t.ctx.Err() == nil {
		return nil
	}
	return nstance.Errorf(nstance.Unavailable, "term %d is over: %w", t.epoch, context.Cause(t.ctx))
}
