package nodedrain

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// massWindow is how close together drains are requested that belong to one event.
const massWindow = 5 * time.Second

// watch follows the coordinator until ctx ends.
func (d *Drainer) watch(ctx context.Context) {
	var after nstance.Seq
	for failures := 1; ; failures++ {
		progress, err := d.follow(ctx, &after)
		if progress {
			failures = 1
		}
		if ctx.Err() != nil {
			return
		}
		d.options.Log.Warn("watch of drains ended: resuming", "after", uint64(after), "err", err)
		if !sleep.For(ctx, sleep.Jitter(sleep.Backoff(failures, 100*time.Millisecond, 5*time.Second))) {
			return
		}
	}
}

// follow handles one watch, and reports whether it yielded anything. The gate is
// closed during a snapshot, so that all of its nodes are cordoned first.
func (d *Drainer) follow(ctx context.Context, after *nstance.Seq) (progress bool, err error) {
	listed := map[nstance.InstanceID]bool{}
	release := func() {}
	defer func() { release() }()
	for e, err := range d.drains.Watch(ctx, d.options.Tenant, *after) {
		if err != nil {
			return progress, err
		}
		progress = true
		switch e.Type {
		case nstance.DrainSnapshot:
			if len(listed) == 0 {
				release = d.gate.hold()
			}
			listed[e.Drain.Instance] = true
		case nstance.DrainSynced:
			release()
			d.stopUnlisted(listed)
		}
		d.handle(ctx, e)
		*after = max(*after, e.Seq)
	}
	return progress, errors.New("watch ended without an error")
}

// handle brings the workers in line with one event. It does not block.
func (d *Drainer) handle(ctx context.Context, e nstance.DrainEvent) {
	switch e.Type {
	case nstance.DrainSnapshot:
		if e.Ack == nil || e.Ack.Outcome != nstance.OutcomeDrained && !e.Ack.Delete {
			d.assign(ctx, e.Drain)
		}
	case nstance.DrainRequested, nstance.DrainTightened, nstance.DrainReassigned:
		d.assign(ctx, e.Drain)
	case nstance.DrainCancelled:
		d.replace(ctx, newWorker(d, e.Drain, false))
	case nstance.DrainEnded:
		d.remove(e.Drain.Instance, errEnded)
	}
}

// assign has a worker drain the node of dr, unless the drain is another executor's.
func (d *Drainer) assign(ctx context.Context, dr nstance.Drain) {
	d.mu.Lock()
	current := d.workers[dr.Instance]
	d.mu.Unlock()
	switch {
	case dr.Executor != nstance.ExecutorOperator:
		d.remove(dr.Instance, errReassigned)
	case current == nil && !time.Now().Before(dr.Deadline):
		// The deadline has decided. The drain of a machine that is parked stands for as long.
	case current != nil && current.generation == dr.Generation && current.drains && !current.stopped:
		current.tighten(dr)
	default:
		d.replace(ctx, newWorker(d, dr, true))
	}
}

// replace starts a worker after the instance's current one has stopped.
func (d *Drainer) replace(ctx context.Context, w *worker) {
	d.mu.Lock()
	previous := d.workers[w.instance]
	d.workers[w.instance] = w
	if w.drains {
		w.mass = time.Since(d.latest) < massWindow
		d.latest = time.Now()
	}
	d.mu.Unlock()
	if previous != nil {
		previous.abandon()
	}
	w.start(ctx)
	if w.drains {
		w.cordoned = d.gate.hold()
	}
	d.start(func() {
		defer w.close()
		if previous != nil {
			<-previous.done
		}
		if w.drains {
			w.empty(w.life)
			return
		}
		w.begun = previous != nil && previous.begun
		w.restore(w.life)
	})
}

// remove ends the drain of an instance, if there is one. Its worker is forgotten when
// it has stopped.
func (d *Drainer) remove(id nstance.InstanceID, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workers[id]
	if w == nil {
		return
	}
	w.stopped = true
	w.end(why)
	select {
	case <-w.done:
		delete(d.workers, id)
	default:
	}
}

// stopUnlisted stops the workers of drains that a snapshot does not have: they ended
// while there was no watch.
func (d *Drainer) stopUnlisted(listed map[nstance.InstanceID]bool) {
	d.mu.Lock()
	var over []nstance.InstanceID
	for id := range d.workers {
		if !listed[id] {
			over = append(over, id)
		}
	}
	d.mu.Unlock()
	for _, id := range over {
		d.remove(id, errEnded)
	}
}

// countDraining changes the number of workers that drain, and returns it.
func (d *Drainer) countDraining(by int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Draining += by
	return d.stats.Draining
}
