package server

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
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
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// providerNoticed passes on what is new about an instance of the shard, under the
// bounds that its own agent has. Nothing waits for an acknowledgement: the
// provider tells again.
func (t *term) providerNoticed(n nstance.MachineNotice) {
	if _, err := t.reconciler.Instance(n.ID); err != nil {
		return // its machine has no record: an orphan
	}
	if n.Notice.DetectedAt.IsZero() {
		n.Notice.DetectedAt = t.server.opts.Now().UTC()
	}
	if t.claims.of(n.ID).news(n.Notice) {
		t.noticed(n.ID, n.Notice, nil)
	}
}
