package sim

import (
	"time"

	"github.com/nstance-go/nstance"
)

// openness is what is known of a group whose definition cannot be completed, or
// of which nothing makes sense.
type openness struct {
	sense bool          // what stands beside the definition is what is wanted
	last  nstance.Group // what it was
	noted bool          // and that is durable, so that the next leader knows it too
}

// desired returns what a leader is told. One that has just begun has not read yet
// what unresolved groups were.
func (w *World) desired(read bool) (d nstance.Desired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range w.keys {
		switch v := w.wishes[key]; {
		case v.gone:
		case v.open == nil:
			d.Groups = append(d.Groups, v.group)
		default:
			d.Open = append(d.Open, v.unresolved(read))
		}
	}
	return d
}

func (v *wish) unresolved(read bool) nstance.Unresolved {
	u := nstance.Unresolved{Group: v.group, Known: true, Why: "user data cannot be fetched"}
	if !v.open.sense && !v.group.Removing {
		u = nstance.Unresolved{Group: nstance.Group{Key: v.group.Key}, Why: "it makes no sense"}
	}
	if read && v.open.noted {
		u.Last = &v.open.last
	}
	return u
}

// tell tells whoever leads what is wanted.
func (w *World) tell() {
	d := w.desired(true)
	for _, p := range w.all() {
		p.told(d)
	}
}

// made returns the definition that new members of a group are to be made from:
// that of an unresolved one is the last that was complete.
func (w *World) made(key nstance.GroupKey) nstance.Definition {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch v := w.wishes[key]; {
	case v == nil:
		return nstance.Definition{}
	case v.open != nil:
		return v.open.last.Definition
	default:
		return v.group.Definition
	}
}

// leaveOpen gives a group a definition that cannot be completed for a while, or
// wants that make no sense. Sometimes people give up and take it back.
func (a act) leaveOpen() {
	key, noted, long := a.group(), a.seconds(0, 20), a.seconds(5, 120)
	sense, back := a.rng.IntN(3) > 0, a.rng.IntN(3) == 0
	version := a.version()
	if !a.open(key, sense, version) {
		return
	}
	a.sleep(noted)
	a.note(key)
	a.sleep(long)
	a.resolve(key, back)
}

// open leaves a group unresolved, unless it is already.
func (w *World) open(key nstance.GroupKey, sense bool, version string) bool {
	w.mu.Lock()
	v := w.wishes[key]
	if v.open != nil || v.gone {
		w.mu.Unlock()
		return false
	}
	v.open = &openness{sense: sense, last: v.group}
	w.mu.Unlock()
	w.want(key, func(g *nstance.Group) { g.Definition.UserData = content(key, version) })
	return true
}

// note makes durable what an unresolved group was.
func (w *World) note(key nstance.GroupKey) {
	w.mu.Lock()
	if o := w.wishes[key].open; o != nil {
		o.noted = true
	}
	w.mu.Unlock()
	w.tell()
}

// resolve completes a group's definition, or takes it back.
func (w *World) resolve(key nstance.GroupKey, back bool) {
	w.mu.Lock()
	v := w.wishes[key]
	was := v.open
	v.open = nil
	w.mu.Unlock()
	w.want(key, func(g *nstance.Group) {
		if back && was != nil {
			g.Definition = was.last.Definition
		}
	})
}

// resolved checks that no machine is made from what is not complete.
func (c *checker) resolved(spec nstance.MachineSpec) {
	key := nstance.GroupKey{Tenant: spec.Owner.Tenant, Group: spec.Group}
	wanted, made := c.w.wanted(key).Definition.UserData, c.w.made(key).UserData
	if data := rendered(spec); data == wanted.Content && data != made.Content {
		c.violated("unresolved", "machine %s is made from %q, which is not complete", spec.ID, data)
	}
}

// drillUnresolved loses a member while it is not known what the group should be
// made from, and its leader. Nobody else goes meanwhile, the member is replaced
// when the next leader has read from what, and the group changes in the end.
func (d *driver) drillUnresolved(key nstance.GroupKey, sense bool) {
	d.open(key, sense, d.version())
	d.note(key)
	d.pass(2 * time.Minute)
	all := ids(d.machines(key))
	d.acts.Go(func() { d.act(16).crashLeader() })
	d.pass(time.Second)
	_ = d.cloud.Kill(all[0])
	d.pass(7 * time.Minute) // more than a full pass
	d.acts.Wait()
	left := map[nstance.InstanceID]bool{}
	for _, id := range ids(d.machines(key)) {
		left[id] = true
	}
	for _, id := range all[1:] {
		if !left[id] {
			d.check.violated("unresolved", "%s has gone although nobody knows what group %s should be", id, key)
		}
	}
	if len(left) != len(all) {
		d.check.violated("unresolved", "group %s has %d machines of %d while it is unresolved", key, len(left), len(all))
	}
	d.resolve(key, !sense)
	d.pass(20 * time.Minute)
	d.check.settled()
}
