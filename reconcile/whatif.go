package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/pace"
	"github.com/nstance-go/nstance/reconcile/internal/place"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// A GroupPlan is what other desired values would do to one group.
type GroupPlan struct {
	Key           nstance.GroupKey `json:"key"`
	Change        GroupChange      `json:"change"`
	SizeBefore    int              `json:"size_before"`
	SizeAfter     int              `json:"size_after"`
	Fields        []FieldChange    `json:"fields,omitempty"`
	Instances     []InstancePlan   `json:"instances,omitempty"`      // what would happen to those there are, oldest first
	Creates       int              `json:"creates"`                  // instances that would be made
	Shape         *ShapePlan       `json:"shape,omitempty"`          // of the first of them, beyond the on-demand base; nil: none is made, or every permitted shape is sold out or avoided
	Estimate      time.Duration    `json:"estimate"`                 // how long at most, under the group's budgets; 0: nothing to do, or not known
	EstimateBasis string           `json:"estimate_basis,omitempty"` // what the estimate rests on
	Holds         []HoldView       `json:"holds,omitempty"`          // what would keep it from happening
}

// A GroupChange is what becomes of a group.
type GroupChange string

// The changes.
const (
	ChangeAdded    GroupChange = "added"
	ChangeChanged  GroupChange = "changed"
	ChangeReleased GroupChange = "released" // no longer configured: it goes on as it is, as a dynamic group
)

// An InstancePlan is what would happen to one instance.
type InstancePlan struct {
	ID     nstance.InstanceID `json:"id"`
	Action InstanceAction     `json:"action"`
	Reason string             `json:"reason,omitempty"`
}

// An InstanceAction is what would be done to an instance.
type InstanceAction string

// The actions.
const (
	ActionReplace InstanceAction = "replace"
	ActionDrain   InstanceAction = "drain"
	ActionDelete  InstanceAction = "delete" // nothing runs on it that would be drained
	ActionPush    InstanceAction = "push"   // it stays, and gets another runtime configuration
)

