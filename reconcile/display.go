package reconcile

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile/plan"
)

func (s *shard) groupView(g *group) GroupView {
	v := GroupView{
		Group: g.spec, Hash: g.hash, RuntimeHash: g.runtime,
		Paused: g.history.Paused, Frozen: s.freezeOf(g) != nil, FrozenAlone: g.history.Frozen != nil, RolledBack: g.history.Rollback != nil,
		LastGoodHash: g.history.GoodHash, Failures: g.history.InRow, BackoffUntil: g.history.BackoffUntil,
		Holds: s.withPending(g, g.holds),
	}
	v.Key = g.key
	g.setMarkets(&v)
	if g.halted() {
		v.Halted = g.history.HaltReason
	}
	now := s.opts.Now()
	view := s.view(g, now, g.buffer[:0])
	g.buffer = view.Members
	n := plan.NewCensus(view, now).Counts()
	v.Ready, v.Booting, v.Leaving, v.Gone, v.Stale, v.OnDemand, v.Preserved = n.Ready, n.Booting, n.Leaving, n.Gone, n.Stale, n.OnDemand, n.Preserved
	v.Standby, v.Parked, v.Claims = n.Standby, n.Parked, g.claims()
	return v
}

func (s *shard) instanceView(m *member) InstanceView {
	v := InstanceView{
		ID: m.id, Group: m.rec.Key(), OnDemand: m.rec.OnDemand, Reason: m.rec.Reason, InstanceType: m.rec.Shape.InstanceType, RequestedMarket: m.rec.Shape.Market, ShapeChoice: m.rec.ShapeChoice, PricePerHour: cmp.Or(m.rec.PricePerHour, m.price),
		InfraHash: m.rec.InfraHash, RuntimeHash: m.rec.RuntimeHash, CreatedAt: m.rec.CreatedAt, RegisteredAt: m.rec.RegisteredAt,
		State: m.state, Machine: m.machine, Connected: m.connected, Report: m.report, ReportedAt: m.reportAt,
		Notices: slices.Clone(m.Standing), Drain: m.drain, Gone: m.gone, Runtime: m.group.runtime, Market: m.market(), Zone: cmp.Or(m.zone(), s.admission.ZoneOf(m.rec.Shape.Subnet)),
	}
	known := nstance.Machine{ID: m.id, ProviderID: m.rec.ProviderID, Zone: m.rec.Zone}
	if m.machine.ProviderID != "" {
		known = m.machine
	}
	v.ProviderID, v.NodeProviderID = known.ProviderID, s.nodeProviderID(known)
	if v.Standby = m.rec.Standby != nil; m.wokenOrWaking() {
		v.WokenAt = m.rec.Standby.Since
	}
	if m.rec.Preserve != nil {
		v.PreservedUntil = m.rec.Preserve.Until
	}
	now := s.opts.Now()
	mv := s.memberView(m.group, m, now)
	c := plan.NewCensus(plan.View{Group: m.group.spec, Hash: m.group.hashOrUnknown(), Members: []plan.Member{mv}, Clock: s.clock.Distrust()}, now)
	outlook := c.Outlooks()[0]
	v.State, v.Drifted, v.Expired, v.Preserved = c.Status(&mv), outlook.Drifted, outlook.Expired, mv.Preserved
	v.Silent = mv.Silent && m.state == nstance.Booting && !m.gone
	v.Unhealthy = mv.Unhealthy || m.drain != nil && includesCause(m.drain.Causes, nstance.CauseUnhealthy)
	return v
}

// publishView ends the removal of a group without members, and has watchers of groups
// notified of what has changed.
func (s *shard) publishView(g *group) {
	if g.isGone() && !g.published.removal {
		g.published.removal = true
		if g.hadMembers {
			s.publishGroup(g, nstance.Event{Type: nstance.EventGroupRemoved})
		}
	}
	if g.isGone() && len(g.members) == 0 {
		s.drop(g)
		return
	}
	s.announce(g)
}

// notifyDelay is how long changes of a group are gathered before its watchers are notified:
// that costs as much as planning the group, which in a wave is planned for every notice.
const notifyDelay = 50 * time.Millisecond

// announce has watchers of groups notified soon.
func (s *shard) announce(g *group) {
	if s.opts.Changed == nil {
		return
	}
	s.announced[g.key] = true
	select {
	case s.announceWake <- struct{}{}:
	default:
	}
}

// notifyWatchers notifies watchers of groups of what has changed, until ctx ends.
func (r *Reconciler) notifyWatchers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.announceWake:
		}
		if !sleep.For(ctx, notifyDelay) {
			return
		}
		for r.notifyNext() {
		}
	}
}

// notifyNext notifies watchers of one group, and reports whether there may be another.
func (r *Reconciler) notifyNext() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.announced {
		delete(r.announced, key)
		if g := r.groups[key]; g != nil {
			r.notifyChanged(g)
		}
		return true
	}
	return false
}

// notifyChanged notifies watchers of groups if this one has changed.
func (s *shard) notifyChanged(g *group) {
	v := s.groupView(g)
	if g.published.view == nil || !reflect.DeepEqual(*g.published.view, v) {
		g.published.view = &v
		s.opts.Changed(v, g.isGone())
	}
}

// setMarkets counts the members of g by market in a view, and adds when one may go
// back to spot.
func (g *group) setMarkets(v *GroupView) {
	for _, m := range g.members {
		if m.extra() || m.state.Leaving() || m.gone {
			continue
		}
		if m.market() == nstance.OnDemand {
			v.OnDemandMarket++
		} else {
			v.SpotMarket++
		}
	}
	v.ReturnAt, v.FailedReturns = g.history.ReturnAt(g.spec.Definition.Market), g.history.Returns
}
