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
	shown := map[nstance.GroupKey]string{} // errors that were logged
	for sleep.For(ctx, t.server.opts.intervals.drillCheck) {
		for key, drill := range t.server.config.InForce().Drills() {
			err := t.runDrill(ctx, key, drill)
			switch {
			case err == nil:
				delete(shown, key)
			case err.Error() != shown[key] && ctx.Err() == nil:
				shown[key] = err.Error()
				t.log.Warn("drill not carried out, retrying", "group", key.String(), "code", nstance.CodeOf(err), "err", err)
			}
		}
	}
}

func (t *term) runDrill(ctx context.Context, key nstance.GroupKey, drill config.Drill) error {
	ctx, cancel := t.bound(ctx)
	defer cancel()
	due, err := t.reconciler.DrillDue(ctx, key, drill.Every, drill.Count)
	if err != nil || !due {
		return err
	}
	return t.operators.Drill(ctx, key, drill)
}
