package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"crypto/tls"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/registration"
)

const (
	cluster = nstance.ClusterID("test")
	zone    = nstance.ShardID("zone-a")
	regAddr = "registration.test:8992"
	addrA   = "a.test:8994"
	addrB   = "b.test:8994"

	// lifetime of certificates: a short one, since fake hours cost real time.
	lifetime = time.Hour
)

// A testShard is the part of a server that agents use: real gRPC over TLS with the
// real registrar, on listeners in memory.
type testShard struct {
	apiv1.UnimplementedRegistrationServiceServer
	apiv1.UnimplementedAgentServiceServer

	t         *testing.T
	authority *keyring.Authority
	nonces    *keyring.NonceKeys
	registrar *registration.Registrar
	records   *memoryRecords
	alarms    atomic.Int32
	network   *testNetwork
	servers   []*grpc.Server
	visits    chan *serverSession

	mu             sync.Mutex
	callCSRs       map[string][][]byte // by unary call
	lostReplies    map[string]int      // number of replies to lose after the call's effect
	withholdAcks   bool
	reportInterval time.Duration                               // in the welcome
	refuseSession  func(nstance.Identity, string) error        // of sessions, by address
	firstMessage   func(*serverSession) *apiv1.ConnectResponse // sent instead of the welcome
}

// newShard listens in memory, under the names above.
func newShard(t *testing.T, o registration.Options) *testShard {
	t.Helper()
	s := newAuthority(t, o)
	cert := s.certificate(zone)
	s.serveRegistration(s.listen(regAddr), cert)
	for _, addr := range []string{addrA, addrB} {
		s.serveAgents(addr, s.listen(addr), cert)
	}
	return s
}

// newAuthority returns a shard that does not listen yet.
func newAuthority(t *testing.T, o registration.Options) *testShard {
	t.Helper()
	authority, err := keyring.NewAuthority(keyring.Identity, time.Now())
	require.NoError(t, err)
	nonces, err := keyring.NewNonceKeys(keyring.NewNonceKey())
	require.NoError(t, err)
	s := &testShard{
		t: t, authority: authority, nonces: nonces, records: &memoryRecords{all: map[nstance.InstanceID]registration.Registration{}},
		network: &testNetwork{listeners: map[string]*bufconn.Listener{}},
		visits:  make(chan *serverSession, 1000), callCSRs: map[string][][]byte{}, lostReplies: map[string]int{},
	}
	o.Cluster, o.Shard = cluster, zone
	o.Alarm = func(nstance.Event) { s.alarms.Add(1) }
	s.registrar, err = registration.New(registration.KeysOf(authority, nonces), s.records, &o)
	require.NoError(t, err)
	return s
}

func (s *testShard) certificate(of nstance.ShardID) func() (*tls.Certificate, error) {
	cert, err := s.authority.Server(of, cluster, 1000*time.Hour, time.Now())
	require.NoError(s.t, err)
	return func() (*tls.Certificate, error) { return cert, nil }
}

// listen opens a listener in memory.
func (s *testShard) listen(addr string) net.Listener {
	ln := bufconn.Listen(64 << 10)
	s.network.listeners[addr] = ln
	return ln
}

func (s *testShard) serveRegistration(ln net.Listener, cert func() (*tls.Certificate, error)) {
	s.serve(ln, pki.RegistrationTLS(cert), func(g *grpc.Server) { apiv1.RegisterRegistrationServiceServer(g, s) })
}

func (s *testShard) serveAgents(addr string, ln net.Listener, cert func() (*tls.Certificate, error)) {
	s.serveAgentsWith(addr, ln, pki.ServerTLS(cert, s.authority.Pool(), nstance.RoleAgent))
}

func (s *testShard) serveAgentsWith(addr string, ln net.Listener, cfg *tls.Config) {
	s.serve(ln, cfg, func(g *grpc.Server) { apiv1.RegisterAgentServiceServer(g, &agentEndpoint{testShard: s, addr: addr}) })
}

func (s *testShard) serve(ln net.Listener, cfg *tls.Config, register func(*grpc.Server)) {
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)),
		grpc.KeepaliveParams(session.Server()), grpc.KeepaliveEnforcementPolicy(session.Enforcement()))
	register(g)
	s.servers = append(s.servers, g)
	go g.Serve(ln) // ends with Stop
}

func (s *testShard) stop() {
	for _, g := range s.servers {
		g.Stop()
	}
}

