package operators

import (
	"context"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
)

// AcknowledgeAttention implements the RPC.
func (o *Service) AcknowledgeAttention(ctx context.Context, req *apiv1.AcknowledgeAttentionRequest) (*apiv1.AcknowledgeAttentionResponse, error) {
	c, now := callerOf(ctx), o.Now().UTC()
	stands, changed, err := c.term.Acknowledgements.Put(ctx, attention.Acknowledgement{
		Kind: reconcile.AttentionKind(req.GetKind()), Subject: req.GetSubject(), At: now, Until: now.Add(req.GetDuration().AsDuration()),
		By: c.Subject, Reason: clip.Line(clip.Text(req.GetReason(), longestReason)),
	}, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	return &apiv1.AcknowledgeAttentionResponse{
		Subject: stands.Subject, Acknowledged: acknowledgementMessage(stands), Entries: int32(stands.Entries), Unchanged: !changed,
	}, nil
}

// UnacknowledgeAttention implements the RPC.
func (*Service) UnacknowledgeAttention(ctx context.Context, req *apiv1.UnacknowledgeAttentionRequest) (*apiv1.UnacknowledgeAttentionResponse, error) {
	subject, removed, err := callerOf(ctx).term.Acknowledgements.Remove(ctx, reconcile.AttentionKind(req.GetKind()), req.GetSubject(), req.GetDryRun())
	if err != nil {
		return nil, err
	}
	return &apiv1.UnacknowledgeAttentionResponse{Subject: subject, Unchanged: !removed}, nil
}

func acknowledgementMessage(a attention.Acknowledgement) *apiv1.AttentionAcknowledgement {
	return &apiv1.AttentionAcknowledgement{By: a.By, Reason: clip.Text(a.Reason, longestReason), At: wire.Time(a.At), Until: wire.Time(a.Until)}
}
