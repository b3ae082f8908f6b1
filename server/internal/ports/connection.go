// Package ports holds what stands between a socket and the handler of a call:
// listeners that survive errors of Accept, the limits on connections, whose
// certificate a connection has shown and until when it is valid, and the host
// names that the HTTP port answers to.
package ports

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

// Closable makes the connection below a call reachable for CloseConnection, and
// tells the gate which client has connected. check fails where the certificate is not in
// use any more; it must not block. Nil: there is nothing to check.
func Closable(creds credentials.TransportCredentials, check func(nstance.Identity) error) credentials.TransportCredentials {
	return closable{creds, check}
}

type closable struct {
	credentials.TransportCredentials
	check func(nstance.Identity) error
}

// A Connection is the AuthInfo of a call over Closable credentials, as a pointer.
type Connection struct {
	credentials.TLSInfo
	Conn  net.Conn
	gated *gatedConn // nil: not behind a gate

	identity    nstance.Identity // in the verified certificate
	identityErr error            // why there is none
}

// ServerHandshake implements credentials.TransportCredentials.
func (c closable) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	gated, _ := raw.(*gatedConn)
	gated.handshake(true)
	if gated != nil {
		turn := newShaking(gated)
		defer turn.end()
		raw = turn
	}
	conn, info, err := c.handshake(raw)
	if err != nil {
		return nil, nil, err
	}
	gated.handshake(false)
	tlsInfo, _ := info.(credentials.TLSInfo)
	all := NewConnection(tlsInfo, conn)
	all.gated = gated
	if gated != nil && len(tlsInfo.State.VerifiedChains) > 0 && all.identityErr == nil {
		gated.identify(all.identity, c.verify(all.identity))
	}
	return conn, all, nil
}

// NewConnection returns a connection that is not behind a gate. The identity in its
// certificate is read here, once for all calls.
func NewConnection(info credentials.TLSInfo, conn net.Conn) *Connection {
	c := &Connection{TLSInfo: info, Conn: conn}
	if len(info.State.VerifiedChains) > 0 {
		c.identity, c.identityErr = pki.IdentityOf(info.State.PeerCertificates[0])
	}
	return c
}

// handshake makes the handshake in a goroutine of its own: it takes a large stack, which
// the one that reads the connection would keep.
func (c closable) handshake(raw net.Conn) (conn net.Conn, info credentials.AuthInfo, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, info, err = c.TransportCredentials.ServerHandshake(raw)
	}()
	<-done
	return conn, info, err
}

func (c closable) verify(id nstance.Identity) error {
	if c.check == nil {
		return nil
	}
	return c.check(id)
}

// Clone implements credentials.TransportCredentials.
func (c closable) Clone() credentials.TransportCredentials {
	return closable{c.TransportCredentials.Clone(), c.check}
}

func connectionOf(ctx context.Context) (*Connection, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	c, ok := p.AuthInfo.(*Connection)
	return c, ok
}

// CloseConnection returns a function that closes the connection below a call.
// Nothing else ends a handler that waits in Recv or Send.
func CloseConnection(ctx context.Context) func() {
	c, ok := connectionOf(ctx)
	if !ok {
		return func() {}
	}
	return func() { _ = c.Conn.Close() } // its error changes nothing: the connection is given up
}

// IdentityOf returns the identity in the verified certificate of the caller.
// Fails with Denied where there is none.
func IdentityOf(ctx context.Context) (nstance.Identity, error) {
	c, ok := connectionOf(ctx)
	if !ok || len(c.State.VerifiedChains) == 0 {
		return nstance.Identity{}, nstance.Errorf(nstance.Denied, "a client certificate is required")
	}
	return c.identity, c.identityErr
}

// StateOf returns the state of the TLS connection below a call.
func StateOf(ctx context.Context) tls.ConnectionState {
	c, ok := connectionOf(ctx)
	if !ok {
		return tls.ConnectionState{}
	}
	return c.State
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
