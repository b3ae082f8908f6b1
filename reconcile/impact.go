package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// An Impact counts what other desired values would cost.
type Impact struct {
	Members int `json:"members"` // instances of the shard that stay or start at present, by request too
	Removed int `json:"removed"` // of them, those that smaller sizes would remove, and those by request that a lower age would end
	Rotated int `json:"rotated"` // of the others, those that changed definitions or lower ages would replace
}

// Impact says what wanting groups would cost beyond what goes on already.
// Groups that are not among them keep their values. Ages are those of this
// moment: who reaches a lower one later is not counted. It fails with Invalid
// for a definition that has no hash.
func (r *Admin) Impact(groups []nstance.Group) (Impact, error) {
	specs, err := hashed(groups)
	if err != nil {
		return Impact{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	var out Impact
	for _, m := range r.members {
		if !m.state.Leaving() {
			out.Members++
		}
	}
	for _, w := range specs {
		g := r.groups[w.spec.Key]
		if g == nil {
			continue
		}
		changes, _ := compare(plan.NewCensus(r.view(g, now, nil), now), plan.NewCensus(r.view(g.withDesired(w, now), now, nil), now))
		for _, change := range changes {
			switch change.action {
			case ActionDrain, ActionDelete:
				out.Removed++
			case ActionReplace:
				if !change.repeated {
					out.Rotated++
				}
			case actionNone, ActionPush:
			}
		}
	}
	return out, nil
}

func (r internals) Await(ctx context.Context) error {
	select {
	case <-r.known:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "the shard is not read yet: %w", ctx.Err())
	}
}
