package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
)

// alertExpired is the TLS alert certificate_expired, RFC 8446 §6.2.
const alertExpired = tls.AlertError(45)

// isExpiredAlert reports whether a server refused the certificate as expired. gRPC
// keeps only the text of a handshake error.
func isExpiredAlert(err error) bool {
	return err != nil && strings.Contains(err.Error(), alertExpired.Error())
}

// recover exchanges an expired identity for its successor and installs it. It is
// idempotent: the key stays the same until it has succeeded.
func (r *registrant) recover(ctx context.Context, addr string, id *identity) error {
	old, ok := id.pair.PrivateKey.(ed25519.PrivateKey)
	if !ok {
		return nstance.Errorf(nstance.Internal, "the identity's key is a %T", id.pair.PrivateKey)
	}
	key, csr, err := r.request()
	if err != nil {
		return err
	}
	c, err := r.call(ctx, addr, pki.ClientTLS(id.roots, nil, id.Shard, id.Cluster), &apiv1.RegisterAgentRequest{
		Certificate: id.pair.Certificate[0], Csr: csr, Addresses: wire.Addresses(localAddresses()), Hostname: wire.Text(hostname()),
	}, grpc.PerRPCCredentials(possession{old, csr}))
	if err != nil {
		return err
	}
	// Installing an expired certificate would start the next recovery at once.
	if !time.Now().Before(c.NotAfter) {
		return nstance.Errorf(nstance.Invalid, "the new certificate expired at %v already: set the machine's clock", c.NotAfter)
	}
	return r.accept(key, c)
}

// possession proves, on the connection that gRPC chose for a call, that the caller
// holds the key of its expired certificate.
type possession struct {
	key ed25519.PrivateKey
	csr []byte
}

// GetRequestMetadata implements credentials.PerRPCCredentials. gRPC calls it
// when the call has been given a connection.
func (p possession) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	call, _ := credentials.RequestInfoFromContext(ctx)
	info, ok := call.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil, errors.New("the connection has no TLS state")
	}
	binding, err := pki.ChannelBinding(info.State)
	if err != nil {
		return nil, fmt.Errorf("prove possession of the key: %w", err)
	}
	return map[string]string{wire.RecoveryProof: string(pki.ProveRecovery(p.key, binding, p.csr))}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (possession) RequireTransportSecurity() bool { return true }