// configure changes settings of the server under its lock.
func (s *testShard) configure(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// countCalls returns how often a unary call was made.
func (s *testShard) countCalls(call string) (n int) {
	s.configure(func() { n = len(s.callCSRs[call]) })
	return n
}

func (s *testShard) recordCall(call string, csr []byte) (lost bool) {
	s.configure(func() {
		s.callCSRs[call] = append(s.callCSRs[call], csr)
		if lost = s.lostReplies[call] > 0; lost {
			s.lostReplies[call]--
		}
	})
	return lost
}

func (s *testShard) RegisterAgent(ctx context.Context, r *apiv1.RegisterAgentRequest) (*apiv1.RegisterAgentResponse, error) {
	req := nstance.RegistrationRequest{
		Nonce: r.GetNonce(), CSR: r.GetCsr(), Addresses: wire.AddressesOf(r.GetAddresses()), Hostname: r.GetHostname(),
	}
	call := "register"
	if len(r.GetCertificate()) > 0 {
		call, req.Recovery = "recover", recoveryOf(ctx, r)
	}
	lost := s.recordCall(call, r.GetCsr())
	c, err := s.registrar.Register(ctx, req)
	if lost {
		return nil, status.Error(codes.Unavailable, "the reply was lost")
	}
	return &apiv1.RegisterAgentResponse{Credential: wire.Credential(c)}, wire.Status(err)
}

func recoveryOf(ctx context.Context, r *apiv1.RegisterAgentRequest) *nstance.Recovery {
	rec := &nstance.Recovery{Certificate: r.GetCertificate()}
	for _, proof := range metadata.ValueFromIncomingContext(ctx, wire.RecoveryProof) {
		rec.Proof = []byte(proof)
	}
	p, _ := peer.FromContext(ctx)
	rec.Binding, _ = pki.ChannelBinding(p.AuthInfo.(credentials.TLSInfo).State)
	return rec
}

// An agentEndpoint is the agent service at one address.
type agentEndpoint struct {
	apiv1.UnimplementedAgentServiceServer
	*testShard
	addr string
}

func (d *agentEndpoint) RenewCertificate(ctx context.Context, r *apiv1.RenewCertificateRequest) (*apiv1.RenewCertificateResponse, error) {
	lost := d.recordCall("renew", r.GetCsr())
	id, err := peerIdentity(ctx)
	if err != nil {
		return nil, wire.Status(err)
	}
	c, err := d.registrar.Renew(ctx, id, r.GetCsr())
	if lost {
		return nil, status.Error(codes.Unavailable, "the reply was lost")
	}
	return &apiv1.RenewCertificateResponse{Credential: wire.Credential(c)}, wire.Status(err)
}

func peerIdentity(ctx context.Context) (nstance.Identity, error) {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nstance.Identity{}, nstance.Errorf(nstance.Denied, "no TLS")
	}
	return pki.IdentityOf(info.State.PeerCertificates[0])
}

// A serverSession is the server's end of a session.
type serverSession struct {
	at            time.Time
	addr          string
	id            nstance.Identity
	received      chan *apiv1.ConnectRequest
	endWith       chan error    // ends the session
	ended         chan struct{} // closed when the session has ended
	ignoreGoodbye atomic.Bool   // keeps the stream open after a goodbye

	mu     sync.Mutex
	stream apiv1.AgentService_ConnectServer
}

func (v *serverSession) send(m *apiv1.ConnectResponse) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_ = v.stream.Send(m)
}

// drain commands a drain for the notice of reclaimIn.
func (v *serverSession) drain(generation uint64, deadline time.Time) {
	v.drainFor("event-1", generation, deadline)
}

func (v *serverSession) drainFor(eventID string, generation uint64, deadline time.Time) {
	c := &apiv1.DrainCommand{Generation: generation, Deadline: timestamppb.New(deadline), Causes: []*apiv1.Cause{{Kind: "notice", EventId: eventID}}}
	wire.DrainLeft(c, time.Now())
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Drain{Drain: c}})
}

func (v *serverSession) goAway(addrs ...string) {
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_GoAway{GoAway: &apiv1.GoAway{Addresses: addrs}}})
}

