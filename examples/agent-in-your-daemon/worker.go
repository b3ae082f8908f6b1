package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// jobTime is how long one piece of work takes.
const jobTime = 50 * time.Millisecond

// A worker stands for what your daemon does: it takes one job after another
// until it is drained.
type worker struct {
	out     io.Writer
	drain   chan struct{} // closed when no more jobs shall be taken
	once    sync.Once
	drained chan struct{} // closed when none is in hand
}

func newWorker(out io.Writer) *worker {
	return &worker{out: out, drain: make(chan struct{}), drained: make(chan struct{})}
}

// Run works until ctx ends.
func (w *worker) Run(ctx context.Context) error {
	defer close(w.drained)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.drain:
			return nil
		case <-time.After(jobTime): // the job in hand, always finished
		}
	}
}

// Drain is what the agent calls when the machine must be emptied. It takes no
// new job and returns when the last one is done, or when ctx ends, which is at
// the deadline.
func (w *worker) Drain(ctx context.Context, d nstance.Drain) (nstance.Outcome, string) {
	fmt.Fprintln(w.out, "worker: asked to drain, generation", d.Generation)
	w.once.Do(func() { close(w.drain) })
	select {
	case <-w.drained:
		return nstance.OutcomeDrained, "the last job is done"
	case <-ctx.Done():
		return nstance.OutcomeFailed, "a job was still in hand"
	}
}
