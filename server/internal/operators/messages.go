package operators

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

func groupMessage(g reconcile.GroupView) *apiv1.Group {
	m := &apiv1.Group{
		Tenant: string(g.Key.Tenant), Group: string(g.Key.Group), Template: g.Template, Size: int32(g.Size),
		Ready: int32(g.Ready), Booting: int32(g.Booting), Leaving: int32(g.Leaving), Stale: int32(g.Stale),
		InfraHash: g.Hash, IsStatic: g.Static, InstanceTypes: g.Definition.InstanceTypes, Vars: g.Definition.Vars,
		Paused: g.Paused, Halted: g.Halted, Frozen: g.Frozen, Protect: g.Protect, Removing: g.Removing, RolledBack: g.RolledBack,
		SubnetPool: g.Definition.SubnetPool, DrainTimeout: durationpb.New(g.DrainTimeout), LoadBalancers: g.Definition.LoadBalancers,
		Rollout: rolloutMessage(g.Rollout), Args: string(g.Definition.Args), RuntimeHash: g.RuntimeHash, LastGoodHash: g.LastGoodHash,
		Kind: string(g.Definition.Kind), Failures: int32(g.Failures), BackoffUntil: wire.Time(g.BackoffUntil), OnDemand: int32(g.OnDemand),
		Preserved: int32(g.Preserved), Gone: int32(g.Gone), Market: marketMessage(g.Definition.Market),
		SpotMarket: int32(g.SpotMarket), OnDemandMarket: int32(g.OnDemandMarket), ReturnAt: wire.Time(g.ReturnAt), FailedReturns: int32(g.FailedReturns),
		Spread: spreadMessage(g.Spread), Order: string(groupspec.Order(&g.Group)), OnReclaim: string(cmp.Or(g.OnReclaim, nstance.ReclaimDrain)),
		OnRebalance: string(groupspec.OnRebalance(&g.Group)), OnMaintenance: string(groupspec.OnMaintenance(&g.Group)), OnDrainTimeout: string(groupspec.OnDrainTimeout(&g.Group)),
		WarmPool: warmPoolMessage(g.WarmPool), Standby: int32(g.Standby), Parked: int32(g.Parked), Owner: g.Owner,
	}
	for _, claim := range g.Claims {
		m.Claims = append(m.Claims, claimMessage(claim))
	}
	for _, h := range g.Holds {
		m.Holds = append(m.Holds, holdMessage(h.Hold, h.Since))
	}
	return m
}

func holdMessage(h plan.Hold, since time.Time) *apiv1.Hold {
	return &apiv1.Hold{Kind: string(h.Kind), Reason: h.Reason, Since: wire.Time(since), Until: wire.Time(h.Until)}
}

func marketMessage(m nstance.Market) *apiv1.Market {
	out := &apiv1.Market{Type: string(cmp.Or(m.Type, nstance.OnDemand)), MaxPrice: m.MaxPrice, Fallback: string(m.Fallback)}
	if m.FallbackAfter > 0 {
		out.FallbackAfter = durationpb.New(m.FallbackAfter)
	}
	if m.ReturnAfter > 0 {
		out.ReturnAfter = durationpb.New(m.ReturnAfter)
	}
	if m.OnDemandBase.N > 0 {
		out.OnDemandBase = m.OnDemandBase.String()
	}
	if when := m.FallbackWhen; when != (nstance.ReclaimLimit{}) {
		out.FallbackWhen = &apiv1.ReclaimLimit{Reclaims: int32(when.Reclaims), Window: durationpb.New(when.Window)}
	}
	return out
}

func warmPoolMessage(p nstance.WarmPool) *apiv1.WarmPool {
	if p.Size == 0 {
		return nil
	}
	back := !p.NoReturn
	m := &apiv1.WarmPool{Size: int32(p.Size), Mode: string(p.Mode), Return: &back}
	if p.MaxAge > 0 {
		m.MaxAge = durationpb.New(p.MaxAge)
	}
	return m
}

