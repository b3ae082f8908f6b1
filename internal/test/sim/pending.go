package sim

import (
	"time"

	"github.com/nstance-go/nstance"
)

// desired returns what a leader is told. One that has just begun does not tell yet of
// groups with a pending definition: it must read which one is in effect.
func (w *World) desired(read bool) (d nstance.Desired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range w.keys {
		if v := w.wishes[key]; !v.gone && (read || v.inEffect == nil) {
			d.Groups = append(d.Groups, v.effective())
		}
	}
	return d
}

// effective returns the group with the definition that is in effect.
func (v *wish) effective() nstance.Group {
	g := v.group
	if v.inEffect != nil {
		g.Definition, g.Pending = *v.inEffect, "user data cannot be fetched"
	}
	return g
}

// tell tells whoever leads what is wanted.
func (w *World) tell() {
	d := w.desired(true)
	for _, p := range w.all() {
		p.told(d)
	}
}

// made returns the definition that new members of a group are to be made from.
func (w *World) made(key nstance.GroupKey) nstance.Definition {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.wishes[key]; v != nil {
		return v.effective().Definition
	}
	return nstance.Definition{}
}

// leavePending gives a group a definition that cannot be completed for a while. Then
// it is complete, or withdrawn.
func (a act) leavePending() {
	key, long, back := a.group(), a.seconds(5, 120), a.rng.IntN(3) == 0
	version := a.version()
	if !a.pend(key, version) {
		return
	}
	a.sleep(long)
	a.resolve(key, back)
}

// pend leaves the definition of a group pending, unless one is already.
func (w *World) pend(key nstance.GroupKey, version string) bool {
	w.mu.Lock()
	v := w.wishes[key]
	if v.inEffect != nil || v.gone {
		w.mu.Unlock()
		return false
	}
	was := v.group.Definition
	v.inEffect = &was
	w.mu.Unlock()
	w.want(key, func(g *nstance.Group) { g.Definition.UserData = content(key, version) })
	return true
}

// resolve completes a group's definition, or takes it back if there was one.
func (w *World) resolve(key nstance.GroupKey, back bool) {
	w.mu.Lock()
	v := w.wishes[key]
	was := v.inEffect
	v.inEffect = nil
	w.mu.Unlock()
	w.want(key, func(g *nstance.Group) {
		if back && was != nil && was.Kind != "" {
			g.Definition = *was
		}
	})
}

// resolved checks that no machine is made from what is not complete.
func (c *checker) resolved(spec nstance.MachineSpec) {
	key := nstance.GroupKey{Tenant: spec.Owner.Tenant, Group: spec.Group}
	wanted, made := c.w.wanted(key).Definition.UserData, c.w.made(key).UserData
	if data := rendered(spec); data == wanted.Content && data != made.Content {
		c.violated("pending", "machine %s is made from %q, which is not complete", spec.ID, data)
	}
}

// drillPending loses a member while a definition is pending, and the leader. No other
// member goes meanwhile, this one is replaced when the next leader has read which
// definition is in effect, the group takes its size, and changes in the end.
func (d *driver) drillPending(key nstance.GroupKey, back bool) {
	d.pend(key, d.version())
	d.want(key, func(g *nstance.Group) { g.Size++ })
	d.pass(2 * time.Minute)
	all := ids(d.machines(key))
	d.reading.Store(int64(3 * time.Minute))
	defer d.reading.Store(int64(time.Second))
	d.acts.Go(func() { d.act(16).crashLeader() })
	d.pass(time.Second)
	_ = d.cloud.Kill(all[0])
	d.pass(10 * time.Minute) // more than a full pass after the reading
	d.acts.Wait()
	left := map[nstance.InstanceID]bool{}
	for _, id := range ids(d.machines(key)) {
		left[id] = true
	}
	for _, id := range all[1:] {
		if !left[id] {
			d.check.violated("pending", "%s has gone although it was not known which definition of group %s is in effect", id, key)
		}
	}
	if size := d.wanted(key).Size; len(left) != size {
		d.check.violated("pending", "group %s has %d machines of %d while a definition is pending", key, len(left), size)
	}
	d.want(key, func(g *nstance.Group) { g.Size-- })
	d.resolve(key, back)
	d.pass(20 * time.Minute)
	d.check.settled()
}

// drillUndefined makes a group whose first definition cannot be completed: it has no
// machine until that is complete.
func (d *driver) drillUndefined() {
	key := nstance.GroupKey{Tenant: webToo.Tenant, Group: "first"}
	d.mu.Lock()
	d.wishes[key] = &wish{inEffect: &nstance.Definition{}}
	d.keys = append(d.keys, key)
	d.mu.Unlock()
	d.want(key, func(g *nstance.Group) { *g = d.newGroup(key, 1) })
	d.pass(2 * time.Minute)
	if n := len(d.machines(key)); n != 0 {
		d.check.violated("pending", "group %s has %d machines without a definition", key, n)
	}
	d.resolve(key, true)
	d.pass(2 * time.Minute)
	d.check.settled()
	d.want(key, func(g *nstance.Group) { g.Removing = true })
	d.pass(drainTimeout + 2*time.Minute)
	d.check.settled()
}
