package server

import (
	"context"

	"github.com/nstance-go/nstance"
)

// sendStandingNotices sends webhooks the notices that the records have from earlier terms:
// the reconciler publishes only new ones, and messages that waited when their leader stopped
// are lost.
func (t *term) sendStandingNotices(ctx context.Context) {
	if t.reconciler.Await(ctx) != nil {
		return
	}
	var standing []nstance.Event
	for _, rec := range t.reconciler.LivingRecords() {
		if rec.Deleting != nil {
			continue
		}
		for _, n := range rec.Notices {
			standing = append(standing, nstance.Event{
				Type: nstance.EventNoticeReceived, Time: t.server.opts.Now().UTC(), Tenant: rec.Tenant, Group: rec.Group, Instance: rec.ID, Notice: &n,
				Reason: "stood when this leader began",
			})
		}
	}
	t.webhooks.Standing(standing)
}
