package proxmox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// The kinds of work.
const (
	workCreate = "create"
	workDelete = "delete"
	workPower  = "power"
)

// workMemory is how long the outcome of a work is remembered. Until then
// pvestatd lists the memory of a new machine.
const workMemory = time.Minute

// A work is what goes on in the background for one machine.
type work struct {
	kind     string
	marks    marks
	node     string // of the machine when the work began; for a clone where it will be
	at       string // where it was found last, for the work itself
	reserved uint64 // bytes of memory that a new machine takes there
	upid     string // of the clone
	resumed  bool   // an earlier provider has made the clone
	before   error  // why the work before this one failed; nil: it did not, or there was none
	want     string // status that a change of power leads to
	seed     []byte // image with the user data; nil after a restart
	cancel   context.CancelFunc

	cloned chan struct{} // closed when the clone has ended
	done   chan struct{} // closed when the work has ended; err and endedAt stand then

	obstacleMu sync.Mutex
	refused    error     // what the latest step met; nil: it succeeded
	task       string    // UPID of the task that is awaited; empty: none
	taskSince  time.Time // when that began

	err     error
	endedAt time.Time
}

// obstacleAfter is how many refusals of a step in a row are an obstacle. One or two may be
// the cluster's own work that is not over yet, such as a start that was accepted before.
const obstacleAfter = 3

// taskLimit is how long a task may run until that is an obstacle.
const taskLimit = 5 * time.Minute

// obstacle returns why the work does not get on; nil: it does.
func (w *work) obstacle() error {
	w.obstacleMu.Lock()
	defer w.obstacleMu.Unlock()
	if w.task == "" || time.Since(w.taskSince) < taskLimit {
		return w.refused
	}
	return &nstance.Error{Code: nstance.Unavailable, Msg: "task " + w.task + " runs since " + w.taskSince.UTC().Format(time.RFC3339),
		Remedy: "look at its log in Proxmox VE, and stop it if it hangs"}
}

// waitFor records which task is awaited; empty: none.
func (w *work) waitFor(upid string) {
	w.obstacleMu.Lock()
	defer w.obstacleMu.Unlock()
	w.task, w.taskSince = upid, time.Now()
}

// workKey is the key of the work that a context belongs to.
type workKey struct{}

func newWork(kind string, m marks, node string) *work {
	return &work{kind: kind, marks: m, node: node, at: node, cancel: func() {}, cloned: make(chan struct{}), done: make(chan struct{})}
}

func (w *work) active() bool {
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

func (w *work) creating() bool { return w.kind == workCreate && w.active() }

// failure returns why the work failed, if it has ended and did.
func (w *work) failure() error {
	if w.active() {
		return nil
	}
	return w.err
}

// machine returns the machine under construction.
func (w *work) machine() nstance.Machine {
	f := found{marks: w.marks, node: w.node, lock: "clone"}
	return f.machine()
}

// workOf returns the last work of a machine, or nil.
func (p *Provider) workOf(id nstance.InstanceID) *work {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.works[id]
}

// underway returns the machines under construction that fall under owner.
func (p *Provider) underway(owner nstance.Owner) []nstance.Machine {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []nstance.Machine
	for _, w := range p.works {
		if w.creating() && (w.upid != "" || w.resumed) && owner.Owns(w.marks.Owner) {
			out = append(out, w.machine())
		}
	}
	return out
}

// enter records a work, and forgets those that ended a while ago. It needs p.mu.
func (p *Provider) enter(w *work) {
	p.forget()
	p.works[w.marks.ID] = w
}

// forget drops works that ended a while ago. It needs p.mu.
func (p *Provider) forget() {
	for id, old := range p.works {
		if !old.active() && time.Since(old.endedAt) > workMemory {
			delete(p.works, id)
		}
	}
}

// drop forgets a work that has not begun.
func (p *Provider) drop(w *work) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.works[w.marks.ID] == w {
		delete(p.works, w.marks.ID)
	}
}

// begin does a work in the background until it ends or the provider is closed.
// If it is closed already, the next provider does what is left.
func (p *Provider) begin(w *work, do func(context.Context, *work) error) {
	ctx, cancel := context.WithCancel(context.WithValue(p.life, workKey{}, w))
	p.mu.Lock()
	defer p.mu.Unlock()
	w.cancel = cancel
	p.enter(w)
	if p.life.Err() != nil {
		cancel()
		p.finished(w, p.life.Err())
		return
	}
	p.wg.Go(func() {
		defer cancel()
		err := do(ctx, w)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.finished(w, err)
	})
}

// finished ends a work. It needs p.mu.
func (p *Provider) finished(w *work, err error) {
	w.err, w.endedAt = err, time.Now()
	close(w.done)
	select {
	case <-w.cloned:
	default:
		close(w.cloned) // after done: a clone that failed is seen to have failed
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		p.log.Warn("background work failed", "op", w.kind, "instance_id", w.marks.ID, "vmid", w.marks.VMID, "code", nstance.CodeOf(err), "err", err)
	}
}

// stop ends a work and waits for it.
func (w *work) stop(ctx context.Context) error {
	w.cancel()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "the present work does not end: %w", ctx.Err())
	}
}

// retry repeats a step until it is done or definitely cannot be: Conflict says
// that the machine is gone or not ours any more, or needs an operator.
func (p *Provider) retry(ctx context.Context, w *work, step func(context.Context, *work) (done bool, err error)) error {
	inARow := 0
	for wait := p.api.poll; ; wait = min(2*wait, 30*p.api.poll) {
		done, err := step(ctx, w)
		if inARow++; err == nil {
			inARow = 0
		}
		if ctx.Err() == nil {
			w.obstacleMu.Lock()
			w.refused = nil
			if inARow >= obstacleAfter {
				w.refused = err
			}
			w.obstacleMu.Unlock()
		}
		if done || errors.Is(err, nstance.Conflict) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			p.log.Warn("step failed, repeating it", "op", w.kind, "instance_id", w.marks.ID, "vmid", w.marks.VMID, "code", nstance.CodeOf(err), "err", err)
		}
		if !sleep.For(ctx, wait) {
			return ctx.Err()
		}
	}
}

// reread reads the machine of a work again, on its node or wherever it is now.
// Nil means that it is definitely gone.
func (p *Provider) reread(ctx context.Context, w *work) (*found, error) {
	r := resource{Type: "qemu", VMID: w.marks.VMID, Node: w.at}
	c, err := p.api.config(ctx, w.at, w.marks.VMID)
	if err == nil {
		if c.Lock == "clone" && c.Name == "" || c.Lock == "destroyed" {
			return &found{marks: w.marks, node: w.at, lock: c.Lock, listed: r}, nil
		}
		f := identify(r, c)
		if f == nil || f.ID != w.marks.ID || f.Owner != w.marks.Owner {
			return nil, nstance.Errorf(nstance.Conflict, "VMID %d is not machine %s any more", w.marks.VMID, w.marks.ID)
		}
		return f, nil
	}
	if !missing(err) {
		return nil, err
	}
	list, err := p.api.resources(ctx)
	if err != nil {
		return nil, err
	}
	f, err := p.find(ctx, list, w.marks.ID)
	if f != nil {
		w.at = f.node
	}
	if f == nil && err == nil {
		err = p.absent(ctx, list)
	}
	return f, err
}
