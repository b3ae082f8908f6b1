package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
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
	attentionListing    AttentionKind = "listing"       // the provider does not list the shard's machines
	attentionStuck      AttentionKind = "stuck"         // members are not ready for long, and no timeout ends that
)

// AttentionKinds returns the kinds that Attention lists beside those of holds: short, orphan,
// record, snapshot, loading, load_balancer, rollback, market, refused, unrecorded, stuck,
// obstacle and listing.
func AttentionKinds() []AttentionKind {
	return []AttentionKind{
		attentionShort, attentionOrphan, attentionRecord, attentionSnapshot, attentionLoading, attentionBalancer, attentionDefinition, attentionMarket,
		attentionRefused, attentionUnrecorded, attentionStuck, attentionObstacle, attentionListing,
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
	shard := r.readShard()
	out := shard.attention()
	for _, at := range r.readAll() {
		out = append(out, at.attention(shard.balancers)...)
	}
	slices.SortFunc(out, compareAttention)
	return out
}

func compareAttention(a, b Attention) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Subject, b.Subject), strings.Compare(a.Why, b.Why))
}

// attention lists what concerns a group and its members. balancers are those there are.
func (at *snapshot) attention(balancers []string) (out []Attention) {
	v, name := at.groupView(), string(at.key.Group)
	if at.defined() && !at.spec.Removing && v.Ready < v.Size {
		out = append(out, Attention{Kind: attentionShort, Since: at.belowSizeSince, Why: shortOf(v), Remedy: "nstance-admin events --group " + name})
	}
	if rb := at.history.Rollback; rb != nil && at.rollbackSpec == nil {
		out = append(out, Attention{
			Kind: attentionDefinition, Since: rb.Since, Remedy: "nstance-admin group rollback --undo " + name,
			Why: fmt.Sprintf("group %s is rolled back to definition %s, which cannot be read: nothing is planned for it until the rollback is undone", at.key, rb.Definition),
		})
	}
	for _, lb := range at.spec.Definition.LoadBalancers {
		if !slices.Contains(balancers, lb) {
			out = append(out, Attention{Kind: attentionBalancer, Why: "no load balancer is named " + lb + ": no machine of the group joins it", Remedy: "configure it, or correct its name"})
		}
	}
	for _, h := range v.Holds {
		everywhere := h.Kind == plan.HoldFrozen && at.freeze != at.history.Frozen || h.Kind == plan.HoldClock
		if !everywhere && !slices.Contains(passingHolds, h.Kind) {
			out = append(out, Attention{Kind: AttentionKind(h.Kind), Since: h.Since, Until: h.Until, Why: h.Reason, Remedy: holdRemedy(h.Kind, name)})
		}
	}
	out = append(out, at.memberAttention()...)
	for i := range out {
		a := &out[i]
		if a.Tenant, a.Group, a.Subject = at.key.Tenant, at.key.Group, "group "+at.key.String(); a.ID != "" {
			a.Subject = "instance " + string(a.ID)
		}
	}
	return out
}

// memberAttention lists what concerns members.
func (at *snapshot) memberAttention() (out []Attention) {
	stuck, otherMarket := 0, 0
	for _, t := range at.troubles {
		stuck += oneIf(t.stuck)
		otherMarket += oneIf(t.otherMarket)
		if t.unrecorded {
			out = append(out, Attention{
				Kind: attentionUnrecorded, ID: t.id, Remedy: "write RegisteredAt to its record, then observe Registered again",
				Why: fmt.Sprintf("%s has registered, and its record does not say so", t.id),
			})
		}
	}
	if stuck > 0 {
		out = append(out, Attention{
			Kind: attentionStuck, Remedy: "set launch_timeout or registration_timeout in the definition",
			Why: fmt.Sprintf("%d members have not become ready in %s, and their definition has no timeout", stuck, stuckAfter),
		})
	}
	if otherMarket > 0 {
		out = append(out, Attention{
			Kind: attentionMarket, Remedy: "nstance-admin instance list --group " + string(at.key.Group),
			Why: fmt.Sprintf("%d members are in another market than was asked for", otherMarket),
		})
	}
	return append(out, at.obstacleAttention()...)
}

// stuckAfter is how long a member without timeouts may boot before it needs attention.
const stuckAfter = 15 * time.Minute

// A trouble is what of one member may need attention.
type trouble struct {
	id          nstance.InstanceID
	status      nstance.MachineStatus
	obstacle    obstacle
	obstructed  bool
	stuck       bool // it has been booting for long without a timeout
	otherMarket bool // its machine is in another one than was asked for
	unrecorded  bool // its registration
}

