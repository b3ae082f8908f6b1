package registrar

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// recoveryOf returns what an agent presents instead of a nonce; nil: nothing.
// The binding is computed from this side of the connection, never taken from the peer.
func recoveryOf(ctx context.Context, req *apiv1.RegisterAgentRequest) (*nstance.Recovery, error) {
	if len(req.GetCertificate()) == 0 {
		return nil, nil
	}
	rec := &nstance.Recovery{Certificate: req.GetCertificate()}
	for _, proof := range metadata.ValueFromIncomingContext(ctx, wire.RecoveryProof) {
		rec.Proof = []byte(proof)
	}
	var err error
	rec.Binding, err = pki.ChannelBinding(ports.StateOf(ctx))
	return rec, err
}
