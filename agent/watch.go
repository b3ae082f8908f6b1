package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/spot"
)

const (
	// watchAgain is the pause before a watch that ended by itself, which none
	// should, is started again.
	watchAgain = time.Second
	// noService is the longest pause between looks for a metadata service.
	noService = time.Minute
)

// watch looks for the cloud's notices, spot machine or not, until ctx ends.
func (a *Agent) watch(ctx context.Context) error {
	d := a.o.Detector
	if d == nil {
		d = a.detect(ctx)
	}
	if d == nil {
		return nil // ctx ended first
	}
	due := func() time.Time { return time.Time{} }
	if p, ok := d.(interface{ Due() time.Time }); ok {
		due = p.Due
	}
	for {
		a.notices.follow(due)
		for n, err := range d.Watch(ctx) {
			a.notices.beat(attemptLimit)
			a.watched(n, err)
			a.notices.follow(due)
		}
		if !a.notices.sleep(ctx, watchAgain) {
			return nil
		}
		a.o.Log.Error("detector gave up, watching again", "detector", fmt.Sprintf("%T", d))
	}
}

func (a *Agent) watched(n nstance.Notice, err error) {
	if err != nil {
		a.o.Log.Warn("metadata service", "code", nstance.CodeOf(err), "err", err)
		return
	}
	a.notice(n)
}

func (a *Agent) notice(n nstance.Notice) {
	n.EventID, n.Action, n.Source = clean(n.EventID), clean(n.Action), clean(n.Source)
	if !a.mail.observe(n) {
		return
	}
	a.o.Log.Warn("notice", "kind", n.Kind, "action", n.Action, "event_id", n.EventID, "deadline", n.Deadline, "cancelled", n.Cancelled)
	if n.Cancelled {
		a.drains.withdraw(n.EventID)
	}
}

// detect finds the detector for this machine, however long that takes: the
// network may not be up yet.
func (a *Agent) detect(ctx context.Context) nstance.SpotDetector {
	for failures := 0; ctx.Err() == nil; failures++ {
		a.notices.beat(attemptLimit)
		d, err := spot.Detect(ctx, &spot.DetectOptions{
			Options:  spot.Options{BaseURL: a.o.MetadataURL, PollInterval: a.o.SpotPollInterval, Log: a.o.Log, Now: a.o.Now},
			Provider: a.o.Provider,
		})
		if err == nil {
			return d
		}
		if failures == 0 && ctx.Err() == nil {
			a.o.Log.Warn("no metadata service yet: no warning of a reclaim", "code", nstance.CodeOf(err), "err", err)
		}
		a.notices.sleep(ctx, backoff(failures, noService))
	}
	return nil
}

// drainAlone empties the machine without a server's word.
func (a *Agent) drainAlone(n nstance.Notice, left time.Duration) {
	now := time.Now().UTC()
	a.drains.fallback(nstance.Drain{
		Instance: a.o.InstanceID, StartedAt: now, Deadline: now.Add(left), Executor: nstance.ExecutorAgent,
		Causes: []nstance.Cause{{Kind: nstance.CauseNotice, EventID: n.EventID, Message: string(n.Kind)}},
	}, n.EventID)
}

// shortestWarning is what a notice without a deadline leaves, and one whose
// deadline is past although the machine runs: no supported cloud gives less
// (GCP: Compute Engine documentation, "Preemption process").
const shortestWarning = 30 * time.Second

// timeAlone returns how long such a drain may take: a margin less than what the
// cloud leaves, the same as the server's.
func timeAlone(n nstance.Notice, now time.Time) time.Duration {
	left := shortestWarning
	if n.Deadline.After(now) {
		left = n.Deadline.Sub(now)
	}
	return left - min(10*time.Second, left/3)
}
