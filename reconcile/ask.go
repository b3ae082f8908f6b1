package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	askGather = 100 * time.Millisecond // what is asked together
	askPause  = 2 * time.Second        // between two rounds of questions
	askSingly = 10                     // from this many on, one filtered list answers all
	askWidth  = 16                     // questions about single machines under way at once
)

// An asker puts questions about single machines to the provider. They run side
// by side, so that one without an answer delays no other, and they are coalesced:
// whatever a mass disconnect wants to know is one list every two seconds. It
// holds each instance at most once as waiting and once as asked.
type asker struct {
	r       *Reconciler
	mu      sync.Mutex
	waiting map[nstance.InstanceID]bool
	asked   map[nstance.InstanceID]bool // without an answer yet
	listing bool
	wake    chan struct{}
}

func newAsker(r *Reconciler) *asker {
	return &asker{r: r, waiting: map[nstance.InstanceID]bool{}, asked: map[nstance.InstanceID]bool{}, wake: make(chan struct{}, 1)}
}

func (a *asker) add(id nstance.InstanceID) {
	a.mu.Lock()
	a.waiting[id] = true
	a.mu.Unlock()
	a.signal()
}

func (a *asker) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run asks until ctx ends, and returns after every question has.
func (a *asker) run(ctx context.Context) {
	var questions sync.WaitGroup
	defer questions.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		if !sleep.For(ctx, askGather) {
			return
		}
		a.ask(ctx, &questions)
		if !sleep.For(ctx, askPause) {
			return
		}
	}
}

// ask begins the questions of one round. What it has no room for waits.
func (a *asker) ask(ctx context.Context, questions *sync.WaitGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ids := make([]nstance.InstanceID, 0, len(a.waiting))
	for id := range a.waiting {
		if !a.asked[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	room := askWidth - len(a.asked)
	if !a.listing && len(ids) >= min(askSingly, room+1) {
		a.listing = true
		clear(a.waiting)
		questions.Go(func() {
			err := a.r.listMachines(ctx)
			a.answered(func() { a.listing = false }, err, ids...)
		})
		return
	}
	for _, id := range ids[:min(room, len(ids))] {
		a.asked[id] = true
		delete(a.waiting, id)
		questions.Go(func() {
			err := a.one(ctx, id)
			a.answered(func() { delete(a.asked, id) }, err, id)
		})
	}
}

// answered ends a question. One that failed is no answer: the groups concerned
// are planned again, and ask again if they still want to know.
func (a *asker) answered(end func(), err error, ids ...nstance.InstanceID) {
	a.mu.Lock()
	end()
	again := len(a.waiting) > 0
	a.mu.Unlock()
	if err != nil {
		a.r.planMembers(ids)
	}
	if again {
		a.signal()
	}
}

// one asks for one machine.
func (a *asker) one(ctx context.Context, id nstance.InstanceID) error {
	asked := a.r.opts.Now()
	mach, err := a.r.provider.Get(ctx, id)
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	switch {
	case err == nil:
		a.r.handleMachine(mach, asked)
	case errors.Is(err, nstance.NotFound):
		a.r.withMember(id, func(m *member) { a.r.handleMissing(m, nstance.LossCauseOf(err), asked) })
	case ctx.Err() == nil:
		a.r.log.Warn("provider did not say how a machine is", "instance_id", id, "code", nstance.CodeOf(err), "err", err)
		return err
	}
	return nil
}

// planMembers plans the groups of the given members.
func (r *Reconciler) planMembers(ids []nstance.InstanceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.withMember(id, func(m *member) { r.queue.add(m.group.key, true) })
	}
}
