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

// A shard is a server as far as agents see it: real gRPC over TLS with the real
// registrar, on listeners in memory.
type shard struct {
	apiv1.UnimplementedRegistrationServiceServer
	apiv1.UnimplementedAgentServiceServer

	t         *testing.T
	authority *registration.Authority
	nonces    *registration.NonceKeys
	registrar *registration.Registrar
	records   *records
	alarms    atomic.Int32
	network   *network
	servers   []*grpc.Server
	visits    chan *visit

	mu       sync.Mutex
	calls    map[string][][]byte                  // the requests (CSR) of each unary call
	lose     map[string]int                       // how many replies of a call are lost after their effect
	mute     bool                                 // no acknowledgements
	interval time.Duration                        // for the welcome
	refuse   func(nstance.Identity, string) error // of sessions, by address
	before   func(*visit) *apiv1.ConnectResponse  // says something else than welcome
}

// newShard listens in memory, under the names above.
func newShard(t *testing.T, o registration.Options) *shard {
	t.Helper()
	s := newAuthority(t, o)
	cert := s.certificate(zone)
	s.serveRegistration(s.listen(regAddr), cert)
	for _, addr := range []string{addrA, addrB} {
		s.serveAgents(addr, s.listen(addr), cert)
	}
	return s
}

// newAuthority is a shard that does not listen yet.
func newAuthority(t *testing.T, o registration.Options) *shard {
	t.Helper()
	authority, err := registration.NewAuthority(registration.Identity, time.Now())
	require.NoError(t, err)
	nonces, err := registration.NewNonceKeys(registration.NewNonceKey())
	require.NoError(t, err)
	s := &shard{
		t: t, authority: authority, nonces: nonces, records: &records{all: map[nstance.InstanceID]registration.Registration{}},
		network: &network{listeners: map[string]*bufconn.Listener{}},
		visits:  make(chan *visit, 1000), calls: map[string][][]byte{}, lose: map[string]int{},
	}
	o.Cluster, o.Shard = cluster, zone
	o.Alarm = func(nstance.Event) { s.alarms.Add(1) }
	s.registrar, err = registration.New(authority, nonces, s.records, &o)
	require.NoError(t, err)
	return s
}

func (s *shard) certificate(of nstance.ShardID) func() (*tls.Certificate, error) {
	cert, err := s.authority.Server(of, cluster, 1000*time.Hour, time.Now())
	require.NoError(s.t, err)
	return func() (*tls.Certificate, error) { return cert, nil }
}

// listen opens a listener in memory.
func (s *shard) listen(addr string) net.Listener {
	ln := bufconn.Listen(64 << 10)
	s.network.listeners[addr] = ln
	return ln
}

func (s *shard) serveRegistration(ln net.Listener, cert func() (*tls.Certificate, error)) {
	s.serve(ln, pki.RegistrationTLS(cert), func(g *grpc.Server) { apiv1.RegisterRegistrationServiceServer(g, s) })
}

func (s *shard) serveAgents(addr string, ln net.Listener, cert func() (*tls.Certificate, error)) {
	s.serveAgentsWith(addr, ln, pki.ServerTLS(cert, s.authority.Pool(), nstance.RoleAgent))
}

func (s *shard) serveAgentsWith(addr string, ln net.Listener, cfg *tls.Config) {
	s.serve(ln, cfg, func(g *grpc.Server) { apiv1.RegisterAgentServiceServer(g, &door{shard: s, addr: addr}) })
}

func (s *shard) serve(ln net.Listener, cfg *tls.Config, register func(*grpc.Server)) {
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)),
		grpc.KeepaliveParams(session.Server()), grpc.KeepaliveEnforcementPolicy(session.Enforcement()))
	register(g)
	s.servers = append(s.servers, g)
	go g.Serve(ln) // ends with Stop
}

func (s *shard) stop() {
	for _, g := range s.servers {
		g.Stop()
	}
}

// do changes the server's behaviour under its lock.
func (s *shard) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// count returns how often a unary call was made.
func (s *shard) count(call string) (n int) {
	s.do(func() { n = len(s.calls[call]) })
	return n
}

