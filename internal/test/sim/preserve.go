package sim

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
)

// preserved is the time of a preservation.
type preserved struct{ since, until time.Time }

// preserveOne preserves a machine.
func (a act) preserveOne() {
	long := a.seconds(60, 400)
	for _, id := range a.victims(1) {
		if !a.check.isPreserved(id) {
			a.preserve(id, long)
		}
	}
}

func (d *driver) preserve(id nstance.InstanceID, long time.Duration) {
	clock := &wall{}
	err := d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		clock = d.clockOf(r)
		return r.Admin().Preserve(ctx, id, clock.now().Add(long), requester)
	})
	if ahead, known := clock.dated(); err == nil && known && ahead.Abs() <= maxStep { // else its end is wrong
		d.check.recordPreserve(id, time.Now().Add(long))
	}
}

// recordPreserve records an acknowledged preservation.
func (c *checker) recordPreserve(id nstance.InstanceID, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.preservations[id] = preserved{time.Now(), until}
}

func (c *checker) isPreserved(id nstance.InstanceID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.preservations[id]
	return ok
}

// checkPreserved checks that a running, preserved machine neither starts to leave nor is
// deleted.
func (c *checker) checkPreserved(old *records.Instance, now records.Instance) {
	c.mu.Lock()
	k, ok := c.preservations[now.ID]
	c.mu.Unlock()
	if !ok || old == nil {
		return
	}
	begins := leaving(*old) == "" && leaving(now) != "" && c.dateOf(now.ID).left.After(k.since.Add(maxStep+time.Second))
	deleted := old.Deleting == nil && now.Deleting != nil
	if m, err := c.w.cloud.Truth(now.ID); err != nil || m.Status != nstance.StatusRunning {
		return // reclaimed
	}
	if (begins || deleted) && time.Now().Before(k.until.Add(-2*maxStep)) {
		c.violated("preserve", "%s leaves for %s, %v before the end of its preservation", now.ID, leaving(now), time.Until(k.until))
	}
}

// drillPreserve preserves a machine whose agent has died, across a change of leader: it
// is replaced at once, and deleted after its end.
func (d *driver) drillPreserve(key nstance.GroupKey) {
	id := d.machines(key)[0].ID
	d.put(d.mute, id)
	d.preserve(id, 8*time.Minute)
	d.acts.Go(func() { d.act(13).crashLeader() })
	d.pass(3 * time.Minute)
	d.acts.Wait()
	if n := d.countOthers(key, id); n != d.currentGroup(key).Size {
		d.check.violated("preserve", "beside preserved %s there are %d machines, size is %d", id, n, d.currentGroup(key).Size)
	}
	d.pass(4 * time.Minute)
	if _, err := d.cloud.Truth(id); err != nil {
		d.check.violated("preserve", "%s was deleted a minute before its end", id)
	}
	d.pass(drainTimeout + 3*time.Minute)
	if _, err := d.cloud.Truth(id); err == nil {
		d.check.violated("preserve", "%s still exists minutes after its end", id)
	}
	d.check.checkSettled()
}
