// Package groupspec is what the fields of a group mean where they are empty, and together.
package groupspec

import (
	"cmp"

	"github.com/nstance-go/nstance"
)

// Defined reports whether g has a definition. Without one no machine is created,
// and members stay.
func Defined(g *nstance.Group) bool { return g.Definition.Kind != "" }

// OnRebalance is the field with its default.
func OnRebalance(g *nstance.Group) nstance.NoticeAction {
	return cmp.Or(g.OnRebalance, nstance.NoticeIgnore)
}

// OnMaintenance is the field with its default.
func OnMaintenance(g *nstance.Group) nstance.NoticeAction {
	return cmp.Or(g.OnMaintenance, nstance.NoticeReplace)
}

// Order is the field with its default.
func Order(g *nstance.Group) nstance.ShapeOrder { return cmp.Or(g.Order, nstance.OrderListed) }

// OnDemandBase returns how many members of g, at the given size, must be on-demand beside
// others on spot: its base, or what its spread keeps off spot.
func OnDemandBase(g *nstance.Group, size int) int {
	if g.Definition.Market.Type != nstance.Spot {
		return 0
	}
	base := g.Definition.Market.OnDemandBase.Of(size)
	if g.Spread.By == nstance.SpreadMarket {
		base = size - g.Spread.MaxShare.Of(size)
	}
	return min(max(0, base), size)
}
