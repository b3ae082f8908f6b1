// Package address keeps a shard's movable address at the server that leads.
package address

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	// firstWait is the wait after the first failure to take the address. It
	// doubles up to the lease's TTL.
	firstWait = 250 * time.Millisecond
	// minAttempts is how often it is tried before the term ends in favour of a
	// standby.
	minAttempts = 3
)

// Options configure a Keeper. All fields are required.
type Options struct {
	Address string
	TTL     time.Duration        // of the lease
	Timeout func() time.Duration // of one call to the provider
	Check   func() error         // fails when the term has ended
	Relief  func() bool          // a standby is connected that has never failed to take the address
	Failed  func()               // called after each failure
	Alarm   func(reason string, err error)
	Log     *slog.Logger
}

// A Keeper holds the shard's movable address at this server during one term.
type Keeper struct {
	Options
	mover nstance.AddressMover

	mu      sync.Mutex
	problem string // for operators; empty: none
}

// New returns a keeper, which does nothing before Run.
func New(mover nstance.AddressMover, opts Options) *Keeper {
	return &Keeper{Options: opts, mover: mover}
}

// Run takes the address, and takes it again when it has moved away, until ctx
// ends. It returns an error when this server should stop leading because a
// standby may be able to take the address.
func (k *Keeper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := k.acquire(ctx); err != nil {
			return err
		}
		k.watch(ctx)
	}
	return nil
}

// acquire returns nil once the address is here, or ctx has ended.
func (k *Keeper) acquire(ctx context.Context) error {
	began, wait := time.Now(), min(firstWait, k.TTL)
	for attempts := 1; ; attempts++ {
		err := k.try(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the term has ended: the outcome no longer matters
		case err == nil:
			k.setProblem("", nil)
			k.Log.Info("leader address taken", "address", k.Address)
			return nil
		}
		k.Failed()
		if k.setProblem("the leader address "+k.Address+" cannot be taken", err) {
			k.Alarm("the leader address "+k.Address+" cannot be taken", err)
		}
		if attempts >= minAttempts && time.Since(began) >= k.TTL && k.Relief() {
			k.Alarm("this server stops leading: it cannot take the leader address "+k.Address+", and a standby has never failed to", err)
			return fmt.Errorf("take the leader address %s: %w", k.Address, err)
		}
		if !sleep.For(ctx, wait) {
			return nil
		}
		wait = min(2*wait, k.TTL)
	}
}

// try takes the address once, and waits up to one TTL for the cloud to carry out
// an accepted request.
func (k *Keeper) try(ctx context.Context) error {
	if err := k.Check(); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, k.Timeout())
	defer cancel()
	if err := k.mover.TakeAddress(call, k.Address); err != nil {
		return err
	}
	for began := time.Now(); ; {
		switch {
		case !k.missing(ctx):
			return nil
		case time.Since(began) >= k.TTL:
			return nstance.Errorf(nstance.Unavailable, "the cloud accepted the request, and the address is not here after %s", k.TTL)
		case !sleep.For(ctx, k.TTL/6):
			return nil
		}
	}
}

// watch looks every TTL, and returns when the address has moved away, or ctx has
// ended. A failed look does not count as moved.
func (k *Keeper) watch(ctx context.Context) {
	for sleep.For(ctx, k.TTL) {
		held, err := k.held(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			k.setProblem("cannot read where the leader address "+k.Address+" is", err)
		case held:
			k.setProblem("", nil)
		default:
			k.Alarm("the leader address "+k.Address+" has moved away, and is taken again", nil)
			return
		}
	}
}

// missing reports whether the address is definitely not here. An accepted request
// counts as carried out while its outcome cannot be read; watch looks later.
func (k *Keeper) missing(ctx context.Context) bool {
	held, err := k.held(ctx)
	return err == nil && !held
}

func (k *Keeper) held(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, k.Timeout())
	defer cancel()
	return k.mover.HoldsAddress(ctx, k.Address)
}

// setProblem keeps what operators should see, empty for nothing. It logs a
// change, and reports whether there was one.
func (k *Keeper) setProblem(what string, err error) (changed bool) {
	k.mu.Lock()
	changed = k.problem == "" != (what == "")
	k.problem = what
	if err != nil {
		k.problem += ": " + err.Error()
	}
	k.mu.Unlock()
	switch {
	case changed && what != "":
		k.Log.Warn(what, "code", nstance.CodeOf(err), "err", err)
	case changed:
		k.Log.Info("leader address recovered", "address", k.Address)
	}
	return changed
}

// Problems returns what operators should see. A nil keeper has none.
func (k *Keeper) Problems() []string {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.problem == "" {
		return nil
	}
	return []string{k.problem}
}
