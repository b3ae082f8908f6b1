package agents

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// rewatchPause is the pause before a watch that has ended begins again.
const rewatchPause = 5 * time.Second

// problemLasts is how long an error of the watch needs attention. A provider yields
// errors more often than that while they last, and nothing when they are over.
const problemLasts = 2 * time.Minute

// A watchProblem is the latest error of the watch for the provider's notices.
type watchProblem struct {
	mu  sync.Mutex
	err error
	at  time.Time
}

// set reports whether the problem is another one than the last, or has come back.
func (p *watchProblem) set(err error, now time.Time) (isNew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	isNew = p.err == nil || p.err.Error() != err.Error() || now.Sub(p.at) > problemLasts
	p.err, p.at = err, now
	return isNew
}

// NoticeProblems returns what operators should see of the provider's notices.
func (a *Agents) NoticeProblems() []string {
	p := &a.watchProblem
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil || a.Now().Sub(p.at) > problemLasts {
		return nil
	}
	return []string{"notices of the provider cannot be read: " + p.err.Error()}
}

// watchProviderNotices passes on the provider's notices of the shard's machines, if
// the provider has any. Until the shard is read, its machines would look like orphans.
func (a *Agents) watchProviderNotices(ctx context.Context) {
	can := a.shard.Abilities().Notices
	if can == nil || a.shard.Await(ctx) != nil {
		return
	}
	for ctx.Err() == nil {
		for n, err := range can.WatchNotices(ctx, a.Owner) {
			if err == nil {
				a.receiveProviderNotice(n)
			} else if ctx.Err() == nil && a.watchProblem.set(err, a.Now()) {
				a.Log.Warn("notices of the provider cannot be read", "code", nstance.CodeOf(err), "err", err)
			}
		}
		sleep.For(ctx, rewatchPause)
	}
}

// receiveProviderNotice passes on what is new about an instance of the shard, within
// the limits for its own agent. One with an acknowledgement is passed on until that is
// given: the provider repeats it. One without is not acknowledged.
func (a *Agents) receiveProviderNotice(n nstance.MachineNotice) {
	ack := n.Ack
	if ack == nil {
		ack = func() {}
	}
	v, err := a.shard.Instance(n.ID)
	if err != nil {
		if errors.Is(err, nstance.NotFound) {
			ack() // its machine is an orphan
		}
		return
	}
	if n.Notice.DetectedAt.IsZero() {
		n.Notice.DetectedAt = a.Now().UTC()
	}
	if n.Ack == nil {
		n.Notice.EventID = EventID(v.Notices, n.Notice)
	}
	state, isNew := a.notices.of(n.ID).receive(n.Notice)
	switch {
	case state == nil: // beyond the limit
	case state.settled.Load():
		ack()
	case isNew || n.Ack != nil:
		a.receiveNotice(n.ID, state, ack)
	}
}

// EventID returns the event ID of a provider's notice, given the notices of the
// instance that are in effect. A provider without a date or ID of the event, such as
// the second maintenance of a node, gives all of them one ID. Unless such a notice is
// in effect, which a new leader knows from the record, this is another event, named
// by the time when it was detected.
func EventID(inEffect []nstance.Notice, n nstance.Notice) string {
	for _, s := range inEffect {
		if s.EventID == n.EventID || strings.HasPrefix(s.EventID, n.EventID+"@") {
			return s.EventID
		}
	}
	if n.Cancelled || !n.Kind.Dooms() || !n.Deadline.IsZero() {
		return n.EventID
	}
	return n.EventID + "@" + n.DetectedAt.UTC().Format("2006-01-02T15:04:05.000Z")
}
