package reconcile

import (
	"cmp"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/place"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// choiceOnRecord returns why m has the shape that it was granted. A create that is
// repeated keeps its reason.
func (m *member) choiceOnRecord() string {
	if m.choice == place.ChoiceRepeated || m.choice == "" {
		return m.rec.ShapeChoice
	}
	return string(m.choice)
}

// shapeReason says in an event why an instance does not have the first permitted shape;
// empty: it does, or that is not known.
func shapeReason(rec records.Instance) string {
	why := place.Choice(rec.ShapeChoice).Reason()
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

// preview returns the shape that a create would have, or the hold if every shape that it permits
// is avoided; nil: nothing that it permits has capacity.
func preview(places *place.Map, create place.Request, now time.Time) (shape *ShapePlan, held []HoldView) {
	if shape, why, free := places.Choose(create, now); free {
		return &ShapePlan{InstanceType: shape.InstanceType, Subnet: shape.Subnet, Market: shape.Market, Choice: string(why)}, nil
	}
	if _, _, w := places.Find(create, now); w != nil && w.Kind == place.WaitAvoided {
		held = []HoldView{{Hold: plan.Hold{Kind: plan.HoldAvoided, Reason: w.Reason(), Until: w.Until}, Since: now}}
	}
	return nil, held
}

// spread returns what bounds how many members of g are in one place; nil: nothing does.
// Members count that stay.
func (g *group) spread() *place.Spread {
	s := g.spec.Spread
	switch s.By {
	case "", nstance.SpreadMarket: // the plan says how many are on spot
		return nil
	case nstance.SpreadHost: // no shape is on a host
		return nil
	}
	out := &place.Spread{By: s.By, Limit: s.MaxShare.Of(g.spec.Size), Members: map[place.Shape]int{}}
	for _, m := range g.members {
		if !m.extra() && !m.state.Leaving() && m.state != nstance.Failed && !m.gone {
			out.Members[capacityShape(m.rec.Shape)]++
		}
	}
	return out
}

// hostLimit returns how many machines of g the provider puts on one host; 0: any number.
func (g *group) hostLimit() int {
	if g.spec.Spread.By != nstance.SpreadHost {
		return 0
	}
	return max(1, g.spec.Spread.MaxShare.Of(g.spec.Size))
}
