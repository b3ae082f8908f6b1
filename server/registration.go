package server

import (
	"context"
	"net"
	"net/netip"

	"google.golang.org/grpc/peer"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// registrationService serves nstance.v1.RegistrationService.
type registrationService struct {
	apiv1.UnimplementedRegistrationServiceServer
	s *Server
}

// RegisterAgent implements the RPC.
func (r registrationService) RegisterAgent(ctx context.Context, req *apiv1.RegisterAgentRequest) (*apiv1.RegisterAgentResponse, error) {
	recovery, err := recoveryOf(ctx, req)
	if err != nil {
		return nil, wire.Status(err)
	}
	c, err := r.register(ctx, nstance.RegistrationRequest{
		Nonce: req.GetNonce(), CSR: req.GetCsr(), Addresses: wire.AddressesOf(req.GetAddresses()), Hostname: req.GetHostname(),
		Recovery: recovery,
	})
	if err != nil {
		return nil, err
	}
	return &apiv1.RegisterAgentResponse{Credential: wire.Credential(c)}, nil
}

// RegisterOperator implements the RPC.
func (r registrationService) RegisterOperator(ctx context.Context, req *apiv1.RegisterOperatorRequest) (*apiv1.RegisterOperatorResponse, error) {
	c, err := r.register(ctx, nstance.RegistrationRequest{Nonce: req.GetNonce(), CSR: req.GetCsr()})
	if err != nil {
		return nil, err
	}
	return &apiv1.RegisterOperatorResponse{Credential: wire.Credential(c)}, nil
}

func (r registrationService) register(ctx context.Context, req nstance.RegistrationRequest) (nstance.Credential, error) {
	t, err := r.s.leading()
	if err != nil {
		return nstance.Credential{}, wire.Status(err)
	}
	req.Source = sourceOf(ctx)
	ctx, cancel := t.bound(ctx)
	defer cancel()
	c, err := t.registrar.Register(ctx, req)
	return c, wire.Status(err)
}

func sourceOf(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