func claimMessage(c reconcile.Claim) *apiv1.StandbyClaim {
	return &apiv1.StandbyClaim{Node: c.Node, EventId: c.EventID, Reason: c.Reason, Since: wire.Time(c.Since), Until: wire.Time(c.Until)}
}

func spreadMessage(s nstance.Spread) *apiv1.Spread {
	if s == (nstance.Spread{}) {
		return nil
	}
	return &apiv1.Spread{By: string(s.By), MaxShare: s.MaxShare.String()}
}

func rolloutMessage(r nstance.Rollout) *apiv1.Rollout {
	haltAfter := int32(r.HaltAfter)
	return &apiv1.Rollout{MaxSurge: r.MaxSurge.String(), MinReady: durationpb.New(r.MinReady), HaltAfter: &haltAfter}
}

func instanceMessage(v reconcile.InstanceView) *apiv1.Instance {
	m := &apiv1.Instance{
		Id: string(v.ID), Tenant: string(v.Group.Tenant), Group: string(v.Group.Group), State: string(v.State), ProviderId: v.ProviderID,
		InstanceType: v.InstanceType, Market: string(v.Market), Addresses: wire.Addresses(v.Machine.Addresses),
		CreatedAt: wire.Time(v.CreatedAt), RegisteredAt: wire.Time(v.RegisteredAt), LastReportAt: wire.Time(v.ReportedAt),
		OnDemand: v.OnDemand, Drifted: v.Drifted, Connected: v.Connected, Drain: wire.Drain(v.Drain), Reason: v.Reason,
		InfraHash: v.InfraHash, NodeProviderId: v.NodeProviderID, ShapeChoice: v.ShapeChoice, PricePerHour: v.PricePerHour,
		Standby: v.Standby, WokenAt: wire.Time(v.WokenAt), Zone: v.Zone,
	}
	if asked := v.RequestedMarket; asked != "" && asked != v.Market {
		m.MarketAsked = string(asked)
	}
	for _, n := range v.Notices {
		m.Conditions = append(m.Conditions, "notice:"+string(n.Kind))
	}
	if v.Drifted {
		m.Conditions = append(m.Conditions, "drifted")
	}
	m.RuntimeHash, m.Conditions = cmp.Or(v.Report.ConfigHash, v.RuntimeHash), append(m.Conditions, fileConditions(v)...)
	if v.Gone {
		m.Conditions = append(m.Conditions, "gone")
	}
	if v.Silent {
		m.Conditions = append(m.Conditions, "silent")
	}
	if v.Unhealthy {
		m.Conditions = append(m.Conditions, "unhealthy")
	}
	if slices.ContainsFunc(v.Report.Probes, func(p nstance.ProbeResult) bool { return !p.OK }) {
		m.Conditions = append(m.Conditions, "probes_failing")
	}
	if v.Report.MetadataError != "" {
		m.Conditions = append(m.Conditions, "metadata_unreadable")
	}
	if v.Expired {
		m.Conditions = append(m.Conditions, "expired")
	}
	if v.Preserved {
		m.Conditions, m.PreservedUntil = append(m.Conditions, "preserved"), wire.Time(v.PreservedUntil)
	}
	if !v.ReportedAt.IsZero() {
		m.LastReport = wire.Report(v.Report)
	}
	return m
}

// fileConditions returns the conditions of a machine's files.
func fileConditions(v reconcile.InstanceView) (out []string) {
	has, made := v.Report.ConfigHash, v.OnDemand && v.Report.ConfigHash == v.RuntimeHash
	if has != "" && v.Runtime != "" && has != v.Runtime && !made {
		out = append(out, "runtime_drifted")
	}
	broken := slices.ContainsFunc(v.Report.Files, func(f nstance.FileStatus) bool { return f.Error != "" })
	if broken || v.Report.FilesError != "" {
		out = append(out, "file_error")
	}
	return out
}
