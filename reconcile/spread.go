package reconcile

import (
	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
)

// spread returns what bounds how many members of g are in one place; nil: nothing does.
// Members count that stay.
func (g *group) spread() *admission.Spread {
	s := g.spec.Spread
	if s == (nstance.Spread{}) {
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

// place returns what counts as one place with m, as a member of g; empty: g has no
// spread.
func (s *shard) place(g *group, m *member) string {
	if g.spec.Spread == (nstance.Spread{}) {
		return ""
	}
	return s.admission.Place(g.spec.Spread.By, capacityShape(m.rec.Shape))
}
