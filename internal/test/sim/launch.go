package sim

import (
	"time"

	"github.com/nstance-go/nstance"
)

// drillUnwell replaces a machine by one that registers and is never well. It is drained and
// replaced when its launch takes too long, and the group is whole soon after that.
func (d *driver) drillUnwell(key nstance.GroupKey) {
	before := map[nstance.InstanceID]bool{}
	for _, m := range d.machines(key) {
		before[m.ID] = true
	}
	d.unwell.Store(true)
	_ = d.cloud.Kill(d.member(key)) // it runs
	d.pass(3 * time.Minute)
	d.unwell.Store(false)
	var unwell []nstance.InstanceID
	for _, m := range d.machines(key) {
		if !before[m.ID] {
			unwell = append(unwell, m.ID)
		}
	}
	if len(unwell) == 0 {
		d.check.violated("launch", "no machine replaces the one that is gone in group %s", key)
	}
	d.pass(25 * time.Minute)
	for _, id := range unwell {
		if _, ok := d.store.record(id); ok {
			d.check.violated("launch", "%s was never well, and is still there", id)
		}
	}
	d.resume(key) // a failure is on record
	d.pass(10 * time.Minute)
	d.check.checkSettled()
}

// drillUnhealthy silences the agent of one machine that runs on: it is drained and replaced, and
// no other is.
func (d *driver) drillUnhealthy(key nstance.GroupKey) {
	id := d.member(key)
	d.put(d.mute, id)
	d.pass(8 * time.Minute)
	if rec, ok := d.store.record(id); ok && leaving(rec) != nstance.CauseUnhealthy {
		d.check.violated("silence", "%s has been silent for 8m, and leaves for %q", id, leaving(rec))
	}
	d.pass(5 * time.Minute)
	d.check.checkSettled()
}

// drillHalt rolls out a definition whose machines never register: the rollout halts, and the
// members that there are stay.
func (d *driver) drillHalt(key nstance.GroupKey) {
	d.setGroup(key, func(g *nstance.Group) {
		g.Rollout.MaxSurge.N, g.Definition.UserData = max(1, g.Rollout.MaxSurge.N), content(key, badImage)
	})
	d.pass(25 * time.Minute)
	r, _ := d.leader()
	if r == nil {
		d.check.violated("halt", "there is no leader")
		return
	}
	g, err := r.Group(key)
	if err != nil || g.Halted == "" || g.Ready < g.Size {
		d.check.violated("halt", "after 25m of a bad definition group %s is halted %q, %d of %d are ready: %v", key, g.Halted, g.Ready, g.Size, err)
	}
	d.resetGroup(key)
	d.pass(time.Hour) // all of them are replaced
	d.check.checkSettled()
}
