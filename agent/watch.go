package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/spot"
)

const (
	// watchRestartPause is the pause before a watch that ended by itself, which
	// is a bug, is started again.
	watchRestartPause = time.Second
	// maxDetectBackoff is the longest pause between probes for a metadata service.
	maxDetectBackoff = time.Minute
)

// A resumer is a detector whose next watch continues with notices that an earlier one
// yielded: see spot.AWS.Resume.
type resumer interface {
	Resume(standing []nstance.Notice)
}

// resume gives the next watch the standing notices. A detector that cannot continue
// with them, and was not given as an option, is for machines without a metadata
// service: nothing stands there.
func (a *Agent) resume(d nstance.SpotDetector) {
	standing := a.mail.standing()
	if r, can := d.(resumer); can {
		r.Resume(standing)
		return
	}
	if a.o.Detector != nil {
		return
	}
	for _, n := range standing {
		n.Cancelled = true
		a.handleNotice(n)
	}
}

// watch watches for the cloud's notices, on spot machines and others, until ctx
// ends.
func (a *Agent) watch(ctx context.Context) error {
	d := a.o.Detector
	if d == nil {
		d = a.detect(ctx)
	}
	if d == nil {
		return nil // ctx ended first
	}
	var workers sync.WaitGroup
	defer workers.Wait() // until ctx ends, as this function
	workers.Go(func() { a.machine.learn(ctx, d) })
	if acks, can := d.(acknowledger); can {
		workers.Go(func() { a.acknowledgeEvents(ctx, acks) })
	}
	a.metadata.set(d, nil, time.Now())
	due := func() time.Time { return time.Time{} }
	if p, ok := d.(interface{ Due() time.Time }); ok {
		due = p.Due
	}
	for {
		a.watchProgress.setDue(due)
		a.resume(d)
		for n, err := range d.Watch(ctx) {
			a.watchProgress.heartbeat(attemptLimit)
			a.handleWatchItem(n, err)
			a.watchProgress.setDue(due)
		}
		if !a.watchProgress.sleep(ctx, watchRestartPause) {
			return nil
		}
		a.o.Log.Error("watch of the metadata service ended without a reason, restarting it", "detector", fmt.Sprintf("%T", d))
	}
}

func (a *Agent) handleWatchItem(n nstance.Notice, err error) {
	if err != nil {
		a.o.Log.Warn("metadata service cannot be read: notices may be missed", "code", nstance.CodeOf(err), "err", err)
		return
	}
	a.handleNotice(n)
}

func (a *Agent) handleNotice(n nstance.Notice) {
	n.EventID, n.Action, n.Source = wire.Printable(n.EventID), wire.Printable(n.Action), wire.Printable(n.Source)
	if n.EventID == "" { // a server refuses it
		n.EventID = wire.Printable(n.Source + "/" + string(n.Kind))
	}
	if !a.mail.observe(n) {
		return
	}
	a.o.Log.Warn("notice detected", "kind", n.Kind, "action", n.Action, "event_id", n.EventID, "deadline", n.Deadline, "cancelled", n.Cancelled)
	if n.Cancelled {
		a.drains.withdraw(n.EventID, a.mail.dooms())
	}
}

// metadataGrace is how long the metadata service may be unreadable before that is reported:
// the network comes up, and Azure takes up to two minutes to enable its events.
const metadataGrace = 2 * time.Minute

// metadataProblem is why the metadata service cannot be read, while no detector says so.
type metadataProblem struct {
	mu       sync.Mutex
	since    time.Time
	err      error
	detector nstance.SpotDetector // that was found; nil: none yet
}

func (p *metadataProblem) set(d nstance.SpotDetector, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.since = now
	}
	p.detector, p.err = d, err
}

// text returns what to report; empty: the metadata service can be read, or it cannot since
// a moment ago.
func (p *metadataProblem) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, err := p.since, p.err
	if d, can := p.detector.(interface {
		Unreadable() (since time.Time, err error)
	}); can && err == nil {
		since, err = d.Unreadable()
	}
	if err == nil || time.Since(since) < metadataGrace {
		return ""
	}
	return wire.Text(err.Error())
}

// detect probes for the metadata service until one answers or ctx ends: the network
// may not be up yet.
func (a *Agent) detect(ctx context.Context) nstance.SpotDetector {
	for failures := 0; ctx.Err() == nil; failures++ {
		a.watchProgress.heartbeat(attemptLimit)
		d, err := spot.Detect(ctx, &spot.DetectOptions{
			Options:  spot.Options{BaseURL: a.o.MetadataURL, PollInterval: a.o.SpotPollInterval, Log: a.o.Log, Now: a.o.Now, AzureEventsVersion: a.o.AzureEventsVersion},
			Provider: a.o.Provider,
		})
		if err == nil {
			return d
		}
		if errors.Is(err, nstance.NotFound) {
			err = &nstance.Error{Code: nstance.NotFound, Msg: err.Error(), Remedy: "permit this program to reach it, or set " + envProvider + "=none where there is none", Err: err}
		}
		a.metadata.set(nil, err, time.Now())
		a.machine.settle("")
		if failures == 0 && ctx.Err() == nil {
			a.o.Log.Warn("no metadata service answers: a reclaim comes without notice until one does", "code", nstance.CodeOf(err), "err", err)
		}
		a.watchProgress.sleep(ctx, backoff(failures, maxDetectBackoff))
	}
	return nil
}

// watchUnacknowledged starts the drain hook for each notice that dooms the machine and that
// no server has acknowledged in time, or that no server is connected with any more, until
// ctx ends.
func (a *Agent) watchUnacknowledged(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var (
			due  *dueNotice
			wait time.Duration
		)
		answered := a.drains.answeredNotices()
		a.mail.do(func(o *outbox) { due, wait = o.overdue(a.mail.now(), answered) })
		if due != nil {
			a.drainWithoutServer(*due)
			continue
		}
		timer.Reset(wait)
		if wait == 0 {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-a.mail.noticed:
		case <-a.drains.replaced:
		case <-timer.C:
		}
	}
}

// drainWithoutServer starts the drain hook without a server's command.
func (a *Agent) drainWithoutServer(n dueNotice) {
	now := time.Now().UTC()
	a.drains.fallback(nstance.Drain{
		Instance: a.o.InstanceID, StartedAt: now, Deadline: now.Add(n.left), Executor: nstance.ExecutorAgent,
		Causes: []nstance.Cause{{Kind: nstance.CauseNotice, EventID: n.EventID, Message: string(n.Kind)}},
	}, n.EventID)
	if !a.mail.stands(n.EventID) { // withdrawn since it was due
		a.drains.withdraw(n.EventID, a.mail.dooms())
	}
}

// fallbackTime returns how long such a drain may take, as the server would plan it.
// Whatever its kind, a notice without a deadline leaves the shortest time that any
// cloud does.
func fallbackTime(n nstance.Notice, now time.Time) time.Duration {
	n.Kind, n.ReceivedAt = nstance.Reclaim, now
	return n.DrainBy(now).Sub(now)
}
