package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/registration"
)

const (
	cluster = nstance.ClusterID("demo")
	shard   = nstance.ShardID("here")
)

// A server is the least that an agent will talk to. A real one, nstance-server,
// keeps records, checks serials and survives its own death; this one has one
// machine and forgets it. Your daemon needs nothing of this file.
type server struct {
	apiv1.UnimplementedRegistrationServiceServer
	apiv1.UnimplementedAgentServiceServer

	story        story
	keys         *registration.Keys
	registrar    nstance.Registrar
	nonce        string
	registration net.Listener
	sessions     net.Listener
	grpc         []*grpc.Server
	serving      sync.WaitGroup
}

func newServer(id nstance.InstanceID, told story) (*server, error) {
	now := time.Now()
	keys, err := registration.NewKeys(now)
	if err != nil {
		return nil, err
	}
	nonce, err := keys.Mint(registration.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: shard, Tenant: nstance.DefaultTenant,
		Group: "demo", NotBefore: now, Expiry: now.Add(time.Minute),
	})
	if err != nil {
		return nil, err
	}
	one := registration.NewMemory()
	one.Put(registration.Registration{ID: id, Kind: id.Kind(), Tenant: nstance.DefaultTenant, Group: "demo"})
	registrar, err := registration.New(keys, one, &registration.Options{Cluster: cluster, Shard: shard})
	if err != nil {
		return nil, err
	}
	s := &server{story: told, keys: keys, registrar: registrar, nonce: nonce}
	return s, s.listen()
}

func (s *server) listen() (err error) {
	cert, err := s.keys.ServerCertificate(shard, cluster, time.Hour, time.Now())
	if err != nil {
		return err
	}
	if s.registration, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	if s.sessions, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return errors.Join(err, s.registration.Close())
	}
	open := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}}
	agents := open.Clone()
	agents.ClientAuth, agents.ClientCAs, agents.VerifyConnection = tls.RequireAndVerifyClientCert, s.keys.Pool(), agentsOnly
	s.serve(s.registration, open, func(g *grpc.Server) { apiv1.RegisterRegistrationServiceServer(g, s) })
	s.serve(s.sessions, agents, func(g *grpc.Server) { apiv1.RegisterAgentServiceServer(g, s) })
	return nil
}

// agentsOnly refuses a verified certificate of another role.
func agentsOnly(state tls.ConnectionState) error {
	id, err := registration.IdentityOf(state.PeerCertificates[0])
	if err == nil && id.Role != nstance.RoleAgent {
		err = nstance.Errorf(nstance.Denied, "%s is no agent", id.Subject)
	}
	return err
}

func (s *server) serve(ln net.Listener, cfg *tls.Config, register func(*grpc.Server)) {
	pings := keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true} // as often as agents send them
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)), grpc.KeepaliveEnforcementPolicy(pings))
	register(g)
	s.grpc = append(s.grpc, g)
	s.serving.Go(func() { _ = g.Serve(ln) }) // ends with Stop
}

func (s *server) stop() {
	for _, g := range s.grpc {
		g.Stop()
	}
	s.serving.Wait()
}

// RegisterAgent turns the nonce into a certificate.
func (s *server) RegisterAgent(ctx context.Context, r *apiv1.RegisterAgentRequest) (*apiv1.RegisterAgentResponse, error) {
	c, err := s.registrar.Register(ctx, nstance.RegistrationRequest{Nonce: r.GetNonce(), CSR: r.GetCsr(), Hostname: r.GetHostname()})
	if err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	s.story.say("the machine is registered")
	return &apiv1.RegisterAgentResponse{Credential: &apiv1.Credential{
		Chain: c.Chain, Roots: c.Roots, Serial: c.Serial, NotAfter: timestamppb.New(c.NotAfter),
	}}, nil
}

// Connect welcomes the agent and acknowledges what it says.
func (s *server) Connect(stream apiv1.AgentService_ConnectServer) error {
	if err := stream.Send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Welcome{Welcome: &apiv1.Welcome{}}}); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := errors.Join(s.acknowledge(stream, m), s.tell(stream, m)); err != nil {
			return err
		}
	}
}

// acknowledge acknowledges reports, notices, and results of drains.
func (s *server) acknowledge(stream apiv1.AgentService_ConnectServer, m *apiv1.ConnectRequest) error {
	ack := &apiv1.Acknowledgement{}
	switch what := m.GetMessage().(type) {
	case *apiv1.ConnectRequest_Report:
		ack.Received = &apiv1.Acknowledgement_Report{Report: m.GetNumber()}
	case *apiv1.ConnectRequest_Notices:
		ack.Received = &apiv1.Acknowledgement_NoticesRevision{NoticesRevision: what.Notices.GetRevision()}
	case *apiv1.ConnectRequest_DrainResult:
		ack.Received = &apiv1.Acknowledgement_DrainGeneration{DrainGeneration: what.DrainResult.GetGeneration()}
	default:
		return nil
	}
	return stream.Send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Acknowledgement{Acknowledgement: ack}})
}

// tell moves the story on.
func (s *server) tell(stream apiv1.AgentService_ConnectServer, m *apiv1.ConnectRequest) error {
	switch m := m.GetMessage().(type) {
	case *apiv1.ConnectRequest_Report:
		s.story.say("first report, can drain: %v", m.Report.GetCanDrain())
		s.story.announce()
	case *apiv1.ConnectRequest_Notices:
		n := m.Notices.GetNotices()[0]
		s.story.say("notice: %s by %s, please drain", n.GetKind(), n.GetSource())
		return stream.Send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Drain{Drain: &apiv1.DrainCommand{
			Generation: 1, TimeLeft: durationpb.New(time.Minute), Causes: []*apiv1.Cause{{Kind: string(nstance.CauseNotice), EventId: n.GetEventId()}},
		}}})
	case *apiv1.ConnectRequest_DrainResult:
		s.story.say("drain 1 ended: %s, %s", m.DrainResult.GetOutcome(), m.DrainResult.GetMessage())
		s.story.done()
	case *apiv1.ConnectRequest_Goodbye:
		s.story.say("goodbye: %s", m.Goodbye.GetReason())
	}
	return nil
}
