package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// A hookFunc empties the machine; see Options.Drain.
type hookFunc func(ctx context.Context, d nstance.Drain) (nstance.Outcome, string)

// A drainer runs the hook, one at a time and once for each drain. Its methods
// return at once and may be called concurrently.
type drainer struct {
	hook   hookFunc // nil: none
	report func(*apiv1.DrainResult)
	log    *slog.Logger

	mu   sync.Mutex
	job  *job // the latest; nil when there never was one, or it was withdrawn
	wake chan struct{}
}

// A job is one drain. A job without a generation was started by the agent
// itself, because no server had acknowledged the notice; the first server that
// asks for a drain adopts it.
type job struct {
	drain   nstance.Drain
	event   string // ID of the notice that started it; empty for a server's
	stop    context.CancelFunc
	timer   *time.Timer // ends the hook at the deadline
	started bool
	done    bool
	outcome nstance.Outcome
	message string
}

func newDrainer(hook hookFunc, report func(*apiv1.DrainResult), log *slog.Logger) *drainer {
	return &drainer{hook: hook, report: report, log: log, wake: make(chan struct{}, 1)}
}

// Run calls the hook for jobs until ctx ends, which stops the hook as well.
func (d *drainer) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
			d.work(ctx)
		}
	}
}

// command does what a server asks: the hook runs once per generation, an
// earlier deadline tightens one that runs, and a finished one is reported again.
func (d *drainer) command(want nstance.Drain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch j := d.job; {
	case want.Generation == 0: // no generation: no way to answer
	case j != nil && j.drain.Generation == want.Generation:
		d.adopt(want)
	case j != nil && j.event != "" && j.drain.Generation == 0 && j.outcome != nstance.OutcomeFailed:
		d.adopt(want)
	default:
		d.replace(&job{drain: want})
	}
}

// adopt makes the present job answer for want. Callers hold d.mu.
func (d *drainer) adopt(want nstance.Drain) {
	j := d.job
	j.drain.Generation = want.Generation
	if j.done {
		d.report(j.result())
		return
	}
	if want.Deadline.IsZero() || !j.drain.Deadline.IsZero() && !want.Deadline.Before(j.drain.Deadline) {
		return
	}
	j.drain.Deadline = want.Deadline
	if j.timer != nil {
		j.timer.Reset(time.Until(want.Deadline))
	}
}

// fallback empties the machine on the agent's own account, unless that is under
// way or done.
func (d *drainer) fallback(want nstance.Drain, eventID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.job; d.hook == nil || j != nil && j.outcome != nstance.OutcomeFailed {
		return
	}
	d.log.Warn("no server acknowledged the notice, draining by own hook", "event_id", eventID, "deadline", want.Deadline)
	d.replace(&job{drain: want, event: eventID})
}

// cancel withdraws a server's drain of this generation or an older one.
func (d *drainer) cancel(generation uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.job; j != nil && j.drain.Generation != 0 && j.drain.Generation <= generation {
		d.replace(nil)
	}
}

// withdraw takes back what the notice started, unless a server has adopted it.
func (d *drainer) withdraw(eventID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.job; j != nil && j.drain.Generation == 0 && j.event == eventID {
		d.replace(nil)
	}
}

// replace stops the present job and wants another, or none. Callers hold d.mu.
func (d *drainer) replace(next *job) {
	if j := d.job; j != nil && j.stop != nil {
		j.stop()
	}
	d.job = next
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// work runs the present job, if it has not been run.
func (d *drainer) work(ctx context.Context) {
	j, drain, stopped := d.start(ctx)
	if j == nil {
		return
	}
	defer j.stop()
	outcome, message := nstance.OutcomeFailed, "the agent has no drain hook"
	if d.hook != nil {
		outcome, message = d.hook(stopped, drain)
	}
	if ctx.Err() == nil { // else the agent's own end cut it short, which is no outcome
		d.finish(j, outcome, message)
	}
}

// start marks the present job as started. The drain is a copy: its deadline may
// be tightened while the hook runs.
func (d *drainer) start(ctx context.Context) (*job, nstance.Drain, context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := d.job
	if j == nil || j.started {
		return nil, nstance.Drain{}, nil
	}
	j.started = true
	ctx, j.stop = context.WithCancel(ctx)
	if !j.drain.Deadline.IsZero() {
		j.timer = time.AfterFunc(time.Until(j.drain.Deadline), j.stop)
	}
	d.log.Info("drain hook starts", "generation", j.drain.Generation, "deadline", j.drain.Deadline)
	return j, j.drain, ctx
}

// finish notes the outcome, which counts only if the job is still wanted.
func (d *drainer) finish(j *job, outcome nstance.Outcome, message string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j.timer != nil {
		j.timer.Stop()
	}
	j.done, j.outcome, j.message = true, outcome, message
	d.log.Info("drain hook ended", "generation", j.drain.Generation, "outcome", outcome)
	if d.job == j && j.drain.Generation != 0 {
		d.report(j.result())
	}
}

func (j *job) result() *apiv1.DrainResult {
	return &apiv1.DrainResult{Generation: j.drain.Generation, Outcome: string(j.outcome), Message: clean(j.message)}
}
