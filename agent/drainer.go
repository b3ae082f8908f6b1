package agent

import (
	"context"
	"log/slog"
	"slices"
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

	replaced chan struct{} // wakes watchUnacknowledged: a job came or was withdrawn
}

// A job is one drain. A job with an event ID was started by the agent itself, because
// no server had acknowledged the notice; the first drain command of a server adopts
// it. Its result is reported without a generation too.
type job struct {
	drain   nstance.Drain
	eventID string // of the notice that started it, or of another one if that was withdrawn; empty: a server's command did
	stop    context.CancelFunc

	// notices are the events of the notices that it answers: those that were due while it
	// ran, and once it has emptied the machine its causes.
	notices []string

	deadlineTimer *time.Timer

	started bool
	done    bool
	outcome nstance.Outcome
	message string
}

func newDrainer(hook hookFunc, report func(*apiv1.DrainResult), log *slog.Logger) *drainer {
	return &drainer{hook: hook, report: report, log: log, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), replaced: make(chan struct{}, 1)}
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
	j.drain.Generation, j.drain.Causes = want.Generation, want.Causes
	if j.done {
		j.answerCauses()
		return j.result()
	}
	j.tighten(want.Deadline)
	return nil
}

// tighten stops the hook at the deadline, if that is earlier than its own.
func (j *job) tighten(deadline time.Time) {
	if deadline.IsZero() || !j.drain.Deadline.IsZero() && !deadline.Before(j.drain.Deadline) {
		return
	}
	j.drain.Deadline = deadline
	if j.deadlineTimer != nil {
		j.deadlineTimer.Reset(time.Until(deadline))
	}
}

// answerCauses makes a job that has emptied the machine answer the notices among its causes.
func (j *job) answerCauses() {
	if j.outcome == nstance.OutcomeFailed {
		return
	}
	for _, c := range j.drain.Causes {
		j.answer(c.EventID)
	}
}

func (j *job) answer(eventID string) {
	if !slices.Contains(j.notices, eventID) {
		j.notices = append(j.notices, eventID)
	}
}

// fallback runs the hook for a notice without a server's command. A hook that runs
// answers the notice too, whatever it runs for.
func (d *drainer) fallback(want nstance.Drain, eventID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := &job{drain: want, eventID: eventID, notices: []string{eventID}}
	switch j := d.job; {
	case j != nil && !j.done:
		j.answer(eventID)
		j.tighten(want.Deadline)
		return
	case j != nil:
		next.notices = append(next.notices, j.notices...)
	}
	d.log.Warn("no server commands a drain for the notice: running the drain hook without a command", "event_id", eventID, "deadline", want.Deadline)
	d.replace(next)
}

// answeredNotices returns the events of the notices that the present job answers.
func (d *drainer) answeredNotices() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.job == nil {
		return nil
	}
	return slices.Clone(d.job.notices)
}

// cancel withdraws a server's drain of this generation or an older one.
func (d *drainer) cancel(generation uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.job; j != nil && j.drain.Generation != 0 && j.drain.Generation <= generation {
		d.replace(nil)
	}
}

// withdraw handles the end of a notice. It stops the agent's own drain, which no server has
// adopted, unless another notice dooms the machine.
func (d *drainer) withdraw(eventID string, doomed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := d.job
	if j == nil {
		return
	}
	j.notices = slices.DeleteFunc(j.notices, func(id string) bool { return id == eventID })
	switch {
	case j.drain.Generation == 0 && !doomed:
		d.replace(nil)
	case j.eventID == eventID && len(j.notices) > 0:
		j.eventID = j.notices[0]
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
	signal(d.replaced)
	signal(d.wake)
}

// busy reports whether a drain is under way or about to start.
func (d *drainer) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hook != nil && d.job != nil && !d.job.done
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
	j.answerCauses()
	return results
}

func (j *job) result() *apiv1.DrainResult {
	return &apiv1.DrainResult{Generation: j.drain.Generation, Outcome: string(j.outcome), Message: wire.Text(j.message)}
}
