package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
)

// checkAccount fails with Invalid when the shard has machines, and the provider
// looks for them in another account than the one in which they were made: it
// would answer for each that it does not exist. A shard without machines may
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
	case states.Account != "" && machines:
		return nstance.FieldError("shard.provider",
			"use the former settings and credentials; to move the shard, remove its instances with those first",
			"the machines of shard %s are in account %s, and this server's provider uses account %s: nothing is done", r.opts.Owner.Shard, states.Account, account)
	}
	_, err = r.states.Update(ctx, func(s *shardState) error { s.Account = account; return nil })
	return err
}
