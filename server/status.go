package server

import (
	"cmp"
	"context"
	"slices"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/operators"
)

// Bounds on what the status page shows.
const (
	shownInstances     = 2000
	shownInterruptions = 100
	shownEvents        = 50
)

// status returns what the status page shows. The page has no authentication: unless it
// is configured to be full, it shows what operators of every tenant may see.
func (s *Server) status(ctx context.Context) web.Status {
	conf := s.config.InForce()
	out := web.Status{
		Version: version.Software, Cluster: string(conf.Cluster.ID), Shard: string(conf.Shard.ID), Time: s.opts.Now().UTC(),
		Groups: []web.Group{}, Instances: []web.Instance{}, Interruptions: []web.Interruption{}, Events: []nstance.Event{},
		Summary: conf.Shard.StatusPage.Detail != config.StatusFull,
	}
	attention := s.attention()
	if out.Summary {
		attention = slices.DeleteFunc(attention, func(a reconcile.Attention) bool { return !operators.VisibleToAll(a) })
	}
	out.Attention = attentionRows(attention)
	out.LeaderAddress = s.leaderAddress()
	t := s.term.Load()
	if t == nil {
		return out
	}
	out.Leader, out.Epoch = true, t.granted.Epoch()
	for _, b := range s.peers.List() {
		out.Standbys = append(out.Standbys, web.Standby{Address: b.GetAddress(), Version: b.GetVersion(), AddressFailed: b.GetAddressFailed(), Since: b.GetSince().AsTime()})
	}
	if out.Summary {
		return out
	}
	for _, g := range t.reconciler.Groups() {
		row := web.Group{Tenant: string(g.Key.Tenant), Group: string(g.Key.Group), Size: g.Size, Ready: g.Ready, Booting: g.Booting, Leaving: g.Leaving, Stale: g.Stale, Standby: g.Standby, Parked: g.Parked}
		for _, h := range g.Holds {
			row.Holds = append(row.Holds, web.Hold{Kind: string(h.Kind), Reason: h.Reason, Since: h.Since, Until: h.Until})
		}
		out.Groups = append(out.Groups, row)
	}
	instances := t.reconciler.Instances()
	out.InstancesTotal = len(instances)
	if len(instances) > shownInstances {
		slices.SortStableFunc(instances, func(a, b reconcile.InstanceView) int { return readyLast(a) - readyLast(b) })
	}
	for _, v := range instances[:min(shownInstances, len(instances))] {
		row := web.Instance{
			ID: string(v.ID), Tenant: string(v.Group.Tenant), Group: string(v.Group.Group), State: string(v.State),
			Market: string(v.Market), InstanceType: cmp.Or(v.Machine.InstanceType, v.InstanceType), Zone: v.Zone, ProviderID: v.Machine.ProviderID, CreatedAt: v.CreatedAt,
			ReportedAt: v.ReportedAt, Connected: v.Connected, CPU: v.Report.OneMinute.CPUPercent, Memory: v.Report.OneMinute.MemoryPercent,
		}
		if v.Drain != nil && !v.Drain.Unlimited() {
			row.Deadline = v.Drain.Deadline
		}
		out.Instances = append(out.Instances, row)
	}
	interruptions, err := s.operators.LatestInterruptions(ctx, t.reconciler.Internals, shownInterruptions)
	for _, i := range interruptions {
		out.Interruptions = append(out.Interruptions, interruptionRow(i))
	}
	events, unread := s.events.Events(ctx, journal.Filter{Limit: shownEvents, Newest: true})
	out.Events = append(out.Events, public(events)...)
	if err = cmp.Or(err, unread); err != nil {
		s.log.Warn("the journal cannot be read", "err", err)
		out.Attention = append(out.Attention, web.Attention{Kind: attentionJournal, Count: 1})
	}
	return out
}

func interruptionRow(i *apiv1.Interruption) web.Interruption {
	n := wire.NoticeOf(i.GetNotice())
	row := web.Interruption{
		Event: i.GetEventId(), Tenant: i.GetTenant(), Group: i.GetGroup(), Instance: i.GetInstance(),
		Kind: string(n.Kind), Source: n.Source, Rehearsal: i.GetRehearsal(), NoticedAt: wire.TimeOf(i.GetDetectedAt()), Deadline: n.Deadline,
		Replacement: i.GetReplacement(), ReplacementRequestedAt: wire.TimeOf(i.GetReplacementRequestedAt()), ReplacementReadyAt: wire.TimeOf(i.GetReplacementReadyAt()),
		DrainStartedAt: wire.TimeOf(i.GetDrainStartedAt()), DrainedAt: wire.TimeOf(i.GetDrainedAt()), DrainOutcome: i.GetDrainOutcome(),
		DeletedAt: wire.TimeOf(i.GetDeletedAt()), Withdrawn: i.GetWithdrawn(), Ignored: i.GetIgnored(),
	}
	if gone := wire.TimeOf(i.GetGoneAt()); !gone.IsZero() {
		row.DeletedAt = gone
	}
	return row
}

// public removes from events what a page without login must not show: the error of a
// refused configuration may quote it.
func public(events []nstance.Event) []nstance.Event {
	for i := range events {
		if e := &events[i]; e.Type == eventtype.ConfigRefused {
			e.Error = "an administrator can see why"
		}
	}
	return events
}

// readyLast is 1 for a ready instance, and 0 for one to show first.
func readyLast(v reconcile.InstanceView) int {
	if v.State == nstance.Ready {
		return 1
	}
	return 0
}
