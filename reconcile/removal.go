package reconcile

import (
	"reflect"

	"github.com/nstance-go/nstance"
)

// Desire replaces the desired values of every group, as Observe does with a
// Desired. It fails with Invalid, and changes nothing, when one of them has no
// proper name or a definition without a hash.
func (r *Reconciler) Desire(groups []nstance.Group) error {
	return r.desire(nstance.Desired{Groups: groups})
}

// Remove requests that a group's managed members are drained and deleted. Then the
// group is gone. Instances on demand stay until they have reached their age. It holds
// for this term, until a Desired names the group again:
// a caller that stores groups sets Removing there. Fails with NotFound.
func (r *Reconciler) Remove(key nstance.GroupKey) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[key]
	if g == nil || g.isGone() {
		return nstance.Errorf(nstance.NotFound, "no group %s", key)
	}
	r.setRemoving(g, true)
	r.queue.add(key, false)
	return nil
}

// setRemoving begins or ends the removal of a group. One that is configured again
// after it was gone has no history. It needs the lock.
func (r *Reconciler) setRemoving(g *group, removing bool) {
	if g.spec.Removing && !removing {
		if g.isGone() && g.history != (groupState{}) {
			g.history, g.rollbackSpec = groupState{}, nil
			r.saveSoon()
		}
		g.published.removal = false
	}
	g.configured.spec.Removing, g.spec.Removing = removing, removing
}

// isGone reports whether a group that is being removed has no managed member
// left: only instances on demand may still be in it.
func (g *group) isGone() bool {
	if !g.spec.Removing || g.unreadable > 0 {
		return false
	}
	for _, m := range g.members {
		if !m.rec.OnDemand {
			return false
		}
	}
	return true
}

// publishView ends the removal of a group without members, and notifies watchers of
// groups of what has changed. It needs the lock.
func (r *Reconciler) publishView(g *group) {
	if g.isGone() && !g.published.removal {
		g.published.removal = true
		if g.hadMembers {
			r.publishGroup(g, nstance.Event{Type: nstance.EventGroupRemoved})
		}
	}
	if g.isGone() && len(g.members) == 0 {
		r.drop(g)
		return
	}
	r.notifyChanged(g)
}

// notifyChanged notifies watchers of groups if this one has changed. It costs as much
// as planning the group. It needs the lock.
func (r *Reconciler) notifyChanged(g *group) {
	if r.opts.Changed == nil {
		return
	}
	v := r.groupView(g)
	if g.published.view == nil || !reflect.DeepEqual(*g.published.view, v) {
		g.published.view = &v
		r.opts.Changed(v, g.isGone())
	}
}

// notifyGone notifies watchers of groups that this one is gone. It needs the lock.
func (r *Reconciler) notifyGone(g *group) {
	if r.opts.Changed != nil {
		r.opts.Changed(GroupView{Group: nstance.Group{Key: g.key, Removing: g.spec.Removing}}, true)
	}
}