// WhatIf returns what desired groups would change beyond what is in progress. Groups
// without a change are left out, unless a definition would be pending. With all, configured
// groups that are not among them would be released. It changes nothing. Fails with
// Invalid for a definition that has no hash.
func (r *Admin) WhatIf(groups []nstance.Group, all bool) ([]GroupPlan, error) {
	specs, err := hashed(groups)
	if err != nil {
		return nil, err
	}
	now := r.opts.Now()
	var places *place.Map
	r.locked(func() { places = r.places.Clone() })
	var out []GroupPlan
	named := map[nstance.GroupKey]bool{}
	for _, w := range specs {
		named[w.spec.Key] = true
		if p := r.compareGroup(w, now).plan(places); p.hasEffect() || w.spec.Pending != "" {
			out = append(out, p)
		}
	}
	r.eachGroup(func(g *group) {
		if all && !named[g.key] && g.defined() && g.configured.spec.Static {
			out = append(out, GroupPlan{Key: g.key, Change: ChangeReleased, SizeBefore: g.spec.Size, SizeAfter: g.spec.Size})
		}
	})
	slices.SortFunc(out, func(a, b GroupPlan) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return out, nil
}

// hashed returns groups with the hashes of their definitions, which may be incomplete.
func hashed(groups []nstance.Group) ([]desiredSpec, error) {
	specs := make([]desiredSpec, len(groups))
	for i, spec := range groups {
		var err error
		if specs[i], err = desiredSpecFor(spec); err != nil {
			return nil, fmt.Errorf("group %s: %w", spec.Key, err)
		}
	}
	return specs, nil
}

func (p *GroupPlan) hasEffect() bool {
	return p.Change != ChangeChanged || len(p.Fields) > 0 || len(p.Instances) > 0 || p.Creates > 0
}

// A comparison is a group as it is, and as it would be with other desired values.
type comparison struct {
	is, would *snapshot
	create    place.Request // what the next create would permit
}

// compareGroup returns copies of a group as it is and as it would be under w.
func (r *Admin) compareGroup(w desiredSpec, now time.Time) *comparison {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[w.spec.Key]
	if g == nil {
		g = &group{key: w.spec.Key, history: r.absentGroups[w.spec.Key.String()]}
	}
	next := g.withDesired(w, now)
	_, create, _ := r.createRequest(next, plan.Action{}, now)
	create.Spread = next.spread()
	return &comparison{is: r.snapshotCopy(g, now), would: r.snapshotCopy(next, now), create: create}
}

func (c *comparison) censuses() (before, after *plan.Census) {
	return plan.NewCensus(c.is.view, c.is.now), plan.NewCensus(c.would.view, c.would.now)
}

// plan returns what would become of the group.
func (c *comparison) plan(places *place.Map) GroupPlan {
	before, after := c.censuses()
	changes, creates := compare(before, after)
	p := GroupPlan{
		Key: c.is.key, Change: ChangeChanged, SizeBefore: c.is.spec.Size, SizeAfter: c.would.spec.Size, Creates: creates,
		Holds: c.would.withPending(c.would.holdViews(after.Plan().Holds)),
	}
	if creates > 0 {
		shape, held := preview(places, c.create, c.would.now)
		p.Shape, p.Holds = shape, append(p.Holds, held...)
	}
	if c.is.defined() {
		p.Fields = differences(c.is.spec, c.would.spec)
	} else {
		p.Change = ChangeAdded
	}
	p.Instances = instancePlans(changes, p.Fields)
	p.estimate(c.would.group)
	return p
}

// instancePlans names the fields that replace members among the reasons.
func instancePlans(changes []memberChange, fields []FieldChange) (out []InstancePlan) {
	var paths []string
	for _, f := range fields {
		if f.Effect == EffectReplace {
			paths = append(paths, f.Path)
		}
	}
	for _, c := range changes {
		if c.drifts && len(paths) > 0 {
			c.reason += ": " + strings.Join(paths, ", ")
		}
		out = append(out, InstancePlan{c.id, c.action, c.reason})
	}
	return out
}

// withDesired returns g as it would be with w configured. It shares the members with
// g.
func (g *group) withDesired(w desiredSpec, now time.Time) *group {
	next := *g
	next.configure(w, now.UTC())
	next.resolve()
	return &next
}

// estimate says how long it would take at most.
func (p *GroupPlan) estimate(next *group) {
	spec := &next.spec
	work := pace.Work{
		Creates: p.Creates, Surge: spec.Rollout.MaxSurge.Of(spec.Size),
		LaunchTimeout: spec.Definition.LaunchTimeout, DrainTimeout: spec.DrainTimeout, MinReady: spec.Rollout.MinReady,
	}
	for _, ip := range p.Instances {
		work.Replaced += oneIf(ip.Action == ActionReplace)
		work.Leaving += oneIf(ip.Action == ActionDrain)
	}
	p.Estimate, p.EstimateBasis = next.pace.Estimate(work)
}

// An Impact counts what other desired values would cost.
type Impact struct {
	Members int `json:"members"` // instances of the shard that stay or start at present, by request too
	Removed int `json:"removed"` // of them, those that smaller sizes would remove, and those by request that a lower age would end
	Rotated int `json:"rotated"` // of the others, those that changed definitions or lower ages would replace
}

// Impact says what wanting groups would cost beyond what goes on already.
// Groups that are not among them keep their values. Ages are those of this
// moment: who reaches a lower one later is not counted. It fails with Invalid
// for a definition that has no hash.
func (r *Admin) Impact(groups []nstance.Group) (Impact, error) {
	specs, err := hashed(groups)
	if err != nil {
		return Impact{}, err
	}
	now := r.opts.Now()
	var out Impact
	r.eachGroup(func(g *group) {
		for _, m := range g.members {
			out.Members += oneIf(!m.state.Leaving())
		}
	})
	for _, w := range specs {
		changes, _ := compare(r.compareGroup(w, now).censuses())
		for _, change := range changes {
			switch change.action {
			case ActionDrain, ActionDelete:
				out.Removed++
			case ActionReplace:
				if !change.repeated {
					out.Rotated++
				}
			case actionNone, ActionPush:
			}
		}
	}
	return out, nil
}

// actionNone: the instance stays as it is.
const actionNone InstanceAction = ""

func actionOf(o plan.Outlook) InstanceAction {
	switch {
	case o.Replaced:
		return ActionReplace
	case o.Leaves == plan.StartDrain:
		return ActionDrain
	case o.Leaves == plan.Delete:
		return ActionDelete
	}
	return actionNone
}

// A memberChange is what another configuration does to one member.
type memberChange struct {
	id       nstance.InstanceID
	action   InstanceAction
	reason   string
	drifts   bool // its definition changes
	repeated bool // it is to be replaced already, and would be by yet another definition
}

// compare returns what after would do to the members of a group beyond what before
// does already, or earlier than before does, sorted by ID, and how many machines would
// be created. Both are censuses of the same members, in the same order.
func compare(before, after *plan.Census) (changes []memberChange, creates int) {
	was, will := before.Outlooks(), after.Outlooks()
	for i := range after.Members {
		change, changed := compareMember(before, after, was[i], will[i])
		if !changed {
			continue
		}
		if change.action == ActionReplace && will[i].Counted {
			creates++
		}
		change.id = after.Members[i].ID
		changes = append(changes, change)
	}
	slices.SortFunc(changes, func(a, b memberChange) int { return cmp.Compare(a.id, b.id) })
	return changes, creates + max(0, after.Counts().Missing-before.Counts().Missing)
}

func compareMember(before, after *plan.Census, was, will plan.Outlook) (out memberChange, changed bool) {
	out = memberChange{action: actionOf(will), reason: will.Reason, drifts: will.Drifts}
	same := out.action == actionOf(was)
	switch sooner := will.Doomed && !was.Doomed; {
	case sooner && out.action == ActionReplace:
	case same && (out.action != ActionReplace || after.Hash == before.Hash):
		undefined := before.Hash == plan.UnknownHash && !before.Removing
		if out.action != actionNone || undefined || after.RuntimeHash == before.RuntimeHash || !will.Counted {
			return out, false
		}
		out.action, out.reason = ActionPush, "its runtime configuration changes"
	case out.action == actionNone:
		return out, false
	case same:
		out.repeated, out.drifts = true, false
		out.reason = "it is being replaced already, and the definition changes again"
	}
	return out, true
}
