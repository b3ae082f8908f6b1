package agent

import (
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// acknowledgeRetry is the pause after a failure to acknowledge an event: its machine is
// being deleted, so that there is no time to lose.
const acknowledgeRetry = time.Second

// An acknowledger is a detector of a cloud that waits for an acknowledgement before it
// begins an event: see spot.Azure.Acknowledge.
type acknowledger interface {
	Acknowledge(ctx context.Context, n nstance.Notice) error
}

// acknowledgeEvents acknowledges the events that a server has released, until ctx ends.
// A conflict is final: the event has ended, or has changed and is a new notice.
func (a *Agent) acknowledgeEvents(ctx context.Context, d acknowledger) {
	done := map[string]bool{}
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.mail.releases:
		case <-retry:
		}
		retry = nil
		for _, n := range a.mail.released() {
			if done[n.EventID] {
				continue
			}
			switch err := d.Acknowledge(ctx, n); {
			case err == nil:
				done[n.EventID] = true
				a.o.Log.Info("event acknowledged: the machine is drained and being deleted", "event_id", n.EventID, "machines", n.Machines)
			case nstance.CodeOf(err) == nstance.Conflict:
				a.o.Log.Warn("event not acknowledged", "event_id", n.EventID, "err", err)
			default:
				a.o.Log.Warn("event not acknowledged, retrying", "event_id", n.EventID, "code", nstance.CodeOf(err), "err", err)
				retry = time.After(acknowledgeRetry)
			}
		}
	}
}

// A release is what a server permits once the machine is drained and being deleted.
type release struct {
	granted bool
	events  []string // that name other machines too, all of which are released
}

// permits reports whether the event of n may be acknowledged.
func (r release) permits(n nstance.Notice) bool {
	return r.granted && (len(n.Machines) == 1 || len(n.Machines) > 1 && slices.Contains(r.events, n.EventID))
}

// release records what a server permits. What it permitted before stays permitted.
func (m *mailbox) release(events []string) {
	m.do(func(o *outbox) { o.release = release{granted: true, events: append(o.release.events, events...)} })
	signal(m.releases)
}

// released returns the standing notices of events that may be acknowledged.
func (m *mailbox) released() (notices []nstance.Notice) {
	m.do(func(o *outbox) {
		for _, n := range o.standing() {
			if o.release.permits(n) {
				notices = append(notices, n)
			}
		}
	})
	return notices
}
