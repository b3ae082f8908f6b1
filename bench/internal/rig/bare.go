package rig

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/session"
)

// Addresses are those of the bare servers.
type Addresses struct {
	Handshake string `json:"handshake"` // a mutual TLS handshake, then one byte, and nothing else
	Open      string `json:"open"`      // gRPC for clients without certificate: Nothing
	Mutual    string `json:"mutual"`    // gRPC for clients with one: Nothing and Echo
}

// Methods of the bare gRPC servers.
const (
	bareService = "bench.Bare"
	Nothing     = "/" + bareService + "/Nothing"
	Echo        = "/" + bareService + "/Echo"
)

// EchoStream describes Echo: a stream that returns each message as it came.
var EchoStream = grpc.StreamDesc{StreamName: "Echo", Handler: echo, ServerStreams: true, ClientStreams: true}

var bareDesc = grpc.ServiceDesc{
	ServiceName: bareService, HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Nothing", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		return &emptypb.Empty{}, decode(&emptypb.Empty{})
	}}},
	Streams: []grpc.StreamDesc{EchoStream},
}

func echo(_ any, stream grpc.ServerStream) error {
	var m apiv1.ConnectRequest
	for {
		if err := stream.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := stream.SendMsg(&m); err != nil {
			return err
		}
	}
}

// A bare is what the floors are measured with: servers that do nothing but transport, with
// the options of the product's that cost memory or time in gRPC itself.
type bare struct {
	Addresses
	stops []func()
	wg    sync.WaitGroup
}

func startBare(ctx context.Context, identity *keyring.Authority) (b *bare, err error) {
	b = &bare{}
	cert, err := identity.Server(Zone, Cluster, time.Hour, time.Now())
	if err != nil {
		return b, err
	}
	get := func() (*tls.Certificate, error) { return cert, nil }
	open, mutual := pki.RegistrationTLS(get), pki.ServerTLS(get, identity.Pool(), nstance.RoleAgent)
	listen := func(addr *string) (lis net.Listener) {
		if err == nil {
			lis, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		}
		if err == nil {
			*addr = lis.Addr().String()
		}
		return lis
	}
	handshakes, opens, mutuals := listen(&b.Handshake), listen(&b.Open), listen(&b.Mutual)
	if err != nil {
		return b, err
	}
	b.serveHandshakes(handshakes, mutual)
	b.serveCalls(opens, open)
	b.serveCalls(mutuals, mutual)
	return b, nil
}

func (b *bare) stop() {
	for _, stop := range b.stops {
		stop()
	}
	b.wg.Wait()
}

func (b *bare) serveCalls(lis net.Listener, cfg *tls.Config) {
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)), grpc.KeepaliveParams(session.Server()), grpc.KeepaliveEnforcementPolicy(session.Enforcement()),
		grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10), grpc.StaticStreamWindowSize(64<<10), grpc.StaticConnWindowSize(64<<10))
	g.RegisterService(&bareDesc, nil)
	b.wg.Go(func() { _ = g.Serve(lis) }) // nil after Stop
	b.stops = append(b.stops, g.Stop)
}

func (b *bare) serveHandshakes(lis net.Listener, cfg *tls.Config) {
	b.stops = append(b.stops, func() { _ = lis.Close() })
	b.wg.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() {
				defer conn.Close()
				_, _ = tls.Server(conn, cfg).Write([]byte{1}) // the client counts it
			})
		}
	})
}

// Handshake makes a bare mutual handshake, and waits until the server has accepted it.
func (c *Client) Handshake(ctx context.Context, addr string, n int, cert *tls.Certificate) error {
	raw, err := From(n)(ctx, addr)
	if err != nil {
		return err
	}
	defer raw.Close()
	cfg := pki.ClientTLS(c.Roots, cert, Zone, Cluster)
	_, err = io.ReadFull(tls.Client(raw, cfg), make([]byte, 1))
	return err
}

// SendEcho sends a report on an Echo stream, and returns when it has come back.
func SendEcho(stream grpc.ClientStream, number uint64) error {
	if err := stream.SendMsg(Healthy(number)); err != nil {
		return err
	}
	var m apiv1.ConnectRequest
	if err := stream.RecvMsg(&m); err != nil {
		return err
	}
	if m.GetNumber() != number {
		return fmt.Errorf("message %d came back as %d", number, m.GetNumber())
	}
	return nil
}