// trouble returns what of m may need attention, and whether anything does.
func (m *member) trouble(now time.Time) (t trouble, troubled bool) {
	unbounded := m.rec.LaunchTimeout <= 0 && (m.rec.RegistrationTimeout <= 0 || m.registered())
	t = trouble{
		id: m.id, status: m.machine.Status, obstacle: m.obstacle, obstructed: m.obstructed(now), otherMarket: m.marketDiffers() && !m.gone, unrecorded: m.unrecordedRegistration,
		stuck: unbounded && !m.wasReady && !m.state.Leaving() && m.graceUntil.IsZero() && now.Sub(m.rec.CreatedAt) > stuckAfter,
	}
	return t, t.obstructed || t.stuck || t.otherMarket || t.unrecorded
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
func holdRemedy(kind plan.HoldKind, group string) string {
	return strings.ReplaceAll(map[plan.HoldKind]string{
		plan.HoldHalted:       "configure a definition that works, then nstance-admin group resume GROUP; or nstance-admin group rollback GROUP",
		plan.HoldPaused:       "nstance-admin group resume GROUP",
		plan.HoldFrozen:       "nstance-admin thaw group GROUP",
		plan.HoldRolledBack:   "configure a definition that works; or nstance-admin group rollback --undo GROUP",
		plan.HoldBackoff:      "nstance-admin events --group GROUP shows why creations fail",
		plan.HoldCapacity:     "permit more instance types or subnets, or wait",
		plan.HoldRefused:      "change what the reason names, or permit other instance types, subnets or markets; nstance-admin group resume GROUP tries again at once",
		plan.HoldAvoided:      "permit other instance types, subnets or markets, wait, or nstance-admin pool release",
		plan.HoldUnreadable:   "nstance-admin record show, then nstance-admin record repair",
		plan.HoldDefinition:   "configure what the reason names",
		plan.HoldPending:      "configure what the reason names",
		plan.HoldBreaker:      "look at the network between the machines and this server; nstance-admin instance delete replaces single ones",
		plan.HoldDrain:        "make room for what the reason names, or look at the executor that does not report; or set on_drain_timeout to delete; nstance-admin instance delete --no-drain ends one",
		plan.HoldUnhealthyCap: "nstance-admin instance list --group GROUP",
	}[kind], "GROUP", group)
}

// attention lists what concerns the shard and single records and machines of it.
func (at *shardSnapshot) attention() (out []Attention) {
	add := func(a Attention) {
		a.Subject = cmp.Or(a.Subject, "shard")
		out = append(out, a)
	}
	for _, p := range at.unreadableRecords {
		add(Attention{
			Kind: attentionRecord, Subject: "record " + p.Key, ID: p.ID, Why: fmt.Sprintf("record %s cannot be read, its group is held: %v", p.Key, p.Err),
			Remedy: "nstance-admin record show " + p.Key + ", then nstance-admin record repair " + p.Key,
		})
	}
	if err := at.refusedGroups; err != nil {
		add(Attention{Kind: attentionRefused, Why: fmt.Sprintf("the latest desired groups are refused, the former ones stay: %v", err)})
	}
	if f := at.frozen; f != nil {
		why := fmt.Sprintf("the shard is frozen since %s%s", f.Since.UTC().Format(time.RFC3339), withMessage(f.Reason))
		add(Attention{Kind: AttentionKind(plan.HoldFrozen), Since: f.Since, Why: why, Remedy: "nstance-admin thaw shard"})
	}
	if f := at.overtaken; f != nil {
		add(Attention{
			Kind: AttentionKind(plan.HoldFrozen), Since: f.Since, Why: "nothing is created or deleted: " + f.Reason,
			Remedy: "stop the server that is not wanted; where this one stays, nstance-admin orphan adopt or delete ends it for each such machine",
		})
	}
	if at.distrust != "" {
		why := fmt.Sprintf("nothing is deleted by deadline or for its age since %s: %s", at.clockSince.Format(time.RFC3339), at.distrust)
		add(Attention{Kind: AttentionKind(plan.HoldClock), Since: at.clockSince, Why: why, Remedy: "set the clock of this server right"})
	}
	for _, e := range at.avoided {
		add(Attention{Kind: AttentionKind(plan.HoldAvoided), Since: e.Since, Until: e.Until, Why: e.Why(), Remedy: e.Remedy()})
	}
	if err := at.loadError; err != nil {
		add(Attention{Kind: attentionLoading, Why: fmt.Sprintf("the shard is not read yet, nothing is planned: %v", err)})
	}
	if err := at.accountError; err != nil {
		why := fmt.Sprintf("the provider's account is not known, nothing else is asked of it: %v", err)
		add(Attention{Kind: attentionLoading, Why: why, Remedy: "check the provider's credentials and their permission to name their account"})
	}
	if f := at.listing; f.lasts(at.now) && at.accountError == nil {
		add(Attention{
			Kind: attentionListing, Since: f.since, Remedy: "do what the provider's answer says; the list is repeated",
			Why: fmt.Sprintf("the provider does not list the shard's machines since %s, machines without a record are not found: %s", f.since.UTC().Format(time.RFC3339), clip.Words(f.err.Error())),
		})
	}
	for _, o := range at.orphans {
		id, why, remedy := string(o.Machine.ID), o.Spared, ""
		if why != "" {
			remedy = "nstance-admin orphan adopt " + id + ", or nstance-admin orphan delete " + id
		}
		add(Attention{
			Kind: attentionOrphan, Subject: "machine " + o.Machine.ProviderID, ID: o.Machine.ID, Since: o.Since, Remedy: remedy,
			Why: fmt.Sprintf("machine %s (%s) carries our marks but has no record: %s", o.Machine.ProviderID, id, cmp.Or(why, "it will be deleted")),
		})
	}
	for _, f := range at.balancerFailures {
		add(Attention{
			Kind: attentionBalancer, Subject: "load balancer " + f.Name, Since: f.Since,
			Why: fmt.Sprintf("load balancer %s is not up to date since %s: %v", f.Name, f.Since.UTC().Format(time.RFC3339), f.Err),
		})
	}
	if len(at.balancers) > 0 && at.cannotBalance {
		why := "the provider cannot change load balancers: no machine joins " + strings.Join(at.balancers, ", ")
		add(Attention{Kind: attentionBalancer, Why: why, Remedy: "remove them from the configuration"})
	}
	if err := at.snapshotProblem; err != nil {
		add(Attention{Kind: attentionSnapshot, Why: fmt.Sprintf("the snapshot was not used, every record was read: %v", err)})
	}
	return out
}
