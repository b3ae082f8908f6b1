package reconcile

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
)

// An Impact counts what other desired values would cost.
type Impact struct {
	Members int // instances of the shard that stay or start at present, by request too
	Removed int // of them, those that smaller sizes would remove, and those by request that a lower age would end
	Rotated int // of the others, those that changed definitions or lower ages would replace
}

// Impact says what wanting groups would cost beyond what goes on already.
// Groups that are not among them keep their values. Ages are those of this
// moment: who reaches a lower one later is not counted. It fails with Invalid
// for a definition that has no hash.
func (r *Reconciler) Impact(groups []nstance.Group) (Impact, error) {
	wishes, _, err := r.wishesFor(groups)
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
	for _, w := range wishes {
		if g := r.groups[w.spec.Key]; g != nil {
			removed, rotated := cost(g, g.under(w), now)
			out.Removed += removed
			out.Rotated += rotated
		}
	}
	return out, nil
}

// cost counts the members of g that it would remove and replace as next.
func cost(g, next *group, now time.Time) (removed, rotated int) {
	members, ended := 0, 0
	for _, m := range g.members {
		sooner := !m.state.Leaving() && m.urgency(next, now) > m.urgency(g, now)
		switch {
		case m.state.Leaving():
		case !m.rec.OnDemand:
			members++
			if sooner {
				rotated++
			}
		case sooner:
			ended++
		}
	}
	removed = max(0, members-next.spec.Size)
	if g.desired {
		removed -= max(0, members-g.spec.Size)
	}
	removed = max(0, removed)
	return removed + ended, min(rotated, members-removed)
}

// urgency says how soon m would have to go if g, of which it is a member, were
// as given: 0 for not at all, 1 when it is its turn, 2 at once.
func (m *member) urgency(g *group, now time.Time) int {
	past := func(limit time.Duration) bool {
		at := age(m, limit)
		return !at.IsZero() && !now.Before(at)
	}
	e := g.spec.Expiry
	switch {
	case !g.desired:
		return 0
	case m.rec.OnDemand && past(e.OnDemandAge), !m.rec.OnDemand && past(e.ForcedAge):
		return 2
	case m.rec.OnDemand:
		return 0
	case past(e.EligibleAge), confighash.Drifted(confighash.Hash(m.rec.InfraHash), confighash.Hash(g.hash)):
		return 1
	}
	return 0
}

// Await blocks until the shard's records have been read, or ctx ends.
func (r *Reconciler) Await(ctx context.Context) error {
	select {
	case <-r.known:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "the shard is not read yet: %w", ctx.Err())
	}
}
