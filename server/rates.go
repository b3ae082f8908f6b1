package server

import (
	"cmp"
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/sleep"
)

// rateInterval is how often the ledger is read for the rates of pools. Only what is new
// since then is fetched.
const rateInterval = 15 * time.Minute

// keepRates has the reconciler know how often pools are reclaimed, and the status page
// what was interrupted before, until ctx ends.
func (t *term) keepRates(ctx context.Context) {
	if t.reconciler.Await(ctx) != nil {
		return
	}
	for pause := t.server.opts.intervals.firstRates; sleep.For(ctx, pause); pause = rateInterval {
		err := cmp.Or(t.readRates(ctx), t.server.operators.RememberInterruptions(ctx, knownInterruptions))
		if err != nil && ctx.Err() == nil {
			t.log.Warn("interruption rates not read, the last ones count", "code", nstance.CodeOf(err), "err", err)
		}
	}
}

func (t *term) readRates(ctx context.Context) error {
	now := t.server.opts.Now().UTC()
	everyTenant := func(nstance.TenantID) bool { return true }
	rates, err := t.server.operators.Ledger.Rates(ctx, now.Add(-ledger.RatePeriod), now, ledger.OpenAll(t.reconciler.LivingRecords()), everyTenant)
	if err != nil {
		return err
	}
	known := make([]loop.PoolRate, len(rates.Pools))
	for i, r := range rates.Pools {
		known[i] = loop.PoolRate{InstanceType: r.Pool.InstanceType, Zone: r.Pool.Zone, Market: r.Pool.Market, MachineTime: r.MachineTime, Reclaims: r.Reclaims, LastReclaim: r.LastReclaim}
	}
	t.reconciler.SetPoolRates(known)
	t.poolRates.Store(&known)
	return nil
}
