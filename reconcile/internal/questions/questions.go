// Package questions asks a provider about single machines, however many want to know: side by
// side, so that one without an answer delays no other, and together where one listing says it all.
package questions

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	gather = 100 * time.Millisecond // what is asked together
	pause  = 2 * time.Second        // between two rounds of questions
	singly = 10                     // from this many on, one filtered list answers all
	width  = 16                     // questions about single machines under way at once
)

// A Calls has what is called.
type Calls struct {
	List   func(context.Context) error                     // asks for all machines
	Get    func(context.Context, nstance.InstanceID) error // asks for one
	Failed func([]nstance.InstanceID)                      // is told which were not answered
}

// An Asker puts questions about single machines to the provider. They are coalesced: whatever
// a mass disconnect wants to know is one list every two seconds. It holds each instance at most
// once as waiting and once as asked. It is safe for concurrent use.
type Asker struct {
	calls Calls
	wake  chan struct{} // has room for one

	mu      sync.Mutex
	waiting map[nstance.InstanceID]bool // true: alone
	asked   map[nstance.InstanceID]bool // without an answer yet
	listing bool
}

// New returns an asker without questions.
func New(calls Calls) *Asker {
	return &Asker{calls: calls, waiting: map[nstance.InstanceID]bool{}, asked: map[nstance.InstanceID]bool{}, wake: make(chan struct{}, 1)}
}

// Add has an instance's machine asked about soon.
func (a *Asker) Add(id nstance.InstanceID) { a.add(id, false) }

// AddAlone has it asked about by a question of its own: a list does not say why what it does
// not show has ended.
func (a *Asker) AddAlone(id nstance.InstanceID) { a.add(id, true) }

func (a *Asker) add(id nstance.InstanceID, alone bool) {
	a.mu.Lock()
	a.waiting[id] = a.waiting[id] || alone
	a.mu.Unlock()
	a.signal()
}

// Waiting returns how many questions were not asked yet.
func (a *Asker) Waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.waiting)
}

func (a *Asker) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run asks until ctx ends, and returns after every question has.
func (a *Asker) Run(ctx context.Context) {
	var questions sync.WaitGroup
	defer questions.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		if !sleep.For(ctx, gather) {
			return
		}
		a.ask(ctx, &questions)
		if !sleep.For(ctx, pause) {
			return
		}
	}
}

// ask begins the questions of one round. What it has no room for waits.
func (a *Asker) ask(ctx context.Context, questions *sync.WaitGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ids, alone []nstance.InstanceID
	for id, is := range a.waiting {
		switch {
		case a.asked[id]:
		case is:
			alone = append(alone, id)
		default:
			ids = append(ids, id)
		}
	}
	slices.Sort(alone)
	slices.Sort(ids)
	room := width - len(a.asked)
	if !a.listing && len(ids) >= min(singly, room+1) {
		a.listing = true
		maps.DeleteFunc(a.waiting, func(_ nstance.InstanceID, alone bool) bool { return !alone })
		listed := ids
		questions.Go(func() {
			err := a.calls.List(ctx)
			a.answered(func() { a.listing = false }, err, listed...)
		})
		ids = nil
	}
	ids = append(alone, ids...)
	for _, id := range ids[:min(room, len(ids))] {
		a.asked[id] = true
		delete(a.waiting, id)
		questions.Go(func() {
			err := a.calls.Get(ctx, id)
			a.answered(func() { delete(a.asked, id) }, err, id)
		})
	}
}

// answered ends a question. One that failed is no answer: the groups concerned
// are planned again, and ask again if they still want to know.
func (a *Asker) answered(end func(), err error, ids ...nstance.InstanceID) {
	a.mu.Lock()
	end()
	again := len(a.waiting) > 0
	a.mu.Unlock()
	if err != nil {
		a.calls.Failed(ids)
	}
	if again {
		a.signal()
	}
}
