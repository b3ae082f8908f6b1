package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// An AttentionKind says what needs attention: a kind of hold, one of AttentionKinds, or what
// a program adds.
type AttentionKind string

const (
	attentionShort      AttentionKind = "short"         // a group has fewer ready members than its size
	attentionOrphan     AttentionKind = "orphan"        // a machine without a record
	attentionRecord     AttentionKind = "record"        // a record that cannot be read
	attentionSnapshot   AttentionKind = "snapshot"      // the snapshot of the records was of no use
	attentionLoading    AttentionKind = "loading"       // the shard's records are not read yet
	attentionBalancer   AttentionKind = "load_balancer" // members of a load balancer are not up to date
	attentionDefinition AttentionKind = "rollback"      // a group is rolled back to a definition that cannot be read
	attentionMarket     AttentionKind = "market"        // machines are in another market than was asked for
	attentionRefused    AttentionKind = "refused"       // the latest desired groups, which made no sense
	attentionUnrecorded AttentionKind = "unrecorded"    // an instance has registered, and its record does not say so
	attentionObstacle   AttentionKind = "obstacle"      // a step of a member is refused, or not carried out, for long
	attentionStuck      AttentionKind = "stuck"         // members are not ready for long, and no timeout ends that
)

// AttentionKinds returns the kinds that Attention lists beside those of holds: short, orphan,
// record, snapshot, loading, load_balancer, rollback, market, refused, unrecorded, stuck and
// obstacle.
func AttentionKinds() []AttentionKind {
	return []AttentionKind{
		attentionShort, attentionOrphan, attentionRecord, attentionSnapshot, attentionLoading, attentionBalancer, attentionDefinition, attentionMarket,
		attentionRefused, attentionUnrecorded, attentionStuck, attentionObstacle,
	}
}

// An Attention is one thing that an operator should see.
type Attention struct {
	Kind    AttentionKind      `json:"kind"`
	Subject string             `json:"subject"`          // what needs it: a group, an instance, a record, the shard
	Tenant  nstance.TenantID   `json:"tenant,omitempty"` // of the group or instance; empty: it concerns the shard
	Group   nstance.GroupID    `json:"group,omitempty"`
	ID      nstance.InstanceID `json:"instance,omitempty"`
	Since   time.Time          `json:"since,omitzero"` // zero: not known
	Until   time.Time          `json:"until,omitzero"` // when it ends, or is tried again, by itself; zero: not known
	Why     string             `json:"why"`
	Remedy  string             `json:"remedy,omitempty"` // what to do; empty: nothing, or it follows from Why
}

// passingHolds end by themselves within moments, or show as a group that is
// short.
var passingHolds = []plan.HoldKind{plan.HoldSettling, plan.HoldBudget}

// Attention lists what needs attention, sorted by kind and subject: groups that
// are short of members or held, records that cannot be read, machines without a
// record, a freeze, pools that are avoided, a clock that is wrong, load balancers that are not up to
// date. What holds the whole shard is listed once.
func (r *Admin) Attention() []Attention {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.shardAttention()
	for _, g := range r.groups {
		if !g.isGone() {
			out = append(out, r.groupAttention(g)...)
			out = append(out, r.unknownBalancers(g)...)
		}
	}
	slices.SortFunc(out, compareAttention)
	return out
}

func compareAttention(a, b Attention) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Subject, b.Subject), strings.Compare(a.Why, b.Why))
}

