// Package groupspec is what the fields of a group mean where they are empty, and together.
package groupspec

import (
	"cmp"
	"slices"
	"time"

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

// OnDrainTimeout is the field with its default.
func OnDrainTimeout(g *nstance.Group) nstance.DrainTimeoutAction {
	return cmp.Or(g.OnDrainTimeout, nstance.DrainTimeoutDelete)
}

// DrainLimit returns how long a drain of a member of g for these causes may last: without
// limit where the group has it wait, and nothing but the group itself or a request asks for it.
func DrainLimit(g *nstance.Group, causes []nstance.Cause) time.Duration {
	if OnDrainTimeout(g) != nstance.DrainTimeoutWait || slices.ContainsFunc(causes, mustEnd) {
		return g.DrainTimeout
	}
	return nstance.UnlimitedDrain
}

// mustEnd reports whether a machine cannot stay for long that goes for this cause.
func mustEnd(c nstance.Cause) bool {
	switch c.Kind {
	case nstance.CauseRollout, nstance.CauseSurplus, nstance.CauseStandby, nstance.CauseRequest:
		return false
	}
	return true
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
