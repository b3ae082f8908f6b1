package server

import (
	"context"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// watchAgain is the pause before a watch that has ended by itself is begun again.
const watchAgain = 5 * time.Second

// watchNotices passes on the notices that the provider has of the shard's
// machines, where it has any.
func (t *term) watchNotices(ctx context.Context) {
	can := t.reconciler.Abilities().Notices
	if can == nil {
		return
	}
	owner := nstance.Owner{Installation: t.server.keys.Installation, Cluster: t.conf.Cluster.ID, Shard: t.conf.Shard.ID}
	for ctx.Err() == nil {
		for n, err := range can.WatchNotices(ctx, owner) {
			if err == nil {
				t.providerNoticed(n)
			} else if ctx.Err() == nil {
				t.log.Warn("notices of the provider", "code", nstance.CodeOf(err), "err", err)
			}
		}
		sleep.For(ctx, watchAgain)
	}
}

// providerNoticed passes on what is new about an instance of the shard, under the
// bounds that its own agent has. Nothing waits for an acknowledgement: the
// provider tells again.
func (t *term) providerNoticed(n nstance.MachineNotice) {
	v, err := t.reconciler.Instance(n.ID)
	if err != nil {
		return // its machine has no record: an orphan
	}
	if n.Notice.DetectedAt.IsZero() {
		n.Notice.DetectedAt = t.server.opts.Now().UTC()
	}
	n.Notice.EventID = eventID(v.Notices, n.Notice)
	if t.claims.of(n.ID).news(n.Notice) {
		t.noticed(n.ID, n.Notice, nil)
	}
}

// eventID returns the event ID of a provider's notice. A provider that knows
// neither a date nor an ID of the event, such as the second maintenance of a node,
// gives all of them one ID: unless such a notice stands, which a new leader knows
// from the record, this is another event, from the time when it was detected.
func eventID(standing []nstance.Notice, n nstance.Notice) string {
	for _, s := range standing {
		if s.EventID == n.EventID || strings.HasPrefix(s.EventID, n.EventID+"@") {
			return s.EventID
		}
	}
	if n.Cancelled || !n.Kind.Dooms() || !n.Deadline.IsZero() {
		return n.EventID
	}
	return n.EventID + "@" + n.DetectedAt.UTC().Format("2006-01-02T15:04:05.000Z")
}
