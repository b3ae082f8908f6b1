package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/internal/wire"
)

const (
	// callTimeout bounds one registration or renewal.
	callTimeout = 15 * time.Second
	// smallBuffer is enough for reports of a few hundred bytes; gRPC's default
	// of 32 KiB each way would be most of a session's memory.
	smallBuffer = 4 << 10
	// maxMessage bounds what a server may send in one message, in bytes.
	maxMessage = 1 << 20
	// maxAddresses is what a registration may name.
	maxAddresses = 16
)

// A registrant obtains certificates for one instance.
type registrant struct {
	id          nstance.InstanceID
	identityDir identityDir
	renewals    renewalSchedule
	dial        func(ctx context.Context, addr string) (net.Conn, error)
}

// open prepares a connection, which is made when it is first used. The name
// that the server must prove comes from cfg, not from the address.
func (r *registrant) open(addr string, cfg *tls.Config) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(session.Credentials(cfg)),
		grpc.WithContextDialer(r.dial),
		grpc.WithKeepaliveParams(session.Client()),
		grpc.WithReadBufferSize(smallBuffer),
		grpc.WithWriteBufferSize(smallBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "server address %q: %w", addr, err)
	}
	return conn, nil
}

// register exchanges the nonce for a first certificate and installs it. It is
// idempotent: the key stays the same until it has succeeded. missing says why
// there is no identity, for the error if the nonce has been used.
func (r *registrant) register(ctx context.Context, addr string, missing error) error {
	token, c, err := r.identityDir.nonce()
	if err != nil {
		return err
	}
	if c.Subject != r.id { // it may be that of the image, until user data is written
		return &noUserData{nstance.FieldError(envInstanceID, "use the nonce and the ID of the same machine", "the nonce is for %s, not for %s", c.Subject, r.id)}
	}
	if r.identityDir.nonceUsed(token) {
		return fmt.Errorf("the nonce has been used, put a new one into %s: %w", r.identityDir.userDataPath(fileNonce), missing)
	}
	key, csr, err := r.request()
	if err != nil {
		return err
	}
	credential, err := r.exchange(ctx, addr, c, &apiv1.RegisterAgentRequest{
		Nonce: token, Csr: csr, Addresses: wire.Addresses(localAddresses()), Hostname: wire.Text(hostname()),
	})
	if err != nil {
		return err
	}
	if err := r.identityDir.saveClaims(c); err != nil {
		return err
	}
	if err := r.accept(key, credential); err != nil {
		return err
	}
	return r.identityDir.markNonceUsed(token)
}

// exchange calls the server that the nonce names. The authorities in user data
// must have signed its certificate.
func (r *registrant) exchange(ctx context.Context, addr string, c claims, req *apiv1.RegisterAgentRequest) (nstance.Credential, error) {
	roots, err := r.identityDir.registrationRoots()
	if err != nil {
		return nstance.Credential{}, err
	}
	return r.call(ctx, addr, pki.ClientTLS(roots, nil, c.Shard, c.Cluster), req)
}

// call makes one call for a certificate, on a connection of its own.
func (r *registrant) call(ctx context.Context, addr string, cfg *tls.Config, req *apiv1.RegisterAgentRequest, opts ...grpc.CallOption) (nstance.Credential, error) {
	conn, err := r.open(addr, cfg)
	if err != nil {
		return nstance.Credential{}, err
	}
	defer conn.Close() // the call has ended: an error changes nothing
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(ctx, req, opts...)
	if err != nil {
		return nstance.Credential{}, fmt.Errorf("register at %s: %w", addr, wire.ErrorOf(err))
	}
	return wire.CredentialOf(resp.GetCredential()), nil
}

// renew exchanges the certificate in use, with which conn authenticates, for its
// successor and installs it.
func (r *registrant) renew(ctx context.Context, conn grpc.ClientConnInterface) error {
	key, csr, err := r.request()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := apiv1.NewAgentServiceClient(conn).RenewCertificate(ctx, &apiv1.RenewCertificateRequest{Csr: csr})
	if err != nil {
		return fmt.Errorf("renew certificate: %w", wire.ErrorOf(err))
	}
	return r.accept(key, wire.CredentialOf(resp.GetCredential()))
}

func (r *registrant) request() (key ed25519.PrivateKey, csr []byte, err error) {
	if key, err = r.identityDir.nextKey(); err != nil {
		return nil, nil, err
	}
	csr, err = pki.NewCSR(key, string(r.id))
	return key, csr, err
}

// accept installs a certificate that is for this key and this instance.
func (r *registrant) accept(key ed25519.PrivateKey, c nstance.Credential) error {
	var chain []*x509.Certificate
	for _, der := range c.Chain {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nstance.Errorf(nstance.Internal, "the server sent a malformed certificate: %w", err)
		}
		chain = append(chain, cert)
	}
	if _, err := pki.Pair(key, chain...); err != nil {
		return fmt.Errorf("the server sent an unusable certificate: %w", err)
	}
	certified, err := pki.IdentityOf(chain[0])
	if err != nil {
		return fmt.Errorf("the server sent an unusable certificate: %w", err)
	}
	if certified.Subject != string(r.id) || certified.Role != nstance.RoleAgent {
		return nstance.Errorf(nstance.Internal, "the server sent a certificate for %s %q", certified.Role, certified.Subject)
	}
	if err := r.identityDir.install(c); err != nil {
		return err
	}
	r.renewals.recordReceived()
	return nil
}

// hostname returns the machine's name for display, or "" if it has none.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// localAddresses returns the addresses of the machine's interfaces. The server
// prefers those that the provider reports.
func localAddresses() []netip.Addr {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, a := range found {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().IsGlobalUnicast() && len(out) < maxAddresses {
			out = append(out, prefix.Addr())
		}
	}
	return out
}
