package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// firstLookUps is how long the first plan of a term waits for the provider's answers,
// which improve it. Records suffice to plan.
const firstLookUps = 2 * time.Second

// The provider is not asked again for its account for accountRetry, and longer after each
// failure.
const (
	accountRetry    = time.Second
	maxAccountRetry = 10 * time.Second
)

// awaitFirstAnswers has the provider asked for everything that the first plans use, and
// waits for the answers, though not for long: those that come later are used when they come.
func (r *Reconciler) awaitFirstAnswers(ctx context.Context, stop context.CancelCauseFunc, states shardState, machines bool) {
	done := make(chan struct{})
	r.lookUps.Go(func() {
		defer close(done)
		if err := r.confirmAccount(ctx, states, machines); err != nil {
			stop(err)
			return
		}
		r.queryProvider(ctx)
	})
	select {
	case <-done:
	case <-time.After(firstLookUps):
	case <-ctx.Done():
	}
}

// confirmAccount checks the account of the provider until it is known. Until then plans are
// made and drains are announced, and no other call of the provider is sent.
func (r *Reconciler) confirmAccount(ctx context.Context, states shardState, machines bool) error {
	for failures := 1; ; failures++ {
		err := r.checkAccount(ctx, states, machines)
		switch {
		case err == nil:
			r.accountConfirmed()
			return nil
		case errors.Is(err, nstance.Invalid):
			return err
		}
		if r.setAccountError(err) {
			r.log.Error("account of the provider not known yet", "shard", r.opts.Owner.Shard, "code", nstance.CodeOf(err), "err", err)
		}
		if !sleep.For(ctx, sleep.Backoff(failures, accountRetry, maxAccountRetry)) {
			return ctx.Err()
		}
	}
}

// setAccountError reports whether the error is another one than the last.
func (r *Reconciler) setAccountError(err error) (isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isNew = r.accountError == nil || r.accountError.Error() != err.Error()
	r.accountError = err
	return isNew
}

// accountConfirmed has calls of the provider sent from now on. Steps that have waited for
// that are due.
func (r *Reconciler) accountConfirmed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.provider.Blocked() == nil {
		return
	}
	r.provider.Block(nil)
	r.accountError = nil
	for _, m := range r.members {
		m.retryDue = time.Time{}
		r.queue.Add(m.group.key, true)
	}
}

// errAccountUnknown keeps calls from the provider before its account is confirmed.
var errAccountUnknown = errors.New("the account that the provider uses is not known yet")

// checkAccount fails with Invalid when the shard has machines, and the provider
// looks for them in another account than the one in which they were made: it
// would answer for each that it does not exist. An account that has become larger still sees
// them; one that lacks a place does not. A shard without machines may
// change its account. The account is durable before the first machine is made.
func (r *Reconciler) checkAccount(ctx context.Context, states shardState, machines bool) error {
	namer := r.provider.Abilities().Account
	if namer == nil {
		return nil
	}
	account, err := namer.Account(ctx)
	switch {
	case err != nil || account == states.Account:
		return err
	case machines && !sees(account, states.Account):
		return nstance.FieldError("shard.provider",
			"use the former settings and credentials; to move the shard, remove its instances with those first",
			"the machines of shard %s are in account %s, and this server's provider uses account %s: nothing is done", r.opts.Owner.Shard, states.Account, account)
	}
	_, err = r.states.Update(ctx, func(s *shardState) error { s.Account = account; return nil })
	return err
}

// sees reports whether an account has every place of a former one.
func sees(account, former string) bool {
	if former == "" {
		return true
	}
	places := strings.Split(account, ",")
	for place := range strings.SplitSeq(former, ",") {
		if !slices.Contains(places, place) {
			return false
		}
	}
	return true
}
