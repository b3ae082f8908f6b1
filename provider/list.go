package provider

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// List implements [nstance.Provider]. While the caller handles a machine, no slot
// is held and the timeout does not run. Each machine is yielded once, and one that was is
// no further one: a provider that goes round in circles runs into the timeout. A machine
// of another owner ends the sequence with Internal, the end of ctx ends it with Unavailable:
// the listing is incomplete.
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
			if l.yielded > 0 || !c.waitToRepeat(ctx, opList, err, try) {
				yield(nstance.Machine{}, fmt.Errorf("list machines of %s: %w", owner.Shard, err))
				return
			}
		}
	}
}

// A listed machine is one that a listing has yielded.
type listed struct {
	id     nstance.InstanceID
	handle string
}

// A listing is one call of the provider's List.
type listing struct {
	c            *Client
	owner        nstance.Owner
	yield        func(nstance.Machine, error) bool
	yielded      int           // machines
	providerTime time.Duration // without the time of the caller
	resumedAt    time.Time     // zero while the caller handles a machine
	waitLimit    time.Duration // for the next machine
	waitTimer    *time.Timer
	release      func() // of the slot, while it has one
}

// run yields the machines that the provider lists. Nil means that the listing is
// complete, or that the caller has stopped.
func (l *listing) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.waitLimit = l.c.timeout()
	timeout := nstance.Errorf(nstance.Unavailable, "no further machine within %s", l.waitLimit)
	l.waitTimer = time.AfterFunc(l.waitLimit, func() { cancel(timeout) })
	if err := l.resume(ctx); err != nil {
		l.waitTimer.Stop()
		return err
	}
	defer func() {
		if context.Cause(ctx) == timeout && err != nil { //nolint:errorlint // this one, and no other of its code
			err = timeout // the provider says only that its call was cancelled
		}
		l.pause()
		l.c.observe(opList, err, l.providerTime)
	}()
	seen := map[listed]bool{}
	for m, err := range l.c.p.List(ctx, l.owner) {
		if err := l.check(m, err); err != nil {
			return err
		}
		is := listed{m.ID, m.ProviderID}
		if seen[is] && m.ID != "" { // pages of a list that changes may overlap; the wait for a further machine goes on
			if ctx.Err() != nil {
				break
			}
			continue
		}
		seen[is] = true
		l.pause()
		l.yielded++
		if !l.yield(l.c.known(m), nil) {
			return nil
		}
		if err := l.resume(ctx); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nstance.Errorf(nstance.Unavailable, "the listing is incomplete: %w", context.Cause(ctx))
	}
	return nil
}

// resume acquires a slot and starts the clocks.
func (l *listing) resume(ctx context.Context) error {
	release, err := l.c.acquire(ctx, opList)
	if err != nil {
		return err
	}
	l.release = release
	l.resumedAt = time.Now()
	l.waitTimer.Reset(l.waitLimit)
	return nil
}

// pause releases the slot and stops the clocks, unless they have stopped already.
func (l *listing) pause() {
	if l.resumedAt.IsZero() {
		return
	}
	l.waitTimer.Stop()
	l.providerTime += time.Since(l.resumedAt)
	l.resumedAt = time.Time{}
	l.release()
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

// ListOf is the List of a provider that knows all its machines at once: find
// returns those of one owner, in any order. Once ctx has ended it yields Unavailable:
// what find returned then is not complete.
func ListOf(ctx context.Context, find func() ([]nstance.Machine, error)) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		ended := func() error {
			if ctx.Err() == nil {
				return nil
			}
			return nstance.Errorf(nstance.Unavailable, "the listing is incomplete: %w", ctx.Err())
		}
		if err := ended(); err != nil {
			yield(nstance.Machine{}, err)
			return
		}
		machines, err := find()
		if err == nil {
			err = ended() // without machines nothing else would say so
		}
		slices.SortFunc(machines, func(a, b nstance.Machine) int { return cmp.Compare(a.ID, b.ID) })
		for _, m := range machines {
			if e := ended(); e != nil {
				err = e
				break
			}
			if !yield(m, nil) {
				return
			}
		}
		if err != nil {
			yield(nstance.Machine{}, err)
		}
	}
}
