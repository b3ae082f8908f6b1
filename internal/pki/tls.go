package pki

import (
	"crypto/tls"
	"crypto/x509"
	"slices"

	"github.com/nstance-go/nstance"
)

// ClientTLS returns how a client connects to the server of a shard. It accepts
// a server only by its chain to roots, use for servers, role server and the
// name ServerName(shard, cluster), whatever address was dialled. The client
// shows cert; nil shows none, for registration. Nil roots trust no peer.
func ClientTLS(roots *x509.CertPool, cert *tls.Certificate, shard nstance.ShardID, cluster nstance.ClusterID) *tls.Config {
	if roots == nil {
		roots = x509.NewCertPool() // crypto/tls would take nil for the system's roots
	}
	cfg := &tls.Config{
		MinVersion:       tls.VersionTLS13,
		RootCAs:          roots,
		ServerName:       ServerName(shard, cluster),
		VerifyConnection: permit(nstance.RoleServer),
	}
	if cert != nil {
		// Answering even when the server's list of authorities does not name
		// ours makes the refusal visible there, instead of "no certificate".
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	return cfg
}

// ServerTLS returns how a listener accepts agents or operators: only
// with a certificate for client use that chains to clients and states one of
// permitted. cert is asked at each handshake, so that a renewed certificate
// takes effect at once; it must be safe for concurrent use. Liveness and serial
// are the caller's to check afterwards, with IdentityOf the first peer
// certificate. There are no session tickets: a resumed session would outlive
// the check of the chain.
func ServerTLS(cert func() (*tls.Certificate, error), clients *x509.CertPool, permitted ...nstance.Role) *tls.Config {
	if clients == nil {
		clients = x509.NewCertPool()
	}
	cfg := RegistrationTLS(cert)
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	cfg.ClientCAs = clients
	cfg.VerifyConnection = permit(permitted...)
	return cfg
}

// PeerTLS returns how a server accepts the other servers of its shard: as
// ServerTLS does, with role server, and by the name ServerName(shard, cluster).
func PeerTLS(cert func() (*tls.Certificate, error), roots *x509.CertPool, shard nstance.ShardID, cluster nstance.ClusterID) *tls.Config {
	cfg := ServerTLS(cert, roots, nstance.RoleServer)
	role := cfg.VerifyConnection
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		if err := role(state); err != nil {
			return err
		}
		if err := state.PeerCertificates[0].VerifyHostname(ServerName(shard, cluster)); err != nil {
			return denied("peer is no server of this shard: %w", err)
		}
		return nil
	}
	return cfg
}

// Changing returns a listener's configuration that is asked for at each
// handshake, so that other authorities, too, take effect at once. now must be
// cheap and safe for concurrent use. gRPC's protocol is the only one offered.
func Changing(now func() *tls.Config) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cfg := now()
			cfg.NextProtos = []string{"h2"} // what gRPC adds to the configuration that it is given
			return cfg, nil
		},
	}
}

// RegistrationTLS returns how the registration listener accepts clients, which
// have no certificate yet.
func RegistrationTLS(cert func() (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert() },
	}
}

// permit refuses a peer, already verified by chain, use and name, whose
// certificate does not state one of the roles.
func permit(roles ...nstance.Role) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return denied("peer showed no certificate")
		}
		id, err := IdentityOf(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		if !slices.Contains(roles, id.Role) {
			return denied("peer %q has role %s, which is not accepted here", id.Subject, id.Role)
		}
		return nil
	}
}
