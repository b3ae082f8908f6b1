package gcp

import (
	"context"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// The waits between two looks at an operation.
const (
	firstPoll = 200 * time.Millisecond
	lastPoll  = 2 * time.Second
)

// wait returns when an operation of the zone is done, with why it failed. That
// a look failed says nothing about the operation: the next one may succeed.
func (p *Provider) wait(ctx context.Context, zone string, op *computepb.Operation) error {
	for pause := firstPoll; op.GetStatus() != computepb.Operation_DONE; pause = min(pause*2, lastPoll) {
		if !sleep.For(ctx, pause) {
			return nstance.Errorf(nstance.Ambiguous, "operation %s is not done: %w", op.GetName(), ctx.Err())
		}
		now, err := p.operations.Get(ctx, &computepb.GetZoneOperationRequest{Project: p.o.Project, Zone: zone, Operation: op.GetName()})
		if err != nil && nstance.CodeOf(classify(err, "", false)) == nstance.Denied {
			return classify(err, "", false)
		}
		if err == nil {
			op = now
		}
	}
	return failure(op)
}
