package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
)

func (r internals) DrillDue(ctx context.Context, key nstance.GroupKey, every time.Duration, count nstance.Count) (due bool, err error) {
	err = r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		now := r.opts.Now().UTC()
		switch {
		case !g.defined(): // this term does not know yet what it should be
			return nstance.Event{}, nil
		case g.history.DrilledAt.IsZero():
			g.history.DrilledAt = now
			r.saver.Changed()
			return nstance.Event{}, nil
		case !r.reached(g.history.DrilledAt.Add(every), now):
			return nstance.Event{}, nil
		}
		if why := r.noDrill(g, count); why != "" {
			if !g.published.drill {
				g.published.drill = true
				r.publishGroup(g, nstance.Event{Type: eventtype.DrillSkipped, Reason: why})
			}
			return nstance.Event{}, nil
		}
		due = true
		return nstance.Event{}, nil
	})
	return due, err
}

func (r internals) BeginDrill(ctx context.Context, key nstance.GroupKey, every time.Duration) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		g.published.drill, g.history.DrilledAt = false, r.opts.Now().UTC()
		return nstance.Event{Type: eventtype.DrillStarted, Reason: "every " + every.String()}, nil
	})
}

// noDrill returns why a group should not lose so many members in a drill; empty: it may.
func (s *shard) noDrill(g *group, count nstance.Count) string {
	at := s.snapshot(g, s.opts.Now(), nil)
	v := at.groupView()
	switch {
	case v.Removing || v.Size == 0:
		return "the group is empty"
	case v.Frozen || v.Paused || v.Halted != "":
		return "the group is frozen, or its rollout is paused or halted"
	case v.Ready != v.Size:
		return fmt.Sprintf("%d of %d members are ready", v.Ready, v.Size)
	case v.Booting+v.Leaving+v.Gone+v.Stale > 0:
		return "members are being replaced"
	case count.Of(v.Size) > v.Size:
		return fmt.Sprintf("drill.count is %s, the size is %d", count, v.Size)
	case len(v.Holds) > 0:
		return "hold " + string(v.Holds[0].Kind) + ": " + v.Holds[0].Reason
	}
	return ""
}
