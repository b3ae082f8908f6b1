package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/credentials"
)

// Credentials returns a client's, which say why a server may end a handshake without a
// word.
func Credentials(cfg *tls.Config) credentials.TransportCredentials {
	return explained{credentials.NewTLS(cfg)}
}

type explained struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (e explained) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := e.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("closed during the handshake, as by a server that does not lead its shard at present, or has no time: %w", err)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (e explained) Clone() credentials.TransportCredentials {
	return explained{e.TransportCredentials.Clone()}
}
