package server

import (
	"cmp"
	"context"
	"slices"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/internal/wave"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/operators"
)

// Bounds on what the status page shows.
const (
	shownInstances = 2000
	shownPools     = 200
	shownWaves     = 20
	shownRunning   = 200 // interruptions
	shownEnded     = 60  // likewise
	shownEvents    = 50
	shownMarks     = 100
	shownAttention = 100

	// knownInterruptions is how many of those that have ended are counted: the others of the
	// last day are in the ledger alone.
	knownInterruptions = 2000
)

// status returns what the status page shows. The page has no authentication: unless it
// is configured to be full, it shows what operators of every tenant may see.
func (s *Server) status(ctx context.Context) web.Status {
	conf := s.config.InForce()
	out := web.Status{
		Version: version.Software, Cluster: string(conf.Cluster.ID), Shard: string(conf.Shard.ID), Time: s.opts.Now().UTC(),
		Groups: []web.Group{}, Pools: []web.Pool{}, Instances: []web.Instance{}, Waves: []*wave.Wave{}, Interruptions: []web.Interruption{}, Events: []nstance.Event{},
		Summary: conf.Shard.StatusPage.Detail != config.StatusFull,
	}
	list := s.attention()
	if out.Summary {
		list = slices.DeleteFunc(list, func(a attention.Entry) bool { return !operators.VisibleToAll(a.Attention) })
	}
	out.Attention, out.AttentionOmitted = attentionRows(list, !out.Summary)
	out.AttentionAcknowledged = countAcknowledged(list)
	out.LeaderAddress = s.leaderAddress()
	t := s.term.Load()
	if t == nil {
		return out
	}
	out.Leader, out.Epoch, out.Since = true, t.granted.Epoch(), t.began.UTC()
	for _, b := range s.peers.List() {
		out.Standbys = append(out.Standbys, web.Standby{Address: b.GetAddress(), Version: b.GetVersion(), AddressFailed: b.GetAddressFailed(), Since: b.GetSince().AsTime()})
	}
	if out.Summary {
		return out
	}
	instances := t.reconciler.Instances()
	addGroups(&out, t.reconciler.Groups(), instances)
	addPools(&out, instances, t.poolRates.Load())
	addInstances(&out, instances)
	if err := s.addHistory(ctx, &out, t, instances); err != nil {
		s.log.Warn("the journal cannot be read", "err", err)
		out.Attention = append(out.Attention, web.Attention{Kind: attentionJournal, Count: 1})
	}
	return out
}

func addInstances(out *web.Status, instances []reconcile.InstanceView) {
	out.InstancesTotal = len(instances)
	if len(instances) > shownInstances {
		slices.SortStableFunc(instances, func(a, b reconcile.InstanceView) int { return readyLast(a) - readyLast(b) })
	}
	for i := range instances[:min(shownInstances, len(instances))] {
		v := &instances[i]
		row := web.Instance{
			ID: string(v.ID), Tenant: string(v.Group.Tenant), Group: string(v.Group.Group), State: string(v.State),
			Market: string(v.Market), InstanceType: cmp.Or(v.Machine.InstanceType, v.InstanceType), Zone: v.Zone, ProviderID: v.Machine.ProviderID, CreatedAt: v.CreatedAt,
			ReportedAt: v.ReportedAt, Connected: v.Connected, CPU: v.Report.OneMinute.CPUPercent, Memory: v.Report.OneMinute.MemoryPercent,
			Stale: v.Drifted, Price: v.PricePerHour,
		}
		if v.Drain != nil && !v.Drain.Unlimited() {
			row.Deadline = v.Drain.Deadline
		}
		out.Instances = append(out.Instances, row)
	}
}

func interruptionRow(i *apiv1.Interruption) web.Interruption {
	n := wire.NoticeOf(i.GetNotice())
	row := web.Interruption{
		Event: i.GetEventId(), Tenant: i.GetTenant(), Group: i.GetGroup(), Instance: i.GetInstance(),
		Kind: string(n.Kind), Source: n.Source, Rehearsal: i.GetRehearsal(), NoticedAt: wire.TimeOf(i.GetDetectedAt()), Deadline: n.Deadline,
		Replacement: i.GetReplacement(), ReplacementRequestedAt: wire.TimeOf(i.GetReplacementRequestedAt()), ReplacementReadyAt: wire.TimeOf(i.GetReplacementReadyAt()),
		DrainStartedAt: wire.TimeOf(i.GetDrainStartedAt()), DrainedAt: wire.TimeOf(i.GetDrainedAt()), DrainOutcome: i.GetDrainOutcome(),
		DeletedAt: wire.TimeOf(i.GetDeletedAt()), Withdrawn: i.GetWithdrawn(), Ignored: i.GetIgnored(),
		Result: string(wave.ResultOf(i)), InstanceType: i.GetInstanceType(), Zone: i.GetZone(), Market: i.GetMarket(),
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
