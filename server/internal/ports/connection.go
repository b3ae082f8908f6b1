// Package ports holds what stands between a socket and the handler of a call:
// listeners that survive errors of Accept, the limits on connections, whose
// certificate a connection has shown and until when it is valid, and the host
// names that the HTTP port answers to.
package ports

import (
	"context"
	"net"
	"net/netip"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

// Closable makes the connection below a call reachable for CloseConnection, and
// tells the gate which client has connected.
func Closable(creds credentials.TransportCredentials) credentials.TransportCredentials {
	return closable{creds}
}

type closable struct {
	credentials.TransportCredentials
}

// A Connection is the AuthInfo of a call over Closable credentials.
type Connection struct {
	credentials.TLSInfo
	Conn net.Conn
}

// ServerHandshake implements credentials.TransportCredentials.
func (c closable) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	tlsInfo, _ := info.(credentials.TLSInfo)
	if gated, ok := raw.(*gatedConn); ok && len(tlsInfo.State.VerifiedChains) > 0 {
		if id, err := pki.IdentityOf(tlsInfo.State.PeerCertificates[0]); err == nil {
			gated.identify(id)
		}
	}
	return conn, Connection{tlsInfo, conn}, nil
}

// Clone implements credentials.TransportCredentials.
func (c closable) Clone() credentials.TransportCredentials {
	return closable{c.TransportCredentials.Clone()}
}

func connectionOf(ctx context.Context) (Connection, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Connection{}, false
	}
	c, ok := p.AuthInfo.(Connection)
	return c, ok
}

// CloseConnection returns a function that closes the connection below a call.
// Nothing else ends a handler that waits in Recv or Send.
func CloseConnection(ctx context.Context) func() {
	c, ok := connectionOf(ctx)
	return func() {
		if ok {
			_ = c.Conn.Close() // its error changes nothing: the connection is given up
		}
	}
}

// IdentityOf returns the identity in the verified certificate of the caller.
// Fails with Denied where there is none.
func IdentityOf(ctx context.Context) (nstance.Identity, error) {
	c, ok := connectionOf(ctx)
	if !ok || len(c.State.VerifiedChains) == 0 {
		return nstance.Identity{}, nstance.Errorf(nstance.Denied, "a client certificate is required")
	}
	return pki.IdentityOf(c.State.PeerCertificates[0])
}

// SourceOf returns the address that a call comes from; the zero address: unknown.
func SourceOf(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
