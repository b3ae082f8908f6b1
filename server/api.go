package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server/internal/operators"
)

// newOperators returns what serves the operators' API.
func (s *Server) newOperators() *operators.Service {
	return operators.NewService(operators.Options{
		Ledger:  ledger.NewReader(s.store, s.own.Shard.ID),
		Cluster: s.own.Cluster.ID, Shard: s.own.Shard.ID, Version: version.Software, Config: s.config.InForce, Now: s.opts.Now, Store: s.store, Events: s.events,
		Keys: s.keys, Ring: s.keys.Ring, Issuer: s.keys.Identity.Issuer,
		Announce: interruptingCloud(s.opts, s.provider), InterruptThroughMetadata: s.opts.InterruptThroughMetadata,
		LeaderAddress: s.leaderAddress, Standbys: s.peers.List,
	})
}

// agentService serves nstance.v1.AgentService.
type agentService struct {
	apiv1.UnimplementedAgentServiceServer
}

// Connect implements the RPC.
func (agentService) Connect(stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) error {
	c := callerOf(stream.Context())
	return c.term.agents.Connect(&c.Identity, stream)
}

// RenewCertificate implements the RPC.
func (agentService) RenewCertificate(ctx context.Context, req *apiv1.RenewCertificateRequest) (*apiv1.RenewCertificateResponse, error) {
	c := callerOf(ctx)
	if err := c.term.records.CheckAwake(c.Identity); err != nil {
		return nil, err
	}
	cred, err := c.term.registrar.Renew(ctx, c.Identity, req.GetCsr())
	if err != nil {
		return nil, err
	}
	return &apiv1.RenewCertificateResponse{Credential: wire.Credential(cred)}, nil
}

// An interrupter is a provider that runs the metadata services of its machines
// itself, and has one of them announce that its machine is reclaimed.
type interrupter interface {
	Interrupt(id nstance.InstanceID, action string, after time.Duration) error
}

// interruptingCloud returns what publishes a reclaim on a machine's own metadata service. It
// fails with Conflict where the provider cannot.
func interruptingCloud(opts Options, p nstance.Provider) func(id nstance.InstanceID, after time.Duration) error {
	announce := opts.Announce
	if can, ok := p.(interrupter); ok && announce == nil {
		announce = can.Interrupt
	}
	return func(id nstance.InstanceID, after time.Duration) error {
		if announce == nil {
			return &nstance.Error{
				Code: nstance.Conflict, Field: "through_metadata", Msg: "the provider does not run its machines' metadata services",
				Remedy: "leave it out: the server is then told directly",
			}
		}
		return announce(id, "terminate", after)
	}
}
