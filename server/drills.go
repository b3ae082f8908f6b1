package server

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/sleep"
)

// runDrills begins the drills of configured groups when they are due, until ctx ends.
func (t *term) runDrills(ctx context.Context) {
	if t.reconciler.Await(ctx) != nil {
		return
	}
	for sleep.For(ctx, t.server.opts.intervals.drillCheck) {
		for key, drill := range t.server.config.InForce().Drills() {
			if err := t.runDrill(ctx, key, drill); err != nil && ctx.Err() == nil {
				t.log.Warn("drill not carried out", "group", key.String(), "code", nstance.CodeOf(err), "err", err)
			}
		}
	}
}

func (t *term) runDrill(ctx context.Context, key nstance.GroupKey, drill config.Drill) error {
	ctx, cancel := t.bound(ctx)
	defer cancel()
	begun, err := t.reconciler.BeginDrill(ctx, key, drill.Every, drill.Count)
	if err != nil || !begun {
		return err
	}
	return t.operators.Drill(ctx, key, drill)
}
