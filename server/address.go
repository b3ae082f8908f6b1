package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/server/config"
)

// How long to wait before taking the movable address is tried again, doubling
// up to the ttl of the lease, and how often before it is given up for a server
// that may do better.
const (
	firstTake = 250 * time.Millisecond
	takeTries = 3
)

// movable returns what moves the shard's address, nil if it has none. It is the
// one place where the ability is looked for. Fails with Invalid if the provider
// has no such ability.
func movable(p nstance.Provider, shard config.Shard) (nstance.AddressMover, error) {
	if shard.LeaderAddress == "" {
		return nil, nil
	}
	mover, ok := p.(nstance.AddressMover)
	if !ok {
		return nil, nstance.FieldError("shard.leader_address", "leave it out, and give clients the addresses of all servers",
			"provider %s has no addresses that move", shard.Provider.Kind)
	}
	return mover, nil
}

// An addressKeeper holds the shard's movable address at this server for as long
// as one term lasts.
type addressKeeper struct {
	mover   nstance.AddressMover
	address string
	ttl     time.Duration        // of the lease
	limit   func() time.Duration // of one call
	check   func() error         // whether the term lasts
	relief  func() bool          // whether a server stands by that has never failed at it
	failed  func()               // is told of every failure
	alarm   func(reason string, err error)
	log     *slog.Logger

	mu      sync.Mutex
	trouble string // what a person should know; empty: nothing
}

// newAddressKeeper returns nil if the shard has no movable address.
func (t *term) newAddressKeeper() (*addressKeeper, error) {
	shard, s := t.conf.Shard, t.server
	mover, err := movable(s.provider, shard)
	if mover == nil {
		return nil, err
	}
	return &addressKeeper{
		mover: mover, address: shard.LeaderAddress, ttl: shard.Election.TTL, limit: func() time.Duration { return s.config().Shard.RequestTimeout },
		check: t.granted.Err, relief: s.peers.relief, failed: s.peers.fail, log: t.log,
		alarm: func(reason string, err error) {
			e := nstance.Event{Type: nstance.EventAlarm, Time: s.opts.Now().UTC(), Reason: reason}
			if err != nil {
				e.Code, e.Error = nstance.CodeOf(err), err.Error()
			}
			t.alarm(e)
		},
	}, nil
}

// keepAddress runs the keeper, if there is one, and has the term end when
// another server should try.
func (t *term) keepAddress(ctx context.Context) {
	if t.address == nil {
		return
	}
	if err := t.address.run(ctx); err != nil {
		t.quit <- err
	}
}

// run takes the address, and takes it again when it has moved away, until ctx
// ends. It returns an error when another server should try.
func (k *addressKeeper) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := k.take(ctx); err != nil {
			return err
		}
		k.watch(ctx)
	}
	return nil
}

// take returns nil once the address is here, or ctx has ended.
func (k *addressKeeper) take(ctx context.Context) error {
	began, wait := time.Now(), min(firstTake, k.ttl)
	for tries := 1; ; tries++ {
		err := k.try(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the term is over, and what was tried is of no interest
		case err == nil:
			k.say("", nil)
			k.log.Info("leader address taken", "address", k.address)
			return nil
		}
		k.failed()
		if k.say("the leader address "+k.address+" cannot be taken", err) {
			k.alarm("the leader address "+k.address+" cannot be taken", err)
		}
		if tries >= takeTries && time.Since(began) >= k.ttl && k.relief() {
			k.alarm("this server gives up leading: it cannot take the leader address "+k.address+", and one stands by that has never failed to", err)
			return fmt.Errorf("take the leader address %s: %w", k.address, err)
		}
		if !sleep.For(ctx, wait) {
			return nil
		}
		wait = min(2*wait, k.ttl)
	}
}

// try takes the address once, and waits for the cloud to carry out what it has
// accepted, one ttl at most.
func (k *addressKeeper) try(ctx context.Context) error {
	if err := k.check(); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, k.limit())
	defer cancel()
	if err := k.mover.TakeAddress(call, k.address); err != nil {
		return err
	}
	for began := time.Now(); ; {
		switch {
		case !k.missing(ctx):
			return nil
		case time.Since(began) >= k.ttl:
			return nstance.Errorf(nstance.Unavailable, "the cloud has accepted it, and it is not here after %s", k.ttl)
		case !sleep.For(ctx, k.ttl/6):
			return nil
		}
	}
}

// watch looks every ttl, and returns when the address has moved away, or ctx
// has ended. An error is no answer.
func (k *addressKeeper) watch(ctx context.Context) {
	for sleep.For(ctx, k.ttl) {
		held, err := k.held(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			k.say("it is not known whether the leader address "+k.address+" is here", err)
		case held:
			k.say("", nil)
		default:
			k.alarm("the leader address "+k.address+" is not here any more, and is taken again", nil)
			return
		}
	}
}

// missing reports whether the address is definitely not here. What was accepted
// and cannot be read is taken to be, and looked for again later.
func (k *addressKeeper) missing(ctx context.Context) bool {
	held, err := k.held(ctx)
	return err == nil && !held
}

func (k *addressKeeper) held(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, k.limit())
	defer cancel()
	return k.mover.HoldsAddress(ctx, k.address)
}

// say keeps what a person should know, or that there is nothing any more. It
// reports, and logs, whether that is news.
func (k *addressKeeper) say(what string, err error) (news bool) {
	k.mu.Lock()
	news = k.trouble == "" != (what == "")
	k.trouble = what
	if err != nil {
		k.trouble += ": " + err.Error()
	}
	k.mu.Unlock()
	switch {
	case news && what != "":
		k.log.Warn(what, "code", nstance.CodeOf(err), "err", err)
	case news:
		k.log.Info("the leader address is well again", "address", k.address)
	}
	return news
}

// problems returns what a person should see. A nil keeper has none.
func (k *addressKeeper) problems() []string {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.trouble == "" {
		return nil
	}
	return []string{k.trouble}
}
