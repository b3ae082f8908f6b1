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

func (at *snapshot) groupView() GroupView {
	h := &at.history
	v := GroupView{
		Group: at.spec, Hash: at.hash, RuntimeHash: at.runtime,
		Paused: h.Paused, Frozen: at.freeze != nil, FrozenAlone: h.Frozen != nil, RolledBack: h.Rollback != nil,
		LastGoodHash: h.GoodHash, Failures: h.InRow, BackoffUntil: h.BackoffUntil, Claims: at.claims(),
		ReturnAt: h.ReturnAt(at.spec.Definition.Market), FailedReturns: h.Returns, Holds: at.withPending(at.holds),
	}
	v.Key = at.key
	v.SpotMarket, v.OnDemandMarket = countMarkets(at.view.Members)
	if at.halted() {
		v.Halted = h.HaltReason
	}
	n := plan.NewCensus(at.view, at.now).Counts()
	v.Ready, v.Booting, v.Leaving, v.Gone, v.Stale, v.OnDemand, v.Preserved = n.Ready, n.Booting, n.Leaving, n.Gone, n.Stale, n.OnDemand, n.Preserved
	v.Standby, v.Parked = n.Standby, n.Parked
	return v
}

// An instancesCopy is members of one group at one time, copied for a read.
type instancesCopy struct {
	now   time.Time
	view  plan.View
	views []InstanceView // without what follows from view
}

// copyInstances copies members of g.
func (s *shard) copyInstances(g *group, members []*member, now time.Time) *instancesCopy {
	c := &instancesCopy{now: now, view: plan.View{Group: g.spec, Hash: g.hashOrUnknown(), Clock: s.clock.Distrust()}}
	c.view.Members, c.views = make([]plan.Member, len(members)), make([]InstanceView, len(members))
	for i, m := range members {
		c.view.Members[i], c.views[i] = s.memberView(g, m, now), s.instanceView(m)
		c.view.Members[i].Notices = c.views[i].Notices
	}
	return c
}

// instanceView returns the view of m, but for what instanceViews adds.
func (s *shard) instanceView(m *member) InstanceView {
	v := InstanceView{
		ID: m.id, Group: m.rec.Key(), OnDemand: m.rec.OnDemand, Reason: m.rec.Reason, InstanceType: m.rec.Shape.InstanceType, RequestedMarket: m.rec.Shape.Market, ShapeChoice: m.rec.ShapeChoice, PricePerHour: cmp.Or(m.rec.PricePerHour, m.price),
		InfraHash: m.rec.InfraHash, RuntimeHash: m.rec.RuntimeHash, CreatedAt: m.rec.CreatedAt, RegisteredAt: m.rec.RegisteredAt,
		ProviderID: cmp.Or(m.machine.ProviderID, m.rec.ProviderID), Machine: m.machine, Connected: m.connected, Report: m.report, ReportedAt: m.reportAt, Notices: slices.Clone(m.Standing), Drain: m.drain, Gone: m.gone,
		Runtime: m.group.runtime, Market: m.market(), Zone: cmp.Or(m.zone(), s.places.ZoneOf(m.rec.Shape.Subnet)), Standby: m.rec.Standby != nil,
	}
	if m.wokenOrWaking() {
		v.WokenAt = m.rec.Standby.Since
	}
	if m.rec.Preserve != nil {
		v.PreservedUntil = m.rec.Preserve.Until
	}
	return v
}

// instanceViews returns the views of the members of c.
func (c *instancesCopy) instanceViews(nodeProviderID func(nstance.Machine) string) []InstanceView {
	census := plan.NewCensus(c.view, c.now)
	outlooks := census.Outlooks()
	for i := range c.views {
		v, m := &c.views[i], &census.Members[i]
		known := v.Machine
		if known.ProviderID == "" {
			known = nstance.Machine{ID: v.ID, ProviderID: v.ProviderID, Zone: v.Zone}
		}
		v.NodeProviderID = nodeProviderID(known)
		v.State, v.Drifted, v.Expired, v.Preserved = census.Status(m), outlooks[i].Drifted, outlooks[i].Expired, m.Preserved
		v.Silent = m.Silent && m.State == nstance.Booting && !m.Gone
		v.Unhealthy = m.Unhealthy || m.Drain != nil && includesCause(m.Drain.Causes, nstance.CauseUnhealthy)
	}
	return c.views
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
	wake(s.announceWake)
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
	at := s.snapshot(g, s.opts.Now(), g.buffer[:0])
	g.buffer = at.view.Members
	v := at.groupView()
	if g.published.view == nil || !reflect.DeepEqual(*g.published.view, v) {
		g.published.view = &v
		s.opts.Changed(v, g.isGone())
	}
}
