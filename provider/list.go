package provider

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/nstance-go/nstance"
)

// List implements [nstance.Provider]. The time and the slot that it uses are
// the provider's: while the caller looks at a machine, neither is held. A
// machine that is not the owner's ends the sequence with Internal, and so does
// a sequence that stopped because ctx ended: neither is a whole listing.
func (c *Client) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		if err := validateFilter(owner); err != nil {
			yield(nstance.Machine{}, err)
			return
		}
		for try := 0; ; try++ {
			l := listing{c: c, owner: owner, yield: yield}
			err := l.run(ctx)
			if err == nil {
				return
			}
			if l.seen > 0 || !c.again(ctx, opList, err, try) {
				yield(nstance.Machine{}, fmt.Errorf("list machines of %s: %w", owner.Shard, err))
				return
			}
		}
	}
}

// A listing is one call of the provider's List.
type listing struct {
	c      *Client
	owner  nstance.Owner
	yield  func(nstance.Machine, error) bool
	seen   int           // machines passed on
	worked time.Duration // the provider's share of the time
	since  time.Time     // when the provider last got to work; zero while the caller has a machine
	limit  time.Duration // of a wait for the next machine
	idle   *time.Timer   // ends such a wait
}

// run passes on what the provider lists. Nil means that the listing is whole,
// or that the caller has had enough.
func (l *listing) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.limit = l.c.timeout()
	timeout := nstance.Errorf(nstance.Unavailable, "no further machine within %s", l.limit)
	l.idle = time.AfterFunc(l.limit, func() { cancel(timeout) })
	if err := l.resume(ctx); err != nil {
		l.idle.Stop()
		return err
	}
	defer func() {
		l.pause()
		l.c.observe(opList, err, l.worked)
	}()
	for m, err := range l.c.p.List(ctx, l.owner) {
		if err := l.check(m, err); err != nil {
			return err
		}
		l.pause()
		l.seen++
		if !l.yield(m, nil) {
			return nil
		}
		if err := l.resume(ctx); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nstance.Errorf(nstance.Unavailable, "the listing was cut off: %w", context.Cause(ctx))
	}
	return nil
}

// resume takes a slot and starts the clocks.
func (l *listing) resume(ctx context.Context) error {
	if err := l.c.acquire(ctx); err != nil {
		return err
	}
	l.since = time.Now()
	l.idle.Reset(l.limit)
	return nil
}

// pause gives the slot back and stops the clocks, unless they stand already.
func (l *listing) pause() {
	if l.since.IsZero() {
		return
	}
	l.idle.Stop()
	l.worked += time.Since(l.since)
	l.since = time.Time{}
	l.c.release()
}

func (l *listing) check(m nstance.Machine, err error) error {
	if err != nil {
		return classifyList(err)
	}
	if !l.owner.Owns(m.Owner) {
		return nstance.Errorf(nstance.Internal, "the provider listed machine %.64q, which belongs to %+v", m.ID, m.Owner)
	}
	return nil
}
