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
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
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
	rng     *rand.Rand
	notices []nstance.Notice
	owed    map[string]bool // notices not acknowledged yet
	emptied []uint64        // drains that the machine was emptied for; acknowledged again and again

	server  *reconcile.Reconciler
	vouched *reconcile.Reconciler // has been told that the agent is registered
	said    time.Time             // last report
	begun   map[uint64]bool
}

func newAgent(w *World, m nstance.Machine, spec nstance.MachineSpec, nth uint64) *agent {
	return &agent{
		w: w, id: m.ID, spec: spec, rng: rand.New(rand.NewPCG(w.cfg.Seed<<16+nth, 3)),
		owed: map[string]bool{}, begun: map[uint64]bool{},
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
		if a.w.isApart(a.id) {
			a.leave()
			continue
		}
		r, drains := a.w.leader()
		a.meet(r)
		if r == nil || !a.register(ctx, r) {
			continue
		}
		a.report(r)
		a.bring(r)
		a.empty(ctx, &wg, drains)
		a.acknowledge(ctx, drains)
	}
	a.leave()
}

// leave lets the server see the stream break.
func (a *agent) leave() {
	if a.server != nil {
		a.server.Observe(nstance.Disconnected{ID: a.id})
	}
	a.server = nil
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

// draw returns a number below 1 from the machine's own seed.
func (a *agent) draw() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rng.Float64()
}

// lost reports whether the next message does not arrive.
func (a *agent) lost() bool { return a.draw() < a.w.lossy() }

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
		a.vouch(r)
		return true
	}
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := r.Records().Update(bounded, a.id, func(rec *storage.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.NotFound, "deleted")
		}
		rec.RegisteredAt = a.w.clockOf(r).now().UTC()
		return nil
	})
	if err == nil {
		a.w.check.registered(a.id)
		a.vouch(r)
	}
	return err == nil
}

// vouch lets a server know once that the agent is registered: also when its
// record says so because an earlier attempt landed whose answer was lost.
func (a *agent) vouch(r *reconcile.Reconciler) {
	if a.vouched != r {
		a.vouched = r
		r.Observe(nstance.Registered{ID: a.id})
	}
}

func (a *agent) report(r *reconcile.Reconciler) {
	if time.Since(a.said) < reportInterval {
		return
	}
	a.said = time.Now()
	if a.lost() {
		return
	}
	a.mu.Lock()
	standing := slices.DeleteFunc(slices.Clone(a.notices), func(n nstance.Notice) bool { return n.Cancelled })
	a.mu.Unlock()
	if len(standing) > 0 {
		a.w.check.scarcer()
	}
	r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: a.id, Timestamp: time.Now(), CanDrain: true, Notices: a.received(r, standing...)}})
	a.w.check.well(a.id)
}

// bring brings every notice until it is acknowledged.
func (a *agent) bring(r *reconcile.Reconciler) {
	a.mu.Lock()
	var owed []nstance.Notice
	for _, n := range a.notices {
		if a.owed[n.EventID] {
			owed = append(owed, n)
		}
	}
	a.mu.Unlock()
	for _, n := range owed {
		if a.lost() {
			continue
		}
		a.w.check.scarcer()
		r.Observe(nstance.Noticed{ID: a.id, Notice: a.received(r, n)[0], Ack: func() {
			if !n.Cancelled {
				a.w.check.noticeTaken(a.id, n.EventID)
			}
			go a.acknowledged(n)
		}})
	}
}

// received returns notices as they arrive at a server, by its clock.
func (a *agent) received(r *reconcile.Reconciler, notices ...nstance.Notice) (out []nstance.Notice) {
	now := a.w.clockOf(r).now().UTC()
	for _, n := range notices {
		out = append(out, wire.NoticeReceived(wire.NoticeAt(n, time.Now()), now))
	}
	return out
}

// acknowledged notes that a notice need not be brought again, if the
// acknowledgement arrives.
func (a *agent) acknowledged(n nstance.Notice) {
	if a.lost() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.owed, n.EventID)
}

// empty begins to empty the machine for each drain that is the agent's, which
// takes a while, or longer while hooks hang. It is not stopped by a
// cancellation, so that its acknowledgement may come when nobody asks for it
// any more.
func (a *agent) empty(ctx context.Context, wg *sync.WaitGroup, drains *drain.Coordinator) {
	d, ok := drains.Of(a.id)
	if !ok || d.Executor != nstance.ExecutorAgent || a.begun[d.Generation] {
		return
	}
	a.begun[d.Generation] = true
	wg.Go(func() {
		for ok := sleep.For(ctx, time.Duration(1+a.draw()*40)*time.Second); a.w.hang.Load() > 0; {
			if !ok || !sleep.For(ctx, agentTick) {
				return
			}
		}
		a.w.check.emptied(a.id, d.Generation)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.emptied = append(a.emptied, d.Generation)
	})
}

// acknowledge says again what was said before, old drains included, until the
// machine is gone: the server may have forgotten.
func (a *agent) acknowledge(ctx context.Context, drains *drain.Coordinator) {
	a.mu.Lock()
	emptied := slices.Clone(a.emptied)
	a.mu.Unlock()
	for _, generation := range emptied {
		if a.lost() {
			continue
		}
		_ = drains.Acknowledge(ctx, nstance.Ack{ // refused unless it is for the present drain
			Instance: a.id, Generation: generation, By: nstance.ExecutorAgent, Outcome: nstance.OutcomeDrained,
		})
	}
}
