package reconcile

import (
	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
)

// spread returns what bounds how many members of g are in one place; nil: nothing does.
// Members count that stay.
func (g *group) spread() *admission.Spread {
	s := g.spec.Spread
	switch s.By {
	case "", nstance.SpreadMarket: // the plan says how many are on spot
		return nil
	case nstance.SpreadHost: // no shape is on a host
		return nil
	}
	out := &admission.Spread{By: s.By, Limit: s.MaxShare.Of(g.spec.Size), Members: map[admission.Shape]int{}}
	for _, m := range g.members {
		if !m.extra() && !m.state.Leaving() && m.state != nstance.Failed && !m.gone {
			out.Members[capacityShape(m.rec.Shape)]++
		}
	}
	return out
}

// place returns what counts as one place with m, as a member of g; empty: nothing does.
func (s *shard) place(g *group, m *member) string {
	switch g.spec.Spread.By {
	case "", nstance.SpreadMarket:
		return ""
	case nstance.SpreadHost:
		return m.zone()
	}
	return s.admission.Place(g.spec.Spread.By, capacityShape(m.rec.Shape))
}

// hostLimit returns how many machines of m's group the provider puts on one host; 0: any
// number.
func (r *Reconciler) hostLimit(m *member) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := &m.group.spec
	if g.Spread.By != nstance.SpreadHost {
		return 0
	}
	return max(1, g.Spread.MaxShare.Of(g.Size))
}
