package sim

import (
	"time"

	"github.com/nstance-go/nstance"
)

// drillAdvice has the cloud recommend to leave a machine. A group that ignores that keeps it, one
// that heeds it replaces it with the rollout's care: the replacement first.
func (d *driver) drillAdvice(key nstance.GroupKey) {
	size, id := d.currentGroup(key).Size, d.member(key)
	advise := func() {
		if r, _ := d.leader(); r != nil {
			r.Observe(nstance.Noticed{ID: id, Notice: nstance.Notice{
				Kind: nstance.Rebalance, Source: "aws/rebalance", EventID: "rebalance-" + string(id), DetectedAt: time.Now(),
			}})
		}
	}
	advise()
	d.pass(10 * time.Minute)
	if _, ok := d.store.record(id); !ok {
		d.check.violated("advice", "%s has left for a recommendation that its group ignores", id)
	}
	d.setGroup(key, func(g *nstance.Group) { g.OnRebalance = nstance.NoticeReplace })
	for range 15 {
		d.pass(time.Minute)
		advise() // a leader that took over since does not know of it
		if n := d.countOthers(key, id); n < size-1 {
			d.check.violated("advice", "group %s has %d other machines while %s is to be replaced, size is %d", key, n, id, size)
		}
	}
	if _, ok := d.store.record(id); ok {
		d.check.violated("advice", "%s is still there 15m after the cloud recommended to leave it", id)
	}
	d.setGroup(key, func(g *nstance.Group) { g.OnRebalance = "" })
	d.pass(5 * time.Minute)
	d.check.checkSettled()
}

// member returns a machine of a group that is no stand-by member and not about to leave.
func (d *driver) member(key nstance.GroupKey) nstance.InstanceID {
	for _, m := range d.machines(key) {
		if rec, ok := d.store.record(m.ID); ok && rec.Standby == nil && leaving(rec) == "" && !rec.OnDemand {
			return m.ID
		}
	}
	return ""
}
