package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
)

const (
	reportInterval = 20 * time.Second
	agentTick      = 2 * time.Second
)

// agent is the agent on one machine.
type agent struct {
	w    *World
	id   nstance.InstanceID
	spec nstance.MachineSpec

	mu             sync.Mutex
	rng            *rand.Rand
	notices        []nstance.Notice
	pendingNotices map[string]bool // notices without acknowledgement yet
	drained        []uint64        // generations drained; their acknowledgements are repeated

	server         *reconcile.Reconciler
	registeredWith *reconcile.Reconciler // the server at which the agent is registered
	unwell         bool                  // it registered while machines were never well
	lastReport     time.Time             // last report
	begun          map[uint64]bool
}

func newAgent(w *World, m nstance.Machine, spec nstance.MachineSpec, nth uint64) *agent {
	return &agent{
		w: w, id: m.ID, spec: spec, rng: rand.New(rand.NewPCG(w.cfg.Seed<<16+nth, 3)),
		pendingNotices: map[string]bool{}, begun: map[uint64]bool{},
	}
}

func (a *agent) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { a.watch(ctx) })
	tick := time.NewTicker(agentTick)
	defer tick.Stop()
	for next(ctx, tick) {
		if a.w.isMute(a.id) || strings.HasSuffix(rendered(a.spec), " "+badImage) {
			continue
		}
		if a.w.isPartitioned(a.id) {
			a.leave()
			continue
		}
		r, drains := a.w.leader()
		a.setServer(r)
		if r == nil || !a.register(ctx, r) {
			continue
		}
		a.report(r)
		a.sendNotices(r)
		a.startDrains(ctx, &wg, drains)
		a.acknowledge(ctx, drains)
	}
	a.leave()
}

// leave reports the broken stream to the server.
func (a *agent) leave() {
	if a.server != nil {
		a.server.Observe(nstance.Disconnected{ID: a.id})
	}
	a.server = nil
}

// setServer sets the server that the agent is connected to.
func (a *agent) setServer(r *reconcile.Reconciler) {
	if r == nil || r == a.server {
		return
	}
	a.server, a.lastReport = r, time.Time{}
	a.mu.Lock()
	for _, n := range a.notices {
		a.pendingNotices[n.EventID] = true
	}
	a.mu.Unlock()
	r.Observe(nstance.Connected{ID: a.id})
}

// random returns a number below 1 from the machine's own seed.
func (a *agent) random() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rng.Float64()
}

// loseMessage reports whether the next message is lost.
func (a *agent) loseMessage() bool { return a.random() < a.w.messageLoss() }

func (a *agent) watch(ctx context.Context) {
	for n, err := range a.w.cloud.Detector(a.id).Watch(ctx) {
		if err != nil {
			continue
		}
		if n.Cancelled {
			a.w.check.noticeWithdrawn(n.EventID)
		}
		a.mu.Lock()
		a.notices = slices.DeleteFunc(a.notices, func(o nstance.Notice) bool { return o.EventID == n.EventID })
		a.notices = append(a.notices, n)
		a.pendingNotices[n.EventID] = true
		a.mu.Unlock()
	}
}

func (a *agent) register(ctx context.Context, r *reconcile.Reconciler) bool {
	rec, ok := r.Admin().Internals().Records().Get(a.id)
	if !ok || rec.Deleting != nil {
		return false
	}
	if !rec.RegisteredAt.IsZero() {
		a.reportRegistered(r)
		return true
	}
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := r.Admin().Internals().Records().Update(bounded, a.id, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.NotFound, "deleted")
		}
		rec.RegisteredAt = a.w.clockOf(r).now().UTC()
		rec.Current = &records.KeyRecord{Serial: "0"}
		return nil
	})
	if err == nil {
		a.unwell = a.w.unwell.Load()
		a.w.check.checkRegistered(a.id)
		a.reportRegistered(r)
	}
	return err == nil
}

// reportRegistered reports the registration to a server once, also when an earlier attempt landed
// whose answer was lost.
func (a *agent) reportRegistered(r *reconcile.Reconciler) {
	if a.registeredWith != r {
		a.registeredWith = r
		r.Observe(nstance.Registered{ID: a.id})
	}
}

func (a *agent) report(r *reconcile.Reconciler) {
	if time.Since(a.lastReport) < reportInterval {
		return
	}
	a.lastReport = time.Now()
	if a.loseMessage() || !a.renew(r) {
		return
	}
	report := nstance.Report{InstanceID: a.id, Timestamp: time.Now(), CanDrain: true, Probes: []nstance.ProbeResult{{Name: "serves", OK: !a.unwell}}}
	r.Observe(nstance.Reported{Report: report})
	if !a.unwell {
		a.w.check.markReady(a.id)
	}
}

// sendNotices sends every notice until it is acknowledged.
func (a *agent) sendNotices(r *reconcile.Reconciler) {
	a.mu.Lock()
	var owed []nstance.Notice
	for _, n := range a.notices {
		if a.pendingNotices[n.EventID] {
			owed = append(owed, n)
		}
	}
	a.mu.Unlock()
	for _, n := range owed {
		if a.loseMessage() {
			continue
		}
		a.w.check.recordShortage(reclaimMemory)
		r.Observe(nstance.Noticed{ID: a.id, Notice: a.received(r, n), Ack: func() {
			if !n.Cancelled {
				a.w.check.checkAcknowledged(a.id, n.EventID)
			}
			go a.acknowledged(n)
		}})
	}
}

// received returns a notice with the arrival time of the server's clock.
func (a *agent) received(r *reconcile.Reconciler, n nstance.Notice) nstance.Notice {
	return wire.NoticeReceived(wire.NoticeAt(n, time.Now()), a.w.clockOf(r).now().UTC())
}

// acknowledged stops the repetition of a notice, if the acknowledgement arrives.
func (a *agent) acknowledged(n nstance.Notice) {
	if a.loseMessage() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pendingNotices, n.EventID)
}

// startDrains starts the agent's drains. Each takes a while, longer while hooks hang. A
// cancellation does not stop it, so that its acknowledgement may be stale.
func (a *agent) startDrains(ctx context.Context, wg *sync.WaitGroup, drains *drain.Coordinator) {
	d, ok := drains.Of(a.id)
	if !ok || d.Executor != nstance.ExecutorAgent || a.begun[d.Generation] {
		return
	}
	a.begun[d.Generation] = true
	wg.Go(func() {
		for ok := sleep.For(ctx, time.Duration(1+a.random()*40)*time.Second); a.w.hang.Load() > 0; {
			if !ok || !sleep.For(ctx, agentTick) {
				return
			}
		}
		a.w.check.recordDrained(a.id, d.Generation)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.drained = append(a.drained, d.Generation)
	})
}

// acknowledge repeats the acknowledgements of all drains until the machine is gone: the
// server may have lost them.
func (a *agent) acknowledge(ctx context.Context, drains *drain.Coordinator) {
	a.mu.Lock()
	emptied := slices.Clone(a.drained)
	a.mu.Unlock()
	for _, generation := range emptied {
		if a.loseMessage() {
			continue
		}
		_ = drains.Acknowledge(ctx, nstance.Ack{ // refused unless it is for the current drain
			Instance: a.id, Generation: generation, By: nstance.ExecutorAgent, Outcome: nstance.OutcomeDrained,
		})
	}
}
