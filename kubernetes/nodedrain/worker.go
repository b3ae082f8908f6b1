package nodedrain

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// Why a worker stops.
var (
	errExpired    = errors.New("the deadline has passed")
	errEnded      = errors.New("the instance is being deleted")
	errReassigned = errors.New("the drain has another executor")
	errReplaced   = errors.New("the drain was cancelled, or a newer one began")
)

var errNodeDeleted = nstance.Errorf(nstance.NotFound, "node was deleted while it was drained")

// A worker drains one node, or takes a cancelled drain back.
type worker struct {
	d          *Drainer
	log        *slog.Logger
	instance   nstance.InstanceID
	generation uint64
	drains     bool   // false: it takes a drain back
	stopped    bool   // under the Drainer's lock: forget it once it is done
	mass       bool   // another drain was requested shortly before
	cordoned   func() // releases the gate

	life    context.Context // ends with Run, or when the worker is abandoned
	ctx     context.Context // of life; ends with the drain too
	endLife context.CancelFunc
	end     context.CancelCauseFunc
	expiry  *time.Timer
	changed chan struct{} // the drain was tightened
	done    chan struct{}

	mu    sync.Mutex
	drain nstance.Drain

	// Of the goroutine that drains.
	node       *corev1.Node // nil until it is found
	begun      bool         // Hooks.Begin was called; to take a drain back: by the worker before
	hasVolumes bool         // pods with volumes were seen
	staying    []*corev1.Pod
	tries      map[types.UID]try
	pending    int         // requests under way
	answers    chan answer // of them
	remaining  string      // what the drain waits for; read by others under mu
	unchanged  int         // how often that was found the same
	refusedAt  time.Time   // when evictions were last found to be refused; zero: none is
	overridden []string
	left       []string  // pods that do not end
	reported   time.Time // when the progress was last written
	block      blockReport
	trouble    blockReport // of errors
}

func newWorker(d *Drainer, dr nstance.Drain, drains bool) *worker {
	return &worker{
		d: d, drain: dr, instance: dr.Instance, generation: dr.Generation, drains: drains, cordoned: func() {},
		log:     d.options.Log.With("instance_id", string(dr.Instance), "generation", dr.Generation),
		changed: make(chan struct{}, 1), done: make(chan struct{}), answers: make(chan answer), tries: map[types.UID]try{}, remaining: "not started",
	}
}

// start is called once, before the work.
func (w *worker) start(ctx context.Context) {
	w.life, w.endLife = context.WithCancel(ctx)
	w.ctx, w.end = context.WithCancelCause(w.life)
	w.expiry = time.AfterFunc(time.Until(w.drain.Deadline), func() { w.end(errExpired) })
}

// abandon stops the worker at once, for the sake of another one of its instance.
func (w *worker) abandon() {
	w.end(errReplaced)
	w.endLife()
}

func (w *worker) close() {
	w.expiry.Stop()
	w.end(nil)
	w.endLife()
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	close(w.done)
	if current := w.d.workers[w.instance]; current == w && (w.stopped || !w.drains) {
		delete(w.d.workers, w.instance)
	}
}

