package server

import (
	"net/http"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/operators"
)

// Bounds on what the status page shows.
const (
	shownInstances = 500
	shownEvents    = 50
)

// status returns what the status page shows. The page has no authentication: unless it
// is configured to be full, it shows what operators of every tenant may see.
func (s *Server) status(r *http.Request) web.Status {
	conf := s.config.InForce()
	out := web.Status{
		Version: version.Software, Cluster: string(conf.Cluster.ID), Shard: string(conf.Shard.ID), Time: s.opts.Now().UTC(),
		Groups: []web.Group{}, Instances: []web.Instance{}, Events: []nstance.Event{},
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
		row := web.Group{Tenant: string(g.Key.Tenant), Group: string(g.Key.Group), Size: g.Size, Ready: g.Ready, Booting: g.Booting, Leaving: g.Leaving, Stale: g.Stale}
		for _, h := range g.Holds {
			row.Holds = append(row.Holds, h.Kind+": "+h.Reason)
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
			Market: string(v.Market), ProviderID: v.Machine.ProviderID, CreatedAt: v.CreatedAt,
			ReportedAt: v.ReportedAt, Connected: v.Connected, CPU: v.Report.OneMinute.CPUPercent, Memory: v.Report.OneMinute.MemoryPercent,
		}
		if v.Drain != nil {
			row.Deadline = v.Drain.Deadline
		}
		out.Instances = append(out.Instances, row)
	}
	if events, err := s.events.Events(r.Context(), journal.Filter{Limit: shownEvents, Newest: true}); err == nil {
		out.Events = append(out.Events, public(events)...)
	} else {
		s.log.Warn("the journal cannot be read", "err", err)
		out.Attention = append(out.Attention, web.Attention{Kind: attentionJournal, Count: 1})
	}
	return out
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
