package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
)

// An Impact counts what other desired values would cost.
type Impact struct {
	Members int // managed members of the shard that stay or start at present
	Removed int // of them, those that smaller sizes would remove
	Rotated int // of the others, those that changed definitions would replace
}

// Impact says what wanting groups would cost beyond what goes on already.
// Groups that are not among them keep their values. It fails with Invalid for a
// definition that has no hash.
func (r *Reconciler) Impact(groups []nstance.Group) (Impact, error) {
	wishes, _, err := r.wishesFor(groups)
	if err != nil {
		return Impact{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out Impact
	for _, m := range r.members {
		if m.planable() {
			out.Members++
		}
	}
	for _, w := range wishes {
		if g := r.groups[w.spec.Key]; g != nil {
			removed, rotated := r.cost(g, w.spec.Size, confighash.Hash(g.under(w).hash))
			out.Removed += removed
			out.Rotated += rotated
		}
	}
	return out, nil
}

// cost counts the members of g that another size and hash would remove and
// replace.
func (r *Reconciler) cost(g *group, size int, hash confighash.Hash) (removed, rotated int) {
	members := 0
	for _, m := range g.members {
		if !m.planable() {
			continue
		}
		members++
		if confighash.Drifted(confighash.Hash(m.rec.InfraHash), hash) && !r.drifted(m) {
			rotated++
		}
	}
	removed = max(0, members-size)
	if g.desired {
		removed -= max(0, members-g.spec.Size)
	}
	removed = max(0, removed)
	return removed, min(rotated, members-removed)
}

// planable reports whether m is a managed member that neither leaves nor has
// failed.
func (m *member) planable() bool {
	return !m.rec.OnDemand && !m.state.Leaving() && m.state != nstance.Failed
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