// ack acknowledges a report, notices, or the result of a drain.
func (v *serverSession) ack(m *apiv1.ConnectRequest) {
	a := &apiv1.Acknowledgement{}
	switch {
	case isReport(m):
		a.Received = &apiv1.Acknowledgement_Report{Report: m.GetNumber()}
	case isNotice(m):
		a.Received = &apiv1.Acknowledgement_NoticesRevision{NoticesRevision: m.GetNotices().GetRevision()}
	case isResult(m):
		a.Received = &apiv1.Acknowledgement_DrainGeneration{DrainGeneration: m.GetDrainResult().GetGeneration()}
	default:
		return
	}
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Acknowledgement{Acknowledgement: a}})
}

func (d *agentEndpoint) Connect(stream apiv1.AgentService_ConnectServer) error {
	id, err := peerIdentity(stream.Context())
	if err != nil {
		return wire.Status(err)
	}
	promote, err := d.registrar.Verify(stream.Context(), id)
	if err != nil {
		return wire.Status(err)
	}
	if promote {
		d.records.promote(id)
	}
	v := &serverSession{
		at: time.Now(), addr: d.addr, id: id, stream: stream,
		received: make(chan *apiv1.ConnectRequest, 10000), endWith: make(chan error, 1), ended: make(chan struct{}),
	}
	defer close(v.ended)
	if err := d.admit(v); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- d.listen(v) }()
	select {
	case err := <-received:
		return err
	case err := <-v.endWith:
		return err
	}
}

func (d *agentEndpoint) admit(v *serverSession) error {
	var refusal error
	hello := &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Welcome{Welcome: &apiv1.Welcome{}}}
	d.configure(func() {
		if d.refuseSession != nil {
			refusal = d.refuseSession(v.id, v.addr)
		}
		hello.GetWelcome().ReportInterval = durationpb.New(d.reportInterval)
		if d.firstMessage != nil {
			if other := d.firstMessage(v); other != nil {
				hello = other
			}
		}
	})
	d.visits <- v
	if refusal != nil {
		return refusal
	}
	v.send(hello)
	return nil
}

func (d *agentEndpoint) listen(v *serverSession) error {
	for {
		m, err := v.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		v.received <- m
		if m.GetGoodbye() != nil {
			if v.ignoreGoodbye.Load() {
				<-v.stream.Context().Done()
			}
			return nil
		}
		mute := false
		d.configure(func() { mute = d.withholdAcks })
		if !mute {
			v.ack(m)
		}
	}
}

// memoryRecords is the memory behind the registrar.
type memoryRecords struct {
	registration.Records // the methods for operators are unused
	mu                   sync.Mutex
	all                  map[nstance.InstanceID]registration.Registration
}

func (r *memoryRecords) Registration(_ context.Context, id nstance.InstanceID) (registration.Registration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.all[id]
	if !ok {
		return rec, nstance.Errorf(nstance.NotFound, "no record of %s", id)
	}
	return rec, nil
}

func (r *memoryRecords) RefreshRegistration(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	return r.Registration(ctx, id)
}

func (r *memoryRecords) UpdateRegistration(ctx context.Context, id nstance.InstanceID, fn func(*registration.Registration) error) (registration.Registration, error) {
	rec, err := r.Registration(ctx, id)
	if err != nil {
		return rec, err
	}
	if err := fn(&rec); err != nil {
		return rec, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[id] = rec
	return rec, nil
}

func (r *memoryRecords) promote(id nstance.Identity) {
	_, _ = r.UpdateRegistration(context.Background(), nstance.InstanceID(id.Subject), func(rec *registration.Registration) error {
		rec.Promote(id.Serial)
		return nil
	})
}

// A testNetwork connects by name. Like a real network it can lose all data of a
// connection without closing it.
type testNetwork struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	lines     []*networkConn
	dials     []string
	down      bool // nothing listens
}

func (n *testNetwork) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials = append(n.dials, addr)
	ln := n.listeners[addr]
	if n.down {
		ln = nil
	}
	n.mu.Unlock()
	if ln == nil {
		return nil, fmt.Errorf("no route to %s", addr)
	}
	conn, err := ln.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	l := &networkConn{Conn: conn, closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, l)
	return l, nil
}

// setDown stops all servers and closes their connections, or starts them again.
func (n *testNetwork) setDown(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down = down; !down {
		return
	}
	for _, l := range n.lines {
		l.Close()
	}
}

// blackhole makes every open connection lose all data.
func (n *testNetwork) blackhole() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lines {
		l.dead.Store(true)
	}
}