func (s *shard) groupAttention(g *group) (out []Attention) {
	v := s.groupView(g)
	entry := func(kind AttentionKind, why, remedy string, since, until time.Time) Attention {
		return Attention{
			Kind: kind, Subject: "group " + g.key.String(), Tenant: g.key.Tenant, Group: g.key.Group,
			Since: since, Until: until, Why: why, Remedy: remedy,
		}
	}
	if g.defined() && !g.spec.Removing && v.Ready < v.Size {
		out = append(out, entry(attentionShort, shortOf(v), "nstance-admin events --group "+string(g.key.Group), g.belowSizeSince, time.Time{}))
	}
	if rb := g.history.Rollback; rb != nil && g.rollbackSpec == nil {
		out = append(out, entry(attentionDefinition,
			fmt.Sprintf("group %s is rolled back to definition %s, which cannot be read: nothing is planned for it until the rollback is undone", g.key, rb.Definition),
			"nstance-admin group rollback --undo "+string(g.key.Group), rb.Since, time.Time{}))
	}
	if n := g.stuck(s.opts.Now()); n > 0 {
		out = append(out, entry(attentionStuck, fmt.Sprintf("%d members have not become ready in %s, and their definition has no timeout", n, stuckAfter),
			"set launch_timeout or registration_timeout in the definition", time.Time{}, time.Time{}))
	}
	out = append(out, g.obstacleAttention(s.opts.Now())...)
	for _, m := range g.members {
		if m.unrecordedRegistration {
			a := entry(attentionUnrecorded, fmt.Sprintf("%s has registered, and its record does not say so", m.id), "write RegisteredAt to its record, then observe Registered again", time.Time{}, time.Time{})
			a.Subject, a.ID = "instance "+string(m.id), m.id
			out = append(out, a)
		}
	}
	if n := g.marketsDiffer(); n > 0 {
		out = append(out, entry(attentionMarket, fmt.Sprintf("%d members are in another market than was asked for", n),
			"nstance-admin instance list --group "+string(g.key.Group), time.Time{}, time.Time{}))
	}
	for _, h := range v.Holds {
		everywhere := h.Kind == plan.HoldFrozen && (s.frozen != nil || s.overtaken() != nil) || h.Kind == plan.HoldClock
		if !everywhere && !slices.Contains(passingHolds, h.Kind) {
			out = append(out, entry(AttentionKind(h.Kind), h.Reason, holdRemedy(h.Kind, g.key.Group), h.Since, h.Until))
		}
	}
	return out
}

// stuckAfter is how long a member without timeouts may boot before it needs attention.
const stuckAfter = 15 * time.Minute

// stuck counts the members that have been booting for long without a timeout.
func (g *group) stuck(now time.Time) (n int) {
	for _, m := range g.members {
		unbounded := m.rec.LaunchTimeout <= 0 && (m.rec.RegistrationTimeout <= 0 || m.registered())
		if unbounded && !m.wasReady && !m.state.Leaving() && m.graceUntil.IsZero() && now.Sub(m.rec.CreatedAt) > stuckAfter {
			n++
		}
	}
	return n
}

// shortOf says what a group has in place of ready members.
func shortOf(v GroupView) string {
	why := fmt.Sprintf("%d of %d members are ready", v.Ready, v.Size)
	for _, n := range []struct {
		n    int
		what string
	}{{v.Booting, "booting"}, {v.Leaving, "leaving"}, {v.Gone, "gone"}} {
		if n.n > 0 {
			why += fmt.Sprintf(", %d %s", n.n, n.what)
		}
	}
	return why
}

// holdRemedy says what ends a hold of a group.
func holdRemedy(kind plan.HoldKind, group nstance.GroupID) string {
	switch name := string(group); kind {
	case plan.HoldHalted:
		return "configure a definition that works, then nstance-admin group resume " + name + "; or nstance-admin group rollback " + name
	case plan.HoldPaused:
		return "nstance-admin group resume " + name
	case plan.HoldFrozen:
		return "nstance-admin thaw group " + name
	case plan.HoldRolledBack:
		return "configure a definition that works; or nstance-admin group rollback --undo " + name
	case plan.HoldBackoff:
		return "nstance-admin events --group " + name + " shows why creations fail"
	case plan.HoldCapacity:
		return "permit more instance types or subnets, or wait"
	case plan.HoldRefused:
		return "change what the reason names, or permit other instance types, subnets or markets; nstance-admin group resume " + name + " tries again at once"
	case plan.HoldAvoided:
		return "permit other instance types, subnets or markets, wait, or nstance-admin pool release"
	case plan.HoldUnreadable:
		return "nstance-admin record show, then nstance-admin record repair"
	case plan.HoldDefinition, plan.HoldPending:
		return "configure what the reason names"
	case plan.HoldBreaker:
		return "look at the network between the machines and this server; nstance-admin instance delete replaces single ones"
	case plan.HoldDrain:
		return "make room for what the reason names; or set on_drain_timeout to delete; nstance-admin instance delete --no-drain ends one"
	case plan.HoldUnhealthyCap:
		return "nstance-admin instance list --group " + name
	}
	return ""
}