func (s *shard) note(call string, csr []byte) (lost bool) {
	s.do(func() {
		s.calls[call] = append(s.calls[call], csr)
		if lost = s.lose[call] > 0; lost {
			s.lose[call]--
		}
	})
	return lost
}

func (s *shard) RegisterAgent(ctx context.Context, r *apiv1.RegisterAgentRequest) (*apiv1.RegisterAgentResponse, error) {
	req := nstance.RegistrationRequest{
		Nonce: r.GetNonce(), CSR: r.GetCsr(), Addresses: wire.AddressesOf(r.GetAddresses()), Hostname: r.GetHostname(),
	}
	call := "register"
	if len(r.GetCertificate()) > 0 {
		call, req.Recovery = "recover", recoveryOf(ctx, r)
	}
	lost := s.note(call, r.GetCsr())
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

// A door is the agent service at one address.
type door struct {
	apiv1.UnimplementedAgentServiceServer
	*shard
	addr string
}

func (d *door) RenewCertificate(ctx context.Context, r *apiv1.RenewCertificateRequest) (*apiv1.RenewCertificateResponse, error) {
	lost := d.note("renew", r.GetCsr())
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

// A visit is one session as the server sees it.
type visit struct {
	at   time.Time
	addr string
	id   nstance.Identity
	up   chan *apiv1.ConnectRequest // everything received
	end  chan error                 // ends the session
	gone chan struct{}              // closed when the session has ended
	deaf atomic.Bool                // does not hang up after a goodbye

	mu     sync.Mutex
	stream apiv1.AgentService_ConnectServer
}

func (v *visit) send(m *apiv1.ConnectResponse) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_ = v.stream.Send(m)
}

func (v *visit) drain(generation uint64, deadline time.Time) {
	c := &apiv1.DrainCommand{Generation: generation, Deadline: timestamppb.New(deadline), Causes: []*apiv1.Cause{{Kind: "notice", EventId: "event-1"}}}
	wire.DrainLeft(c, time.Now())
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Drain{Drain: c}})
}

func (v *visit) goAway(addrs ...string) {
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_GoAway{GoAway: &apiv1.GoAway{Addresses: addrs}}})
}

// ack acknowledges a report, notices, or the result of a drain.
func (v *visit) ack(m *apiv1.ConnectRequest) {
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

func (d *door) Connect(stream apiv1.AgentService_ConnectServer) error {
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
	v := &visit{
		at: time.Now(), addr: d.addr, id: id, stream: stream,
		up: make(chan *apiv1.ConnectRequest, 10000), end: make(chan error, 1), gone: make(chan struct{}),
	}
	defer close(v.gone)
	if err := d.admit(v); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- d.listen(v) }()
	select {
	case err := <-received:
		return err
	case err := <-v.end:
		return err
	}
}

