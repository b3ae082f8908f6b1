package rig

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/internal/wire"
)

// A Client connects to a server as agents do.
type Client struct {
	Registration, Agent string // addresses
	Roots               *x509.CertPool
}

// Dial opens a connection. Each n uses another local address, as agents do, because
// registrations are limited by source address.
func (c *Client) Dial(addr string, n int, cert *tls.Certificate) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(credentials.NewTLS(pki.ClientTLS(c.Roots, cert, Zone, Cluster))),
		grpc.WithContextDialer(From(n)), grpc.WithKeepaliveParams(session.Client()),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10), grpc.WithDisableServiceConfig(),
	)
}

// From dials from the nth address of 127.0.0.0/16.
func From(n int) func(context.Context, string) (net.Conn, error) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+n/250%250), byte(1+n%250))}}
	return func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
}

// An Applicant is a machine that has made its key and its request for a certificate.
type Applicant struct {
	Key     ed25519.PrivateKey
	Request *apiv1.RegisterAgentRequest
}

// Apply makes a machine's key and its request.
func Apply(spec nstance.MachineSpec) (Applicant, error) {
	key := pki.NewKey()
	csr, err := pki.NewCSR(key, string(spec.ID))
	return Applicant{key, &apiv1.RegisterAgentRequest{Nonce: string(spec.UserData), Csr: csr}}, err
}

// Register turns the nonce in a machine's user data into a certificate.
func (c *Client) Register(ctx context.Context, n int, spec nstance.MachineSpec) (*tls.Certificate, error) {
	a, err := Apply(spec)
	if err != nil {
		return nil, err
	}
	return c.Send(ctx, n, a)
}

// Send registers an applicant on a connection of its own.
func (c *Client) Send(ctx context.Context, n int, a Applicant) (*tls.Certificate, error) {
	conn, err := c.Dial(c.Registration, n, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(ctx, a.Request)
	if err != nil {
		return nil, fmt.Errorf("register: %w", wire.ErrorOf(err))
	}
	return certificate(a.Key, wire.CredentialOf(resp.GetCredential())), nil
}

func certificate(key ed25519.PrivateKey, c nstance.Credential) *tls.Certificate {
	return &tls.Certificate{Certificate: c.Chain, PrivateKey: key}
}

// A Session is the stream of one agent, which is nothing else.
type Session struct {
	conn   *grpc.ClientConn
	stream grpc.BidiStreamingClient[apiv1.ConnectRequest, apiv1.ConnectResponse]
	number uint64
}

// Connect opens a session, and returns when its first report is acknowledged. It ends with
// ctx.
func (c *Client) Connect(ctx context.Context, n int, cert *tls.Certificate) (*Session, error) {
	conn, err := c.Dial(c.Agent, n, cert)
	if err != nil {
		return nil, err
	}
	stream, err := apiv1.NewAgentServiceClient(conn).Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", wire.ErrorOf(err))
	}
	s := &Session{conn: conn, stream: stream}
	if m, err := stream.Recv(); err != nil || m.GetWelcome() == nil {
		return nil, fmt.Errorf("no welcome: %w", wire.ErrorOf(err))
	}
	return s, s.Report()
}

// Invoke makes another call on the same connection.
func (s *Session) Invoke(ctx context.Context, method string, in, out any) error {
	return s.conn.Invoke(ctx, method, in, out)
}

// Close ends the connection without goodbye.
func (s *Session) Close() error { return s.conn.Close() }

// Report sends a healthy report, and returns when it is acknowledged.
func (s *Session) Report() error {
	s.number++
	err := s.stream.Send(Healthy(s.number))
	for err == nil {
		var m *apiv1.ConnectResponse
		if m, err = s.stream.Recv(); m.GetAcknowledgement().GetReport() == s.number {
			return nil
		}
	}
	return fmt.Errorf("report: %w", wire.ErrorOf(err))
}

// Send sends a message with the next number.
func (s *Session) Send(m *apiv1.ConnectRequest) error {
	s.number++
	m.Number = s.number
	return s.stream.Send(m)
}

// Healthy returns a healthy report.
func Healthy(number uint64) *apiv1.ConnectRequest {
	return &apiv1.ConnectRequest{Number: number, Message: &apiv1.ConnectRequest_Report{
		Report: &apiv1.HealthReport{Version: wire.ReportVersion, CpuUsage: 10, MemoryUsage: 20},
	}}
}
