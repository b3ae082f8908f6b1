package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/server/internal/groups"
	"github.com/nstance-go/nstance/server/internal/operators"
)

// newOperators returns what serves the operators' API.
func (s *Server) newOperators() *operators.Service {
	return operators.NewService(operators.Options{
		Cluster: s.own.Cluster.ID, Shard: s.own.Shard.ID, Version: Version, Config: s.config, Now: s.opts.Now, Store: s.store, Events: s.cache,
		Keys: s.keys, Ring: s.keys.Ring, Issuer: s.keys.Identity.Issuer,
		Announce: s.announce, InterruptThroughMetadata: s.opts.InterruptThroughMetadata,
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
	return c.term.agents.Connect(c.Identity, stream)
}

// RenewCertificate implements the RPC.
func (agentService) RenewCertificate(ctx context.Context, req *apiv1.RenewCertificateRequest) (*apiv1.RenewCertificateResponse, error) {
	c := callerOf(ctx)
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

// announce publishes a reclaim on a machine's own metadata service. Fails with
// Conflict where the provider cannot.
func (s *Server) announce(id nstance.InstanceID, after time.Duration) error {
	if s.opts.Announce != nil {
		return s.opts.Announce(id, "terminate", after)
	}
	can, ok := s.provider.(interrupter)
	if !ok {
		return &nstance.Error{
			Code: nstance.Conflict, Field: "through_metadata", Msg: "the provider does not run its machines' metadata services",
			Remedy: "leave it out: the server is then told directly",
		}
	}
	return can.Interrupt(id, "terminate", after)
}

// configurations implements operators.Configurations.
type configurations struct {
	s *Server
	t *term
}

// Status implements operators.Configurations.
func (c configurations) Status() operators.ConfigStatus {
	held := c.t.accepts.waiting()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := operators.ConfigStatus{Digest: c.s.conf.Digest(), LoadedAt: c.s.confAt, RefusedAt: c.s.refused.at, Refusal: c.s.refused.err}
	if held != nil {
		out.HeldDigest, out.HeldAt, out.HeldReason = held.Digest, held.At, held.Reason
	}
	return out
}

// InForce implements operators.Configurations.
func (c configurations) InForce() (name, digest string, data []byte) {
	p := c.s.proposed()
	return p.Name, p.Digest, p.Data
}

// Parse implements operators.Configurations.
func (c configurations) Parse(ctx context.Context, data []byte) (conf *config.Config, err error) {
	if len(data) > 0 {
		conf, err = config.ParseContext(ctx, "proposed configuration", data, c.s.opts.Kinds...)
	} else {
		conf, _, err = c.s.read(ctx)
	}
	if err == nil {
		err = errors.Join(c.s.permitted(conf), groups.CheckAbilities(conf, provider.AbilitiesOf(c.s.provider)))
	}
	return conf, err
}

// Excess implements operators.Configurations.
func (c configurations) Excess(conf *config.Config) (string, error) { return c.t.accepts.excess(conf) }

// Refresh implements operators.Configurations.
func (c configurations) Refresh(ctx context.Context, why string) (changed bool, err error) {
	return c.s.refresh(ctx, why)
}

// Confirm implements operators.Configurations.
func (c configurations) Confirm(ctx context.Context, digest, why string, dryRun bool) error {
	return c.s.confirm(ctx, c.t, digest, why, dryRun)
}
