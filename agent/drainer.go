package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// A hookFunc empties the machine; see Options.Drain.
type hookFunc func(ctx context.Context, d nstance.Drain) (nstance.Outcome, string)

// A drainer runs the hook, one at a time and once for each drain. Its methods
// return at once and may be called concurrently. It reports without its lock.
type drainer struct {
	hook   hookFunc // nil: none
	report func(*apiv1.DrainResult)
	log    *slog.Logger

	mu      sync.Mutex
	job     *job // the latest; nil: none yet, or withdrawn
	wake    chan struct{}
	changed chan struct{} // has room for one: a job came, has ended, or was withdrawn
}

// A job is one drain. A job with an event ID was started by the agent itself, because
// no server had acknowledged the notice; the first drain command of a server adopts
// it. Its result is reported without a generation too.
type job struct {
	drain   nstance.Drain
	eventID string // of the notice that started it; empty: a server's command did
	stop    context.CancelFunc

	deadlineTimer *time.Timer

	started bool
	done    bool
	outcome nstance.Outcome
	message string
}

func newDrainer(hook hookFunc, report func(*apiv1.DrainResult), log *slog.Logger) *drainer {
	return &drainer{hook: hook, report: report, log: log, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// Run calls the hook for jobs until ctx ends, which stops the hook as well.
func (d *drainer) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
			d.runJob(ctx)
		}
	}
}

// command handles a server's drain command: the hook runs once per generation, an
// earlier deadline tightens a running one, and the result of a finished one is
// reported again.
func (d *drainer) command(want nstance.Drain) {
	if finished := d.accept(want); finished != nil {
		d.report(finished)
	}
}

// accept returns the result of want, if the present job has it already.
func (d *drainer) accept(want nstance.Drain) *apiv1.DrainResult {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch j := d.job; {
	case want.Generation == 0: // a result needs a generation
	case j != nil && j.drain.Generation == want.Generation,
		j != nil && j.eventID != "" && j.drain.Generation == 0 && j.outcome != nstance.OutcomeFailed:
		return j.adopt(want)
	default:
		d.replace(&job{drain: want})
	}
	return nil
}

// adopt makes the job answer for want, and returns the result of one that is done.
func (j *job) adopt(want nstance.Drain) *apiv1.DrainResult {
	j.drain.Generation = want.Generation
	if j.done {
		return j.result()
	}
	if want.Deadline.IsZero() || !j.drain.Deadline.IsZero() && !want.Deadline.Before(j.drain.Deadline) {
		return nil
	}
	j.drain.Deadline = want.Deadline
	if j.deadlineTimer != nil {
		j.deadlineTimer.Reset(time.Until(want.Deadline))
	}
	return nil
}

// fallback runs the hook without a server's command, unless it is running or has
// succeeded.
func (d *drainer) fallback(want nstance.Drain, eventID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.job; d.hook == nil || j != nil && j.outcome != nstance.OutcomeFailed {
		return
	}
	d.log.Warn("no server commands a drain for the notice: running the drain hook without a command", "event_id", eventID, "deadline", want.Deadline)
	d.replace(&job{drain: want, eventID: eventID})
}

// cancel withdraws a server's drain of this generation or an older one.
func (d *drainer) cancel(generation uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.job; j != nil && j.drain.Generation != 0 && j.drain.Generation <= generation {
		d.replace(nil)
	}
}

// withdraw stops the drain that the notice started, unless a server has adopted it.
func (d *drainer) withdraw(eventID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.job; j != nil && j.drain.Generation == 0 && j.eventID == eventID {
		d.replace(nil)
	}
}

// replace stops the present job and starts next, or none if it is nil. Callers
// hold d.mu.
func (d *drainer) replace(next *job) {
	if j := d.job; j != nil && j.stop != nil {
		j.stop()
	}
	d.job = next
	signal(d.changed)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// busy reports whether a drain is under way or about to start.
func (d *drainer) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hook != nil && d.job != nil && !d.job.done
}

// ran reports whether the latest drain has ended.
func (d *drainer) ran() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.job != nil && d.job.done
}

// runJob runs the present job, if it has not been run.
func (d *drainer) runJob(ctx context.Context) {
	j, drain, stopped := d.start(ctx)
	if j == nil {
		return
	}
	defer j.stop()
	outcome, message := nstance.OutcomeFailed, "the agent has no drain hook"
	if d.hook != nil {
		outcome, message = d.hook(stopped, drain)
	}
	if ctx.Err() == nil { // else the agent is stopping, and the hook was killed
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
		j.deadlineTimer = time.AfterFunc(time.Until(j.drain.Deadline), j.stop)
	}
	d.log.Info("drain hook started", "generation", j.drain.Generation, "deadline", j.drain.Deadline)
	return j, j.drain, ctx
}

// finish records the outcome, and reports it unless the job was replaced.
func (d *drainer) finish(j *job, outcome nstance.Outcome, message string) {
	for _, r := range d.end(j, outcome, message) {
		d.report(r)
	}
	signal(d.changed)
}

// end records the outcome, and returns what to report.
func (d *drainer) end(j *job, outcome nstance.Outcome, message string) (results []*apiv1.DrainResult) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j.deadlineTimer != nil {
		j.deadlineTimer.Stop()
	}
	j.done, j.outcome, j.message = true, outcome, message
	d.log.Info("drain hook ended", "generation", j.drain.Generation, "outcome", outcome)
	if d.job != j {
		return nil
	}
	if j.eventID != "" {
		results = append(results, &apiv1.DrainResult{EventId: j.eventID, Outcome: string(j.outcome), Message: wire.Text(j.message)})
	}
	if j.drain.Generation != 0 {
		results = append(results, j.result())
	}
	return results
}

func (j *job) result() *apiv1.DrainResult {
	return &apiv1.DrainResult{Generation: j.drain.Generation, Outcome: string(j.outcome), Message: wire.Text(j.message)}
}
