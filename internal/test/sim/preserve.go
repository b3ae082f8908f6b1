package sim

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// preserved says from when until when a machine is kept for inspection.
type preserved struct{ since, until time.Time }

// preserveOne keeps a machine for inspection.
func (a act) preserveOne() {
	long := a.seconds(60, 400)
	for _, id := range a.victims(1) {
		if !a.check.keeps(id) {
			a.preserve(id, long)
		}
	}
}

func (d *driver) preserve(id nstance.InstanceID, long time.Duration) {
	clock := &wall{}
	err := d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		clock = d.clockOf(r)
		return r.Preserve(ctx, id, clock.now().Add(long), asker)
	})
	if ahead, known := clock.dated(); err == nil && known && ahead.Abs() <= maxStep { // else its end is wrong
		d.check.preserves(id, time.Now().Add(long))
	}
}

// preserves notes that somebody was told that a machine is kept.
func (c *checker) preserves(id nstance.InstanceID, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept[id] = preserved{time.Now(), until}
}

func (c *checker) keeps(id nstance.InstanceID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.kept[id]
	return ok
}

// untouched checks that a machine that runs and is preserved neither begins to
// leave nor is deleted.
func (c *checker) untouched(old *storage.Instance, now storage.Instance) {
	c.mu.Lock()
	k, ok := c.kept[now.ID]
	c.mu.Unlock()
	if !ok || old == nil {
		return
	}
	begins := leaving(*old) == "" && leaving(now) != "" && c.dateOf(now.ID).left.After(k.since.Add(maxStep+time.Second))
	deleted := old.Deleting == nil && now.Deleting != nil
	if m, err := c.w.cloud.Truth(now.ID); err != nil || m.Status != nstance.StatusRunning {
		return // the cloud took it
	}
	if (begins || deleted) && time.Now().Before(k.until.Add(-2*maxStep)) {
		c.violated("preserve", "%s leaves for %s, %v before it may", now.ID, leaving(now), time.Until(k.until))
	}
}

// drillPreserve keeps a machine whose agent has died, through a change of
// leader: another takes its place at once, and it goes when its time is over.
func (d *driver) drillPreserve(key nstance.GroupKey) {
	id := d.machines(key)[0].ID
	d.put(d.mute, id)
	d.preserve(id, 8*time.Minute)
	d.acts.Go(func() { d.act(13).crashLeader() })
	d.pass(3 * time.Minute)
	d.acts.Wait()
	if n := d.others(key, id); n != d.wanted(key).Size {
		d.check.violated("preserve", "beside %s, which is preserved, there are %d machines, of %d wanted", id, n, d.wanted(key).Size)
	}
	d.pass(4 * time.Minute)
	if _, err := d.cloud.Truth(id); err != nil {
		d.check.violated("preserve", "%s was to be kept for another minute", id)
	}
	d.pass(drainTimeout + 3*time.Minute)
	if _, err := d.cloud.Truth(id); err == nil {
		d.check.violated("preserve", "%s is still there, minutes after its time", id)
	}
	d.check.settled()
}