type networkConn struct {
	net.Conn
	dead   atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (l *networkConn) Write(p []byte) (int, error) {
	if l.dead.Load() {
		return len(p), nil
	}
	return l.Conn.Write(p)
}

// Read of a dead connection returns nothing, not even the peer's close.
func (l *networkConn) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if l.dead.Load() {
		<-l.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (l *networkConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}

// A machine has the directories and options of an agent.
type machine struct {
	t       *testing.T
	s       *testShard
	id      nstance.InstanceID
	options *agent.Options
	notice  chan nstance.Notice
}

func (s *testShard) newMachine() *machine {
	id, err := nstance.NewInstanceID("tst", time.Now())
	require.NoError(s.t, err)
	m := &machine{t: s.t, s: s, id: id, notice: make(chan nstance.Notice)}
	s.records.mu.Lock()
	s.records.all[id] = registration.Registration{ID: id, Kind: "tst", Tenant: nstance.DefaultTenant, Group: "web"}
	s.records.mu.Unlock()
	m.options = &agent.Options{
		InstanceID: id, RegistrationAddrs: []string{regAddr}, AgentAddrs: []string{addrA, addrB},
		IdentityDir: s.t.TempDir(), Detector: channelDetector{m.notice}, Dial: s.network.dial,
		Log: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	}
	m.writeIdentityFile("ca.crt", string(s.authority.CertPEM()))
	m.writeIdentityFile("nonce.jwt", m.mintNonce(id, 10*time.Minute))
	return m
}

func (m *machine) mintNonce(id nstance.InstanceID, life time.Duration) string {
	token, err := m.s.nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: zone, Tenant: nstance.DefaultTenant,
		Group: "web", ConfigHash: "v1:sha256:cafe", NotBefore: time.Now(), Expiry: time.Now().Add(life),
	})
	require.NoError(m.t, err)
	return token
}

func (m *machine) writeIdentityFile(name, content string) {
	require.NoError(m.t, os.WriteFile(m.path(name), []byte(content), 0o600))
}

func (m *machine) path(name string) string { return filepath.Join(m.options.IdentityDir, name) }

// start runs an agent; stop ends it and waits.
func (m *machine) start() (a *agent.Agent, stop func()) {
	m.t.Helper()
	a, err := agent.New(m.options)
	require.NoError(m.t, err)
	ctx, cancel := context.WithCancel(m.t.Context())
	over := make(chan error, 1)
	go func() { over <- a.Run(ctx) }()
	return a, sync.OnceFunc(func() {
		cancel()
		require.NoError(m.t, <-over)
	})
}

// A channelDetector yields notices of a channel.
type channelDetector struct{ notices <-chan nstance.Notice }

func (channelDetector) Interruptible(context.Context) (bool, error) { return true, nil }

func (d channelDetector) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case n := <-d.notices:
				if !yield(n, nil) {
					return
				}
			}
		}
	}
}

// inBubble runs f with a shard and one machine in a bubble of fake time.
func inBubble(t *testing.T, f func(t *testing.T, s *testShard, m *machine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, registration.Options{AgentLifetime: lifetime})
		defer s.stop()
		f(t, s, s.newMachine())
	})
}

// advance lets d of fake time pass and waits until all goroutines are idle.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// awaitSession waits for the next session without a limit.
func (s *testShard) awaitSession() *serverSession {
	s.t.Helper()
	select {
	case v := <-s.visits:
		return v
	case <-time.After(48 * time.Hour):
		require.FailNow(s.t, "no session")
		return nil
	}
}

// awaitMessage waits for a message that f accepts, without a limit.
func (v *serverSession) awaitMessage(t *testing.T, f func(*apiv1.ConnectRequest) bool) *apiv1.ConnectRequest {
	t.Helper()
	for limit := time.After(time.Hour); ; {
		select {
		case m := <-v.received:
			if f(m) {
				return m
			}
		case <-limit:
			require.FailNow(t, "no such message")
		}
	}
}

// noticesOf returns the notices that a message carries.
func noticesOf(m *apiv1.ConnectRequest) []*apiv1.Notice {
	if isReport(m) {
		return m.GetReport().GetNotices().GetNotices()
	}
	return m.GetNotices().GetNotices()
}

func isReport(m *apiv1.ConnectRequest) bool  { return m.GetReport() != nil }
func isNotice(m *apiv1.ConnectRequest) bool  { return m.GetNotices() != nil }
func isResult(m *apiv1.ConnectRequest) bool  { return m.GetDrainResult() != nil }
func isGoodbye(m *apiv1.ConnectRequest) bool { return m.GetGoodbye() != nil }
