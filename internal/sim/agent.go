package sim

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

const (
	reportInterval = 20 * time.Second
	agentTick      = 2 * time.Second
)

// An agent is what runs on one machine.
type agent struct {
	w    *World
	id   nstance.InstanceID
	spec nstance.MachineSpec

	mu      sync.Mutex
	notices []nstance.Notice
	owed    map[string]bool // notices not acknowledged yet
	server  *reconcile.Reconciler
	said    time.Time // last report
	drained map[uint64]bool
}

func (a *agent) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { a.watch(ctx) })
	for wait(ctx, agentTick) {
		if a.w.isMute(a.id) || string(a.spec.UserData) == badImage {
			continue
		}
		r, drains := a.w.leader()
		a.meet(r)
		if r == nil || !a.register(ctx, r) {
			continue
		}
		a.report(r)
		a.bring(r)
		a.empty(ctx, drains)
	}
	if r := a.server; r != nil {
		r.Observe(nstance.Disconnected{ID: a.id})
	}
}

// meet notes which server the agent talks to now.
func (a *agent) meet(r *reconcile.Reconciler) {
	if r == nil || r == a.server {
		return
	}
	a.server, a.said = r, time.Time{}
	a.mu.Lock()
	for _, n := range a.notices {
		a.owed[n.EventID] = true
	}
	a.mu.Unlock()
	r.Observe(nstance.Connected{ID: a.id})
}

func (a *agent) watch(ctx context.Context) {
	for n, err := range a.w.cloud.Detector(a.id).Watch(ctx) {
		if err != nil {
			continue
		}
		a.mu.Lock()
		a.notices = slices.DeleteFunc(a.notices, func(o nstance.Notice) bool { return o.EventID == n.EventID })
		a.notices = append(a.notices, n)
		a.owed[n.EventID] = true
		a.mu.Unlock()
	}
}

func (a *agent) register(ctx context.Context, r *reconcile.Reconciler) bool {
	rec, ok := r.Records().Get(a.id)
	if !ok || rec.Deleting != nil {
		return false
	}
	if !rec.RegisteredAt.IsZero() {
		return true
	}
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := r.Records().Update(bounded, a.id, func(rec *storage.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.NotFound, "deleted")
		}
		rec.RegisteredAt = time.Now().UTC()
		return nil
	})
	if err == nil {
		r.Observe(nstance.Registered{ID: a.id})
	}
	return err == nil
}

func (a *agent) report(r *reconcile.Reconciler) {
	if time.Since(a.said) < reportInterval {
		return
	}
	a.said = time.Now()
	a.mu.Lock()
	standing := slices.DeleteFunc(slices.Clone(a.notices), func(n nstance.Notice) bool { return n.Cancelled })
	a.mu.Unlock()
	r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: a.id, Timestamp: time.Now(), CanDrain: true, Notices: standing}})
	a.w.check.well(a.id)
}

// bring brings every notice until it is acknowledged.
func (a *agent) bring(r *reconcile.Reconciler) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.notices {
		if a.owed[n.EventID] {
			r.Observe(nstance.Noticed{ID: a.id, Notice: n, Ack: func() { go a.acknowledged(n) }})
		}
	}
}

func (a *agent) acknowledged(n nstance.Notice) {
	a.mu.Lock()
	delete(a.owed, n.EventID)
	a.mu.Unlock()
	if !n.Cancelled {
		a.w.check.noticeTaken(a.id, n.EventID)
	}
}

// empty acknowledges a drain that is the agent's, unless hooks hang at present.
func (a *agent) empty(ctx context.Context, drains *drain.Coordinator) {
	if a.w.hang.Load() {
		return
	}
	for _, d := range drains.Active() {
		if d.Instance != a.id || d.Executor != nstance.ExecutorAgent || a.drained[d.Generation] {
			continue
		}
		a.w.check.emptied(a.id, d.Generation)
		err := drains.Acknowledge(ctx, nstance.Ack{Instance: a.id, Generation: d.Generation, By: nstance.ExecutorAgent, Outcome: nstance.OutcomeDrained})
		if err == nil {
			continue // said again until the machine is gone: the server may forget
		}
	}
}
