package sim

import (
	"time"

	"github.com/nstance-go/nstance"
)

// desired returns the groups for a leader. A new one leaves out groups with a pending
// definition, until it has read which definition is in effect.
func (w *World) desired(read bool) (d nstance.Desired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range w.keys {
		if v := w.groups[key]; !v.gone && (read || v.inEffect == nil) {
			d.Groups = append(d.Groups, v.effective())
		}
	}
	return d
}

// effective returns the group with the definition in effect.
func (v *groupState) effective() nstance.Group {
	g := v.group
	if v.inEffect != nil {
		g.Definition, g.Pending = *v.inEffect, "user data cannot be fetched"
	}
	return g
}

// publishDesired reports the desired groups to the leader.
func (w *World) publishDesired() {
	d := w.desired(true)
	for _, p := range w.all() {
		p.setDesired(d)
	}
}

// effectiveDefinition returns the definition of new members of a group.
func (w *World) effectiveDefinition(key nstance.GroupKey) nstance.Definition {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.groups[key]; v != nil {
		return v.effective().Definition
	}
	return nstance.Definition{}
}

// leavePending gives a group a definition that cannot be resolved for a while. Then it
// is resolved, or withdrawn.
func (a act) leavePending() {
	key, long, back := a.group(), a.seconds(5, 120), a.rng.IntN(3) == 0
	version := a.version()
	if !a.setPending(key, version) {
		return
	}
	a.sleep(long)
	a.resolve(key, back)
}

// setPending makes the definition of a group pending, unless one is already.
func (w *World) setPending(key nstance.GroupKey, version string) bool {
	w.mu.Lock()
	v := w.groups[key]
	if v.inEffect != nil || v.gone {
		w.mu.Unlock()
		return false
	}
	was := v.group.Definition
	v.inEffect = &was
	w.mu.Unlock()
	w.setGroup(key, func(g *nstance.Group) { g.Definition.UserData = content(key, version) })
	return true
}

// resolve resolves a group's definition, or withdraws it if there was one.
func (w *World) resolve(key nstance.GroupKey, back bool) {
	w.mu.Lock()
	v := w.groups[key]
	was := v.inEffect
	v.inEffect = nil
	w.mu.Unlock()
	w.setGroup(key, func(g *nstance.Group) {
		if back && was != nil && was.Kind != "" {
			g.Definition = *was
		}
	})
}

// checkPending checks that no machine is created from an unresolved definition.
func (c *checker) checkPending(spec nstance.MachineSpec) {
	key := nstance.GroupKey{Tenant: spec.Owner.Tenant, Group: spec.Group}
	wanted, made := c.w.currentGroup(key).Definition.UserData, c.w.effectiveDefinition(key).UserData
	if data := rendered(spec); data == wanted.Content && data != made.Content {
		c.violated("pending", "machine %s is created from %q, which is not resolved", spec.ID, data)
	}
}

// drillPending loses a member and the leader while a definition is pending. No other
// member is removed meanwhile, this one is replaced when the next leader has read which
// definition is in effect, the group reaches its size, and rolls out in the end.
func (d *driver) drillPending(key nstance.GroupKey, back bool) {
	d.setPending(key, d.version())
	d.setGroup(key, func(g *nstance.Group) { g.Size++ })
	d.pass(2 * time.Minute)
	all := ids(d.machines(key))
	d.reading.Store(int64(3 * time.Minute))
	defer d.reading.Store(int64(time.Second))
	d.acts.Go(func() { d.act(16).crashLeader() })
	d.pass(time.Second)
	_ = d.cloud.Kill(all[0])
	d.pass(10 * time.Minute) // more than a full pass after the read
	d.acts.Wait()
	left := map[nstance.InstanceID]bool{}
	for _, id := range ids(d.machines(key)) {
		left[id] = true
	}
	for _, id := range all[1:] {
		if !left[id] {
			d.check.violated("pending", "%s was removed before it was known which definition of group %s is in effect", id, key)
		}
	}
	if size := d.currentGroup(key).Size; len(left) != size {
		d.check.violated("pending", "group %s has %d machines of %d while a definition is pending", key, len(left), size)
	}
	d.setGroup(key, func(g *nstance.Group) { g.Size-- })
	d.resolve(key, back)
	d.pass(20 * time.Minute)
	d.check.checkSettled()
}

// drillUndefined creates a group whose first definition cannot be resolved: it has no
// machine until then.
func (d *driver) drillUndefined() {
	key := nstance.GroupKey{Tenant: webToo.Tenant, Group: "first"}
	d.mu.Lock()
	d.groups[key] = &groupState{inEffect: &nstance.Definition{}}
	d.keys = append(d.keys, key)
	d.mu.Unlock()
	d.setGroup(key, func(g *nstance.Group) { *g = d.newGroup(key, 1) })
	d.pass(2 * time.Minute)
	if n := len(d.machines(key)); n != 0 {
		d.check.violated("pending", "group %s has %d machines without a definition", key, n)
	}
	d.resolve(key, true)
	d.pass(2 * time.Minute)
	d.check.checkSettled()
	d.setGroup(key, func(g *nstance.Group) { g.Removing = true })
	d.pass(drainTimeout + 2*time.Minute)
	d.check.checkSettled()
}
