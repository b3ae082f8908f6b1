package registrar

import (
	"context"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// A Service serves nstance.v1.RegistrationService. Register registers with the
// present term; it fails with Unavailable on a server that does not lead.
type Service struct {
	apiv1.UnimplementedRegistrationServiceServer
	Register func(ctx context.Context, req nstance.RegistrationRequest) (nstance.Credential, error)
}

// RegisterAgent implements the RPC.
func (s Service) RegisterAgent(ctx context.Context, req *apiv1.RegisterAgentRequest) (*apiv1.RegisterAgentResponse, error) {
	recovery, err := recoveryOf(ctx, req)
	if err != nil {
		return nil, wire.Status(err)
	}
	c, err := s.register(ctx, nstance.RegistrationRequest{
		Nonce: req.GetNonce(), CSR: req.GetCsr(), Addresses: wire.AddressesOf(req.GetAddresses()), Hostname: req.GetHostname(),
		Recovery: recovery,
	})
	if err != nil {
		return nil, err
	}
	return &apiv1.RegisterAgentResponse{Credential: wire.Credential(c)}, nil
}

// RegisterOperator implements the RPC.
func (s Service) RegisterOperator(ctx context.Context, req *apiv1.RegisterOperatorRequest) (*apiv1.RegisterOperatorResponse, error) {
	c, err := s.register(ctx, nstance.RegistrationRequest{Nonce: req.GetNonce(), CSR: req.GetCsr()})
	if err != nil {
		return nil, err
	}
	return &apiv1.RegisterOperatorResponse{Credential: wire.Credential(c)}, nil
}

func (s Service) register(ctx context.Context, req nstance.RegistrationRequest) (nstance.Credential, error) {
	req.Source = ports.SourceOf(ctx)
	c, err := s.Register(ctx, req)
	return c, wire.Status(err)
}
