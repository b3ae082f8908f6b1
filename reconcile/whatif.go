package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
)

// A GroupPlan is what other desired values would do to one group.
type GroupPlan struct {
	Key           nstance.GroupKey
	Change        string // one of the words below
	SizeBefore    int
	SizeAfter     int
	Fields        []FieldChange
	Instances     []InstancePlan // what would happen to those there are, oldest first
	Creates       int            // instances that would be made
	Estimate      time.Duration  // how long at most, under the group's budgets; 0: nothing to do, or not known
	EstimateBasis string         // what the estimate rests on
	Holds         []HoldView     // what would keep it from happening
}

// The words of GroupPlan.Change.
const (
	ChangeAdded    = "added"
	ChangeChanged  = "changed"
	ChangeReleased = "released" // no longer configured: it goes on as it is, as a dynamic group
)

// An InstancePlan is what would happen to one instance.
type InstancePlan struct {
	ID     nstance.InstanceID
	Action string // replace, drain, delete or push
	Reason string
}

// WhatIf says what wanting groups would do beyond what goes on already. Groups
// to which nothing would happen are left out, unless they would be open. With
// all, groups that stand in the configuration and not among them would be
// released. It changes nothing. Fails
// with Invalid for a definition that has no hash.
func (r *Reconciler) WhatIf(d nstance.Desired, all bool) ([]GroupPlan, error) {
	wishes := make([]wish, len(d.Groups))
	for i, spec := range d.Groups {
		var err error
		if wishes[i], err = wishFor(spec); err != nil {
			return nil, fmt.Errorf("group %s: %w", spec.Key, err)
		}
	}
	lasts, err := wishesForLast(d.Open)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	var out []GroupPlan
	named := map[nstance.GroupKey]bool{}
	for _, w := range wishes {
		g := r.groupFor(w.spec.Key)
		named[g.key] = true
		if p := r.whatIf(g, g.under(w), now); p.something() {
			out = append(out, p)
		}
	}
	for i, u := range d.Open {
		g := r.groupFor(u.Key)
		named[g.key] = true
		out = append(out, r.whatIf(g, g.underOpen(u, lasts[i], now), now))
	}
	for key, g := range r.groups {
		if all && !named[key] && g.desired && g.configured.spec.Static {
			out = append(out, GroupPlan{Key: key, Change: ChangeReleased, SizeBefore: g.spec.Size, SizeAfter: g.spec.Size})
		}
	}
	slices.SortFunc(out, func(a, b GroupPlan) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return out, nil
}

func (p *GroupPlan) something() bool {
	return p.Change != ChangeChanged || len(p.Fields) > 0 || len(p.Instances) > 0 || p.Creates > 0
}

// groupFor returns a group, or what it would be made as. It needs the lock.
func (r *Reconciler) groupFor(key nstance.GroupKey) *group {
	if g := r.groups[key]; g != nil {
		return g
	}
	return &group{key: key, history: r.absent[key.String()]}
}

// whatIf compares a group as it is with the same group under another wish. It
// needs the lock.
func (r *Reconciler) whatIf(g, next *group, now time.Time) GroupPlan {
	was, will := r.outlook(g, now), r.outlook(next, now)
	p := GroupPlan{
		Key: g.key, Change: ChangeChanged, SizeBefore: g.spec.Size, SizeAfter: next.described().Size,
		Holds: r.openHolds(next, r.holdViews(next, Plan(*will.View, now).Holds, now)),
	}
	var replaced int
	p.Instances, replaced = will.beyond(was)
	p.Creates = replaced + max(0, will.need()-was.need())
	if g.desired {
		p.Fields = differences(g.spec, next.spec)
		explainReplaced(&p)
	} else {
		p.Change = ChangeAdded
	}
	r.estimate(&p, next, will)
	return p
}

// under returns g as it would be if w were configured. It shares the members
// with g.
func (g *group) under(w wish) *group {
	next := *g
	next.configured, next.desired, next.open = w, true, nil
	next.foresee()
	return &next
}

// underOpen returns g as it would be if u were wanted.
func (g *group) underOpen(u nstance.Unresolved, last wish, now time.Time) *group {
	next := *g
	if next.leftOpen(u, last, now); next.desired {
		next.foresee()
	}
	return &next
}

// foresee lays what is configured, as lay does, without telling anybody.
func (g *group) foresee() {
	if g.rollbackOver() {
		g.history.Rollback, g.back = nil, nil
	}
	g.wish = g.effective()
	if h := &g.history; h.FailureHash != "" && h.FailureHash != g.hash {
		h.forgive()
	}
}

// An outlook is a group's members under some wish, sorted like a plan does.
type outlook struct {
	*planner
	g      *group
	excess map[nstance.InstanceID]bool // surplus at last, all replacements made
}

// outlook is pure: unlike view it announces nothing and asks nobody. It needs
// the lock.
func (r *Reconciler) outlook(g *group, now time.Time) *outlook {
	v := View{Group: g.spec, Hash: g.hash, History: g.plan(), Unreadable: g.unreadable, Removing: g.removing || g.spec.Removing, Clock: r.clock.why}
	for _, m := range g.members {
		verdict := health.Well
		if m.registered() && !m.gone && m.state == nstance.Booting {
			verdict, _ = r.health.Judge(m.track, now)
		}
		seen := r.memberView(m, verdict, now)
		seen.Hash = comparableWith(m.rec.InfraHash, g.hash)
		if seen.ExpireAt = age(m, g.spec.Expiry.OnDemandAge); !m.rec.OnDemand {
			seen.EligibleAt, seen.ExpireAt = age(m, g.spec.Expiry.EligibleAge), age(m, g.spec.Expiry.ForcedAge)
		}
		v.Members = append(v.Members, seen)
	}
	p := newPlanner(&v, now)
	p.survey()
	o := &outlook{planner: p, g: g, excess: map[nstance.InstanceID]bool{}}
	if g.desired {
		for _, m := range p.pick(max(0, p.n.counted-p.size), p.lessUseful) {
			o.excess[m.ID] = true
		}
	}
	v.Frozen = r.freezeOf(g) != nil // only now: the survey of a frozen group judges nobody
	return o
}

// need is how many members are missing.
func (o *outlook) need() int {
	if !o.g.desired {
		return 0
	}
	return max(0, o.size-o.n.counted)
}

// fate says what would become of a member at last: "" for nothing.
func (o *outlook) fate(m *Member) (action, reason string) {
	switch {
	case memberApart(m), m.State.Leaving(), !o.g.desired, m.OnDemand && !o.passed(m.ExpireAt):
	case m.OnDemand && o.drainable(m):
		return "drain", "it is older than expiry.on_demand_age permits"
	case m.OnDemand:
		return "delete", "it is older than expiry.on_demand_age permits, and there is nothing to drain"
	case o.passed(m.ExpireAt):
		return "replace", "it is older than expiry.forced_age permits"
	case !o.counts(m):
	case o.excess[m.ID] && o.drainable(m):
		return "drain", "the group would have more members than it wants"
	case o.excess[m.ID]:
		return "delete", "the group would have more members than it wants, and it serves nothing yet"
	case o.drifted(m):
		return "replace", "its definition changes"
	case o.stale(m):
		return "replace", "it is older than expiry.eligible_age"
	}
	return "", ""
}

// beyond lists what would happen that does not happen under was, and counts the
// replacements among it that nobody is missing yet.
func (o *outlook) beyond(was *outlook) (out []InstancePlan, replaced int) {
	for i := range o.Members {
		m, before := &o.Members[i], &was.Members[i]
		action, reason := o.fate(m)
		wasAction, _ := was.fate(before)
		had := len(out)
		switch {
		case action == wasAction && (action == "" || o.Hash == was.Hash || action != "replace"):
			if action == "" && o.pushes(was, m) {
				out = append(out, InstancePlan{m.ID, "push", "its runtime configuration changes"})
			}
		case action == "":
		case action == wasAction:
			out = append(out, InstancePlan{m.ID, action, "it is replaced already, by a definition that changes again"})
		default:
			out = append(out, InstancePlan{m.ID, action, reason})
		}
		if len(out) > had && action == "replace" && o.counts(m) {
			replaced++
		}
	}
	slices.SortFunc(out, func(a, b InstancePlan) int { return cmp.Compare(a.ID, b.ID) })
	return out, replaced
}

// pushes reports whether a member that stays gets another runtime configuration.
func (o *outlook) pushes(was *outlook, m *Member) bool {
	return was.g.desired && o.g.runtime != was.g.runtime && o.counts(m)
}

// explainReplaced names the fields that replace members.
func explainReplaced(p *GroupPlan) {
	var paths []string
	for _, f := range p.Fields {
		if f.Effect == EffectReplace {
			paths = append(paths, f.Path)
		}
	}
	for i, ip := range p.Instances {
		if ip.Action == "replace" && ip.Reason == "its definition changes" && len(paths) > 0 {
			p.Instances[i].Reason += ": " + strings.Join(paths, ", ")
		}
	}
}

// estimate says how long it would take at most: creates that nothing waits for
// are made together, replacements max_surge at a time, each with a launch,
// min_ready and a drain.
func (r *Reconciler) estimate(p *GroupPlan, next *group, will *outlook) {
	var replaced, leaving int
	for _, ip := range p.Instances {
		switch ip.Action {
		case "replace":
			replaced++
		case "drain":
			leaving++
		}
	}
	if p.Creates+leaving == 0 {
		return
	}
	launch, why := next.pace.launch(next.spec)
	drain, whyDrain := next.pace.drain(next.spec)
	var total time.Duration
	var basis []string
	if p.Creates > 0 {
		basis = append(basis, why)
		if launch == 0 {
			p.EstimateBasis = why
			return
		}
	}
	if replaced+leaving > 0 {
		basis = append(basis, whyDrain)
	}
	launch += next.spec.Rollout.MinReady
	if p.Creates > replaced {
		total += launch
	}
	if leaving > 0 {
		total += drain
	}
	surge := max(1, will.surge)
	total += time.Duration((replaced+surge-1)/surge) * (launch + drain)
	p.Estimate, p.EstimateBasis = total, strings.Join(basis, "; ")
}
