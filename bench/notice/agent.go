package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/wire"
)

// An agent is a session and nothing else, so that a thousand of them leave the
// machine to the server.
type agent struct {
	id     nstance.InstanceID
	conn   *grpc.ClientConn
	stream grpc.BidiStreamingClient[apiv1.ConnectRequest, apiv1.ConnectResponse]
	number uint64
}

func newAgent(ctx context.Context, r *rig.Rig, n int, id nstance.InstanceID, cert *tls.Certificate) (*agent, error) {
	conn, err := r.Dial(r.Server.Addresses().Agent, n, cert)
	if err != nil {
		return nil, err
	}
	stream, err := apiv1.NewAgentServiceClient(conn).Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", wire.ErrorOf(err))
	}
	a := &agent{id: id, conn: conn, stream: stream}
	if m, err := stream.Recv(); err != nil || m.GetWelcome() == nil {
		return nil, fmt.Errorf("no welcome: %w", wire.ErrorOf(err))
	}
	return a, a.report()
}

// report sends a healthy report, and returns when it is acknowledged.
func (a *agent) report() error {
	a.number++
	err := a.stream.Send(&apiv1.ConnectRequest{Number: a.number, Message: &apiv1.ConnectRequest_Report{
		Report: &apiv1.HealthReport{Version: wire.ReportVersion, CpuUsage: 10, MemoryUsage: 20},
	}})
	for err == nil {
		var m *apiv1.ConnectResponse
		if m, err = a.stream.Recv(); m.GetAcknowledgement().GetReport() == a.number {
			return nil
		}
	}
	return fmt.Errorf("report: %w", wire.ErrorOf(err))
}

// notice reports that the machine will be reclaimed.
func (a *agent) notice() error {
	a.number++
	now := time.Now().UTC()
	n := wire.NoticeAt(nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Deadline: now.Add(2 * time.Minute), Source: "bench/spot", EventID: "e1", DetectedAt: now,
	}, now)
	return a.stream.Send(&apiv1.ConnectRequest{Number: a.number, Message: &apiv1.ConnectRequest_Notices{
		Notices: &apiv1.StandingNotices{Revision: 1, Notices: []*apiv1.Notice{n}},
	}})
}
