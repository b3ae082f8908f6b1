package operators

import (
	"cmp"
	"context"
	"time"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/reconcile"
)

const (
	// defaultClaim is how long a claim stands that does not say.
	defaultClaim = time.Hour
	// longestNode is the length of the name of a node in bytes: a DNS subdomain.
	longestNode = 253
)

// ClaimStandby implements the RPC.
func (o *Service) ClaimStandby(ctx context.Context, req *apiv1.ClaimStandbyRequest) (*apiv1.ClaimStandbyResponse, error) {
	c := callerOf(ctx)
	key, err := c.groupKey(req.GetTenant(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	stands, known, err := c.term.Reconciler.ClaimStandby(ctx, key, reconcile.Claim{
		Node: clip.Text(req.GetNode(), longestNode), EventID: clip.Text(req.GetEventId(), longestReason), Reason: clip.Text(req.GetReason(), longestReason),
		Until: o.Now().Add(cmp.Or(req.GetDuration().AsDuration(), defaultClaim)),
	})
	if err != nil {
		return nil, err
	}
	g, err := c.term.Reconciler.Group(key)
	return &apiv1.ClaimStandbyResponse{Claim: claimMessage(stands), Unchanged: known, Parked: int32(g.Parked)}, err
}

// ReleaseStandby implements the RPC.
func (*Service) ReleaseStandby(ctx context.Context, req *apiv1.ReleaseStandbyRequest) (*apiv1.ReleaseStandbyResponse, error) {
	c := callerOf(ctx)
	key, err := c.groupKey(req.GetTenant(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	known, err := c.term.Reconciler.ReleaseStandby(ctx, key, req.GetNode())
	return &apiv1.ReleaseStandbyResponse{Unchanged: !known}, err
}
