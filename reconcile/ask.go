package reconcile

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	askGather = 100 * time.Millisecond // what is asked together
	askPause  = 2 * time.Second        // between two rounds of questions
	askSingly = 10                     // from this many on, one filtered list answers all
)

// An asker puts questions about single machines to the provider, coalesced:
// whatever a mass disconnect wants to know is one list every two seconds. It
// holds each instance at most once.
type asker struct {
	r    *Reconciler
	mu   sync.Mutex
	ids  map[nstance.InstanceID]bool
	wake chan struct{}
}

func newAsker(r *Reconciler) *asker {
	return &asker{r: r, ids: map[nstance.InstanceID]bool{}, wake: make(chan struct{}, 1)}
}

func (a *asker) add(id nstance.InstanceID) {
	a.mu.Lock()
	a.ids[id] = true
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *asker) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		if !sleep(ctx, askGather) {
			return
		}
		a.mu.Lock()
		ids := a.ids
		a.ids = map[nstance.InstanceID]bool{}
		a.mu.Unlock()
		if len(ids) >= askSingly {
			a.r.survey(ctx)
		} else {
			a.each(ctx, ids)
		}
		if !sleep(ctx, askPause) {
			return
		}
	}
}

// each asks for one machine at a time. An error is no answer: the next plan
// asks again if it still wants to know.
func (a *asker) each(ctx context.Context, ids map[nstance.InstanceID]bool) {
	for id := range ids {
		mach, err := a.r.provider.Get(ctx, id)
		switch {
		case err == nil:
			a.r.Observe(nstance.Seen{Machine: mach})
		case errors.Is(err, nstance.NotFound):
			a.r.Observe(nstance.Missing{ID: id})
		default:
			a.r.log.Warn("provider did not say how a machine is", "instance_id", id, "code", nstance.CodeOf(err), "err", err)
		}
	}
}