// tighten narrows the drain to what a repeat of it says.
func (w *worker) tighten(dr nstance.Drain) {
	w.mu.Lock()
	if dr.Deadline.Before(w.drain.Deadline) {
		w.drain.Deadline = dr.Deadline
		w.expiry.Reset(time.Until(dr.Deadline))
	}
	w.drain.Voluntary = w.drain.Voluntary && dr.Voluntary
	w.drain.CordonOnly = w.drain.CordonOnly && dr.CordonOnly
	w.drain.Causes = dr.Causes
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// isStopped reports whether the drain has ended, or has another executor.
func (w *worker) isStopped() bool {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	return w.stopped
}

func (w *worker) current() nstance.Drain {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.drain
}

// empty drains the node, and reports how it went.
func (w *worker) empty(life context.Context) {
	w.d.countDraining(1)
	defer w.d.countDraining(-1)
	defer w.countRefused(false)
	w.log.Info("drain started", "deadline", w.current().Deadline)
	for failures := 1; ; failures++ {
		err := w.pass(w.ctx)
		if err == nil {
			w.finish(life, Drained)
			return
		}
		w.cordoned()
		if w.ctx.Err() != nil {
			break
		}
		w.setRemaining(err.Error())
		w.reportTrouble(w.ctx, err)
		if failures == 1 {
			w.log.Warn("drain is held up: retrying until the deadline", "err", err)
		}
		sleep.For(w.ctx, sleep.Jitter(sleep.Backoff(failures, 250*time.Millisecond, 5*time.Second)))
	}
	switch why := context.Cause(w.ctx); {
	case errors.Is(why, errExpired):
		w.finish(life, Expired)
	case errors.Is(why, errEnded):
		w.finish(life, Ended)
	case errors.Is(why, errReassigned):
		w.finish(life, Reassigned)
	default: // Run ended, or another worker of the instance takes over
		w.log.Info("drain stopped", "why", why)
	}
}

// pass does what is left to do. It is repeated after errors, and nil means that the
// node is empty.
func (w *worker) pass(ctx context.Context) error {
	if err := w.findNode(ctx); err != nil {
		return err
	}
	if err := w.cordon(ctx, w.current()); err != nil {
		return err
	}
	w.cordoned()
	if !sleep.For(ctx, settleTime) { // the cloud announces one event machine by machine
		return context.Cause(ctx)
	}
	w.d.gate.await(ctx)
	if err := w.removePods(ctx); err != nil {
		return err
	}
	if err := w.awaitVolumes(ctx); err != nil {
		return err
	}
	if !w.nodeExists() {
		return errNodeDeleted
	}
	return nil
}

// nodeExists reports whether the node that was found is there still.
func (w *worker) nodeExists() bool {
	if w.node == nil {
		return false
	}
	node := w.d.nodes.get(w.node.Name)
	return node != nil && node.UID == w.node.UID
}

// findNode waits until the node is known: it may not have joined yet.
func (w *worker) findNode(ctx context.Context) error {
	if w.nodeExists() {
		return nil
	}
	w.awaitNodes(ctx)
	for failures := 1; ; failures++ {
		node, err := w.d.nodes.find(w.drain.ProviderID, w.instance)
		if err == nil {
			w.node = node
			w.log = w.log.With("node", node.Name)
			if node.Annotations[annotationGeneration] == generationText(w.drain) {
				w.overridden = splitList(node.Annotations[annotationOverridden])
			}
			return nil
		}
		w.cordoned()
		w.setRemaining(err.Error())
		w.reportTrouble(ctx, err)
		if failures == 1 {
			w.log.Warn("node not found: looking again until the deadline", "err", err)
		}
		if !sleep.For(ctx, 250*time.Millisecond) {
			return err
		}
	}
}

// awaitNodes returns when all nodes are known, or ctx has ended.
func (w *worker) awaitNodes(ctx context.Context) {
	for !w.d.nodes.informer.HasSynced() && sleep.For(ctx, 20*time.Millisecond) {
		w.reportTrouble(ctx, errNotListed)
	}
}

// cordon makes the node unschedulable and annotates it with the drain. It is repeated
// when the drain is tightened.
func (w *worker) cordon(ctx context.Context, dr nstance.Drain) error {
	if hooks := w.d.options.Hooks; hooks != nil && !w.begun {
		w.begun = true
		w.hook(ctx, "begin", func(ctx context.Context) error { return hooks.Begin(ctx, dr, w.node) })
	}
	known := w.node.Annotations[annotationGeneration] == generationText(dr)
	node, sent, err := w.d.changeNode(ctx, w.node, func(node *corev1.Node) *nodePatch {
		p := cordonPatch(node, dr)
		if !p.empty() && !w.mass && w.mayExclude(node) {
			p.exclude()
		}
		return p
	})
	if err != nil {
		return err
	}
	w.node = node
	if sent {
		w.publishStart(dr, known)
	}
	return nil
}

func (w *worker) publishStart(dr nstance.Drain, known bool) {
	reason := reasonStarted
	if known {
		reason = reasonTightened
	}
	w.d.events.onNode(w.node, corev1.EventTypeNormal, reason, "node is "+doing(dr)+" "+until(dr)+" because of "+because(dr))
}

func doing(dr nstance.Drain) string {
	if dr.CordonOnly {
		return "cordoned, its pods may end by themselves,"
	}
	return "drained"
}

// mayExclude reports whether load balancers may be told to leave the node out.
func (w *worker) mayExclude(node *corev1.Node) bool {
	if excluded(node) {
		return false
	}
	others := w.d.nodes.targets()
	if n := w.d.nodes.get(node.Name); n != nil && !n.Spec.Unschedulable && !excluded(n) {
		others--
	}
	return others >= w.d.options.MinTargets
}

// hook calls one of Options.Hooks.
func (w *worker) hook(ctx context.Context, which string, call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := call(ctx); err != nil {
		w.log.Warn("hook failed", "hook", which, "err", err)
	}
}

// because says why, for events.
func because(d nstance.Drain) string {
	text := causeText(d)
	if id := eventIDs(d); id != "" {
		text += " (event " + id + ")"
	}
	return text
}
