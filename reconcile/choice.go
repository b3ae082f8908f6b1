package reconcile

import (
	"cmp"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// choiceReclaims is the choice of an on-demand shape for a spot group after the reclaims
// that market.fallback_when names.
const choiceReclaims admission.Choice = "reclaims"

// choiceOnRecord returns why m has the shape that it was granted. A create that is
// repeated keeps its reason.
func (m *member) choiceOnRecord() string {
	if m.choice == admission.ChoiceRepeated || m.choice == "" {
		return m.rec.ShapeChoice
	}
	return string(m.choice)
}

// shapeReason says in an event why an instance does not have the first permitted shape;
// empty: it does, or that is not known.
func shapeReason(rec records.Instance) string {
	why := map[admission.Choice]string{
		admission.ChoiceCheapest:  "it costs least now",
		admission.ChoiceSteadiest: "its pool is reclaimed least often",
		admission.ChoiceSpread:    "others have their share of the group",
		admission.ChoiceCrowded:   "it has the fewest members, no place below its share has capacity",
		admission.ChoiceReclaimed: "others were reclaimed lately",
		admission.ChoiceAddresses: "other subnets have no free address",
		admission.ChoiceCapacity:  "others are sold out",
		admission.ChoiceFallback:  "spot is sold out",
		admission.ChoiceAvoided:   "other pools are avoided",
		admission.ChoiceRefused:   "the provider refuses others",
		choiceReclaims:            "spot was reclaimed too often",
	}[admission.Choice(rec.ShapeChoice)]
	if why == "" {
		return ""
	}
	text := "; " + cmp.Or(rec.Shape.InstanceType, "machine")
	if rec.Shape.Subnet != "" {
		text += " in " + rec.Shape.Subnet
	}
	return text + " " + string(rec.Shape.Market) + ": " + why
}

// A ShapePlan is the shape that a create would have now, and why.
type ShapePlan struct {
	InstanceType string             `json:"instance_type,omitempty"`
	Subnet       string             `json:"subnet,omitempty"`
	Market       nstance.MarketType `json:"market"`
	Choice       string             `json:"choice"` // as InstanceView.ShapeChoice
}

// previewAvoided returns the hold of the next create of g if every shape that it permits is
// avoided.
func (s *shard) previewAvoided(g *group, now time.Time) []HoldView {
	if !g.defined() {
		return nil
	}
	w := s.admission.AvoidedWait(s.requestFor(g, g.spec.Definition), now)
	if w == nil {
		return nil
	}
	return []HoldView{{Hold: plan.Hold{Kind: plan.HoldAvoided, Reason: allAvoidedReason(*w), Until: w.Until}, Since: now}}
}

// planShape returns the shape of the next create of g; nil: nothing that it permits has
// capacity.
func (s *shard) planShape(g *group, now time.Time) *ShapePlan {
	if !g.defined() {
		return nil
	}
	def, choice := g.spec.Definition, admission.Choice("")
	if s.reclaimsStand(g, now) {
		def, choice = inMarket(def, nstance.OnDemand), choiceReclaims
	}
	request := s.requestFor(g, def)
	request.Spread = g.spread()
	shape, why, free := s.admission.Choose(request, now)
	if !free {
		return nil
	}
	return &ShapePlan{InstanceType: shape.InstanceType, Subnet: shape.Subnet, Market: shape.Market, Choice: string(cmp.Or(choice, why))}
}

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
