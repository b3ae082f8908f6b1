package main

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/wire"
)

// An agent is a session and nothing else, so that a thousand of them leave the
// machine to the server.
type agent struct {
	*rig.Session
	id nstance.InstanceID
}

func newAgent(ctx context.Context, r *rig.Rig, n int, id nstance.InstanceID, cert *tls.Certificate) (*agent, error) {
	s, err := r.Connect(ctx, n, cert)
	return &agent{s, id}, err
}

// notice reports that the machine will be reclaimed.
func (a *agent) notice() error {
	now := time.Now().UTC()
	n := wire.NoticeAt(nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Deadline: now.Add(2 * time.Minute), Source: "bench/spot", EventID: "e1", DetectedAt: now,
	}, now)
	return a.Send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Notices{
		Notices: &apiv1.StandingNotices{Revision: 1, Notices: []*apiv1.Notice{n}},
	}})
}