// shardAttention lists what concerns the shard and single records and machines
// of it. It needs the lock.
func (r *Reconciler) shardAttention() (out []Attention) {
	for _, p := range r.unreadableRecords {
		out = append(out, Attention{
			Kind: attentionRecord, Subject: "record " + p.Key, ID: p.ID,
			Why:    fmt.Sprintf("record %s cannot be read, its group is held: %v", p.Key, p.Err),
			Remedy: "nstance-admin record show " + p.Key + ", then nstance-admin record repair " + p.Key,
		})
	}
	if err := r.refusedGroups; err != nil {
		out = append(out, Attention{Kind: attentionRefused, Subject: "shard", Why: fmt.Sprintf("the latest desired groups are refused, the former ones stay: %v", err)})
	}
	if f := r.frozen; f != nil {
		out = append(out, Attention{
			Kind: AttentionKind(plan.HoldFrozen), Subject: "shard", Since: f.Since, Remedy: "nstance-admin thaw shard",
			Why: fmt.Sprintf("the shard is frozen since %s%s", f.Since.UTC().Format(time.RFC3339), withMessage(f.Reason)),
		})
	}
	if r.clock.Distrust() != "" {
		out = append(out, Attention{
			Kind: AttentionKind(plan.HoldClock), Subject: "shard", Since: r.clock.Since(), Remedy: "set the clock of this server right",
			Why: fmt.Sprintf("nothing is deleted by deadline or for its age since %s: %s", r.clock.Since().Format(time.RFC3339), r.clock.Distrust()),
		})
	}
	if r.loadError != nil {
		out = append(out, Attention{Kind: attentionLoading, Subject: "shard", Why: fmt.Sprintf("the shard is not read yet, nothing is planned: %v", r.loadError)})
	}
	if r.accountError != nil {
		out = append(out, Attention{
			Kind: attentionLoading, Subject: "shard", Remedy: "check the provider's credentials and their permission to name their account",
			Why: fmt.Sprintf("the provider's account is not known, nothing else is asked of it: %v", r.accountError),
		})
	}
	if err := r.records.SnapshotProblem(); err != nil {
		out = append(out, Attention{Kind: attentionSnapshot, Subject: "shard", Why: fmt.Sprintf("the snapshot was not used, every record was read: %v", err)})
	}
	return slices.Concat(out, r.overtakenAttention(), r.avoidedAttention(), r.orphanAttention(), r.balancerAttention())
}

func (s *shard) orphanAttention() (out []Attention) {
	shard := s.orphanShard()
	for _, o := range s.orphans.All() {
		id := o.Machine.ID
		why, spared := s.orphans.Spared(o, shard), "nstance-admin orphan adopt "+string(id)+", or nstance-admin orphan delete "+string(id)
		if why == "" {
			why, spared = "it will be deleted", ""
		}
		out = append(out, Attention{
			Kind: attentionOrphan, Subject: "machine " + o.Machine.ProviderID, ID: id, Since: o.FirstListed, Remedy: spared,
			Why: fmt.Sprintf("machine %s (%s) carries our marks but has no record: %s", o.Machine.ProviderID, id, why),
		})
	}
	return out
}

// unknownBalancers lists the names in the definition of g that stand for no load balancer.
func (s *shard) unknownBalancers(g *group) (out []Attention) {
	names := s.balance.Names()
	for _, name := range g.spec.Definition.LoadBalancers {
		if !slices.Contains(names, name) {
			out = append(out, Attention{
				Kind: attentionBalancer, Subject: "group " + g.key.String(), Tenant: g.key.Tenant, Group: g.key.Group,
				Remedy: "configure it, or correct its name", Why: "no load balancer is named " + name + ": no machine of the group joins it",
			})
		}
	}
	return out
}

// balancerAttention lists the load balancers that are not up to date.
func (r *Reconciler) balancerAttention() (out []Attention) {
	for _, f := range r.balance.Failures() {
		out = append(out, Attention{
			Kind: attentionBalancer, Subject: "load balancer " + f.Name, Since: f.Since,
			Why: fmt.Sprintf("load balancer %s is not up to date since %s: %v", f.Name, f.Since.UTC().Format(time.RFC3339), f.Err),
		})
	}
	if names := r.balance.Names(); len(names) > 0 && r.provider.Abilities().Balancers == nil {
		out = append(out, Attention{
			Kind: attentionBalancer, Subject: "shard", Remedy: "remove them from the configuration",
			Why: "the provider cannot change load balancers: no machine joins " + strings.Join(names, ", "),
		})
	}
	return out
}
