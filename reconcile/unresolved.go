package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// An unresolved group waits until all that its definition names is known.
type unresolved struct {
	nstance.Unresolved
	since time.Time
}

// leaveOpen records that the definition of a group cannot be resolved. The former
// definition stays, and the settings beside it take effect. It needs the lock.
func (r *Reconciler) leaveOpen(u nstance.Unresolved, last desiredSpec) {
	g := r.groupOf(u.Key)
	g.setUnresolved(u, last, r.opts.Now().UTC())
	r.setRemoving(g, u.Removing)
	if g.desired {
		r.resolveDesired(g)
	}
	r.queue.add(g.key, false)
}

// setUnresolved is leaveOpen within the group.
func (g *group) setUnresolved(u nstance.Unresolved, last desiredSpec, now time.Time) {
	since := now
	if g.unresolved != nil {
		since = g.unresolved.since
	}
	g.unresolved = &unresolved{u, since}
	if !g.desired && u.Last != nil {
		g.configured, g.desired = last, true
	}
	if g.desired && u.Known {
		g.configured.spec = beside(u.Group, g.configured.spec)
	}
}

// beside returns old with the settings of spec beside the definition.
func beside(spec, old nstance.Group) nstance.Group {
	spec.Template, spec.Definition = old.Template, old.Definition
	return spec
}

// lastSpecsFor returns the last specs of groups without a definition in this term,
// with the settings that are known by now.
func lastSpecsFor(open []nstance.Unresolved) ([]desiredSpec, error) {
	out := make([]desiredSpec, len(open))
	for i, u := range open {
		if u.Last == nil {
			continue
		}
		spec := *u.Last
		spec.Key, spec.Static, spec.Removing = u.Key, u.Static, u.Removing
		if u.Known {
			spec = beside(u.Group, spec)
		}
		var err error
		if out[i], err = desiredSpecFor(spec); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// closeOthers forgets unresolved groups that are not configured any more. It needs the lock.
func (r *Reconciler) closeOthers(open []nstance.Unresolved) {
	named := map[nstance.GroupKey]bool{}
	for _, u := range open {
		named[u.Key] = true
	}
	for key, g := range r.groups {
		if g.unresolved == nil || named[key] {
			continue
		}
		g.unresolved = nil
		if !g.desired && len(g.members) == 0 && g.unreadable == 0 {
			r.drop(g)
			continue
		}
		r.queue.add(key, false)
	}
}

// Configured returns a group as it is configured, with the definition that is in
// force if it is unresolved; false: none is known, or there is no such group.
func (r *Reconciler) Configured(key nstance.GroupKey) (nstance.Group, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[key]
	if g == nil || !g.desired {
		return nstance.Group{}, false
	}
	return g.configured.spec, true
}

// described returns what is known of the desired state of g.
func (g *group) described() nstance.Group {
	if !g.desired && g.unresolved != nil {
		return g.unresolved.Group
	}
	return g.spec
}

// leaves reports whether g is being removed while its definition is not known.
func (g *group) leaves() bool { return g.removing && g.unresolved != nil && g.unresolved.Known }

// openHolds returns a group's holds, with the one of an unresolved definition in place
// of others that follow from it. It needs the lock.
func (r *Reconciler) openHolds(g *group, holds []HoldView) []HoldView {
	holds = slices.Clone(holds)
	if g.unresolved == nil {
		return holds
	}
	if !g.desired {
		holds = slices.DeleteFunc(holds, func(h HoldView) bool {
			return h.Kind == plan.HoldDefinition || h.Kind == plan.HoldFrozen && r.freezeOf(g) == nil
		})
	}
	return append(holds, HoldView{Hold: plan.Hold{Kind: plan.HoldUnresolved, Reason: g.unresolved.Why}, Since: g.unresolved.since})
}
