package agents

import (
	"context"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// rewatchPause is the pause before a watch that has ended begins again.
const rewatchPause = 5 * time.Second

// watchProviderNotices passes on the provider's notices of the shard's machines, if
// the provider has any.
func (a *Agents) watchProviderNotices(ctx context.Context) {
	can := a.shard.Abilities().Notices
	if can == nil {
		return
	}
	for ctx.Err() == nil {
		for n, err := range can.WatchNotices(ctx, a.Owner) {
			if err == nil {
				a.receiveProviderNotice(n)
			} else if ctx.Err() == nil {
				a.Log.Warn("notices of the provider cannot be read", "code", nstance.CodeOf(err), "err", err)
			}
		}
		sleep.For(ctx, rewatchPause)
	}
}

// receiveProviderNotice passes on what is new about an instance of the shard, within
// the limits for its own agent. It is not acknowledged: the provider repeats it.
func (a *Agents) receiveProviderNotice(n nstance.MachineNotice) {
	v, err := a.shard.Instance(n.ID)
	if err != nil {
		return // its machine has no record: an orphan
	}
	if n.Notice.DetectedAt.IsZero() {
		n.Notice.DetectedAt = a.Now().UTC()
	}
	n.Notice.EventID = EventID(v.Notices, n.Notice)
	if _, isNew := a.notices.of(n.ID).receive(n.Notice); isNew {
		a.ReceiveNotice(n.ID, n.Notice, nil)
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