func (d *door) admit(v *visit) error {
	var refusal error
	hello := &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Welcome{Welcome: &apiv1.Welcome{}}}
	d.do(func() {
		if d.refuse != nil {
			refusal = d.refuse(v.id, v.addr)
		}
		hello.GetWelcome().ReportInterval = durationpb.New(d.interval)
		if d.before != nil {
			if other := d.before(v); other != nil {
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

func (d *door) listen(v *visit) error {
	for {
		m, err := v.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		v.up <- m
		if m.GetGoodbye() != nil {
			if v.deaf.Load() {
				<-v.stream.Context().Done()
			}
			return nil
		}
		mute := false
		d.do(func() { mute = d.mute })
		if !mute {
			v.ack(m)
		}
	}
}

// records is the memory behind the registrar.
type records struct {
	registration.Records // operators do not come here
	mu                   sync.Mutex
	all                  map[nstance.InstanceID]registration.Registration
}

func (r *records) Registration(_ context.Context, id nstance.InstanceID) (registration.Registration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.all[id]
	if !ok {
		return rec, nstance.Errorf(nstance.NotFound, "no record of %s", id)
	}
	return rec, nil
}

func (r *records) RefreshRegistration(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	return r.Registration(ctx, id)
}

func (r *records) UpdateRegistration(ctx context.Context, id nstance.InstanceID, fn func(*registration.Registration) error) (registration.Registration, error) {
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

func (r *records) promote(id nstance.Identity) {
	_, _ = r.UpdateRegistration(context.Background(), nstance.InstanceID(id.Subject), func(rec *registration.Registration) error {
		rec.Promote(id.Serial)
		return nil
	})
}

// A network connects by name, and can lose everything on a line without
// closing it, as a real one does.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	lines     []*line
	dials     []string
	down      bool // nothing listens
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
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
	l := &line{Conn: conn, closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, l)
	return l, nil
}

// away takes all servers away, hanging up, or brings them back.
func (n *network) away(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down = down; !down {
		return
	}
	for _, l := range n.lines {
		l.Close()
	}
}

// cut makes every present line a black hole.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lines {
		l.dead.Store(true)
	}
}

type line struct {
	net.Conn
	dead   atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (l *line) Write(p []byte) (int, error) {
	if l.dead.Load() {
		return len(p), nil
	}
	return l.Conn.Write(p)
}

// Read of a dead line returns nothing, not even that the peer has hung up.
func (l *line) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if l.dead.Load() {
		<-l.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (l *line) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}

// A machine is a place for an agent to run.
type machine struct {
	t      *testing.T
	s      *shard
	id     nstance.InstanceID
	o      *agent.Options
	notice chan nstance.Notice
}

func (s *shard) machine() *machine {
	id, err := nstance.NewInstanceID("tst", time.Now())
	require.NoError(s.t, err)
	m := &machine{t: s.t, s: s, id: id, notice: make(chan nstance.Notice)}
	s.records.mu.Lock()
	s.records.all[id] = registration.Registration{ID: id, Kind: "tst", Tenant: nstance.DefaultTenant, Group: "web"}
	s.records.mu.Unlock()
	m.o = &agent.Options{
		InstanceID: id, RegistrationAddrs: []string{regAddr}, AgentAddrs: []string{addrA, addrB},
		IdentityDir: s.t.TempDir(), Detector: detector{m.notice}, Dial: s.network.dial,
		Log: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	}
	m.write("ca.crt", string(s.authority.CertPEM()))
	m.write("nonce.jwt", m.nonce(id, 10*time.Minute))
	return m
}

func (m *machine) nonce(id nstance.InstanceID, life time.Duration) string {
	token, err := m.s.nonces.Mint("", registration.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: zone, Tenant: nstance.DefaultTenant,
		Group: "web", ConfigHash: "v1:sha256:cafe", NotBefore: time.Now(), Expiry: time.Now().Add(life),
	})
	require.NoError(m.t, err)
	return token
}

func (m *machine) write(name, content string) {
	require.NoError(m.t, os.WriteFile(m.path(name), []byte(content), 0o600))
}

func (m *machine) path(name string) string { return filepath.Join(m.o.IdentityDir, name) }

// start runs an agent; stop ends it and waits.
func (m *machine) start() (a *agent.Agent, stop func()) {
	m.t.Helper()
	a, err := agent.New(m.o)
	require.NoError(m.t, err)
	ctx, cancel := context.WithCancel(m.t.Context())
	over := make(chan error, 1)
	go func() { over <- a.Run(ctx) }()
	return a, sync.OnceFunc(func() {
		cancel()
		require.NoError(m.t, <-over)
	})
}

// A detector yields what the test says.
type detector struct{ notices <-chan nstance.Notice }

func (detector) Interruptible(context.Context) (bool, error) { return true, nil }

func (d detector) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
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
func inBubble(t *testing.T, f func(t *testing.T, s *shard, m *machine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, registration.Options{AgentLifetime: lifetime})
		defer s.stop()
		f(t, s, s.machine())
	})
}

// after lets d of fake time pass and everything in it happen.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// next waits for the next session, however long.
func (s *shard) next() *visit {
	s.t.Helper()
	select {
	case v := <-s.visits:
		return v
	case <-time.After(48 * time.Hour):
		require.FailNow(s.t, "no session")
		return nil
	}
}

// until returns the first message that f accepts, however long it takes.
func (v *visit) until(t *testing.T, f func(*apiv1.ConnectRequest) bool) *apiv1.ConnectRequest {
	t.Helper()
	for limit := time.After(time.Hour); ; {
		select {
		case m := <-v.up:
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
