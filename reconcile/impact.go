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
	now := r.opts.Now()
	known, members := r.countMembers()
	out := Impact{Members: members}
	for _, w := range specs {
		if !known[w.spec.Key] {
			continue
		}
		is, would := r.viewsWith(w, now)
		changes, _ := compare(plan.NewCensus(is, now), plan.NewCensus(would, now))
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

// countMembers returns which groups there are, and how many members do not leave.
func (r *Reconciler) countMembers() (groups map[nstance.GroupKey]bool, members int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	groups = make(map[nstance.GroupKey]bool, len(r.groups))
	for key := range r.groups {
		groups[key] = true
	}
	for _, m := range r.members {
		if !m.state.Leaving() {
			members++
		}
	}
	return groups, members
}

func (r internals) Await(ctx context.Context) error { return r.awaitLoaded(ctx) }
