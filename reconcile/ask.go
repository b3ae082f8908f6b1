package reconcile

import (
	"context"
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
	list    func(context.Context) error                     // asks for all machines
	get     func(context.Context, nstance.InstanceID) error // asks for one
	failed  func([]nstance.InstanceID)                      // is told which were not answered
	mu      sync.Mutex
	waiting map[nstance.InstanceID]bool
	asked   map[nstance.InstanceID]bool // without an answer yet
	listing bool
	wake    chan struct{}
}

func newAsker(list func(context.Context) error, get func(context.Context, nstance.InstanceID) error, failed func([]nstance.InstanceID)) *asker {
	return &asker{
		list: list, get: get, failed: failed,
		waiting: map[nstance.InstanceID]bool{}, asked: map[nstance.InstanceID]bool{}, wake: make(chan struct{}, 1),
	}
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
			err := a.list(ctx)
			a.answered(func() { a.listing = false }, err, ids...)
		})
		return
	}
	for _, id := range ids[:min(room, len(ids))] {
		a.asked[id] = true
		delete(a.waiting, id)
		questions.Go(func() {
			err := a.get(ctx, id)
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
		a.failed(ids)
	}
	if again {
		a.signal()
	}
}
