package server

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/nstance-go/nstance/internal/pki"
)

// closable makes the connection below a call reachable, because a handler that
// waits in Recv can be ended by nothing else. It tells the gate who the client is.
type closable struct {
	credentials.TransportCredentials
}

// connection is the AuthInfo of closable credentials.
type connection struct {
	credentials.TLSInfo
	conn net.Conn
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
	return conn, connection{tlsInfo, conn}, nil
}

// Clone implements credentials.TransportCredentials.
func (c closable) Clone() credentials.TransportCredentials {
	return closable{c.TransportCredentials.Clone()}
}

func connectionOf(ctx context.Context) (connection, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return connection{}, false
	}
	c, ok := p.AuthInfo.(connection)
	return c, ok
}

// hangUp returns a function that closes the connection below ctx.
func hangUp(ctx context.Context) func() {
	c, ok := connectionOf(ctx)
	return func() {
		if ok {
			_ = c.conn.Close() // whatever it says, the connection is of no use any more
		}
	}
}
