package server_test

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/secret"
)

const (
	cluster = nstance.ClusterID("c1")
	zone    = nstance.ShardID("s1")

	// eventually is how long a loaded machine may take for what should be at
	// once. Nothing waits for it unless it fails.
	eventually = 20 * time.Second
)

// kinds are what the configurations of these tests may name.
var kinds = provider.Kinds{simcloud.Kind(), {Name: "aws", Spot: true}}

// configuration is a shard with two tenants. %s: more settings of the shard.
const configuration = `{
	"cluster": {"id": "c1"},
	"shard": {
		"id": "s1", "provider": {"kind": "sim"}, "shutdown_timeout": "30s", "status_page": {"detail": "full"}, %s
		"bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0"}
	},
	"templates": {"vm": {
		"kind": "web", "arch": "amd64", "instance_type": "small", "market": {"type": "spot"},
		"userdata": {"content": "{{.Nonce}}"}, "vars": {"colour": "red"}
	}},
	"groups": {
		"default": {"web": {"template": "vm", "size": %d}},
		"blue": {"db": {"template": "vm", "size": 1, "vars": {"shape": "round"}}}
	}
}`

// A source is a configuration that can change.
type source struct {
	mu   sync.Mutex
	text string
	err  error
}

func (s *source) read(context.Context) (string, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "shard.jsonc", []byte(s.text), s.err
}

func (s *source) set(text string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.err = text, err
}

// A setup says what is special about a world. Zero fields are ordinary.
type setup struct {
	size  int    // of group default/web
	text  string // the whole configuration, instead of the ordinary one
	shard string
	store storage.Store
	cloud simcloud.Options
	over  nstance.Provider // in place of the cloud itself
	opts  server.Options
	quiet bool // do not wait until it leads
}

// A world is one server over a store in memory and a simulated cloud, reached
// over real sockets.
type world struct {
	*testing.T
	store   storage.Store
	cloud   *simcloud.Cloud
	conf    source
	secrets *secret.Box
	server  *server.Server
	keys    *registration.Keys
	stop    func() error // ends the server and returns what Run returned

	filePasses atomic.Int64 // of its servers

	mu     sync.Mutex
	events []nstance.Event
	news   chan struct{} // closed and replaced with every event
}

func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	w := &world{T: t, store: s.store, cloud: simcloud.New(&s.cloud), news: make(chan struct{}), secrets: s.opts.Secrets}
	t.Cleanup(w.cloud.Close)
	if w.store == nil {
		w.store = storage.NewMemory()
	}
	if s.text == "" {
		s.text = fmt.Sprintf(configuration, s.shard, s.size)
	}
	w.conf.set(s.text, nil)
	s.opts.Journal = w.journal
	if s.opts.Kinds == nil {
		s.opts.Kinds = kinds
	}
	server.Hasten(&s.opts, func() { w.filePasses.Add(1) })
	if s.over == nil {
		s.over = w.cloud
	}
	var err error
	w.giveLeaseBack()
	w.server, err = server.New(t.Context(), w.store, s.over, w.conf.read, &s.opts)
	require.NoError(t, err)
	w.run()
	w.keys, err = keysOf(w)
	require.NoError(t, err)
	if !s.quiet {
		w.leads()
	}
	if !s.quiet && s.store == nil {
		require.Eventually(t, func() bool { return server.GroupsKnown(w.server) }, eventually, time.Millisecond)
	}
	return w
}

// giveLeaseBack makes a store look as if the last leader had given its lease
// back: no server has to wait for it then.
func (w *world) giveLeaseBack() {
	w.Helper()
	if prepared, err := lease.Prepare(w.Context(), w.store, zone); err == nil && prepared {
		return
	}
	if _, err := w.store.Get(w.Context(), storage.LeaseKey(zone)); !errors.Is(err, nstance.NotFound) {
		return
	}
	last := takesAtOnce(w, w.store)
	_, err := last.Campaign(w.Context())
	require.NoError(w, err)
	require.NoError(w, last.Resign(w.Context()))
}

// takesAtOnce returns an elector that waits for no other server.
func takesAtOnce(t testing.TB, store storage.Store) lease.Elector {
	t.Helper()
	l, err := lease.New(store, zone, &lease.Options{TakeAtOnce: true, TTL: lease.MaxTTL})
	require.NoError(t, err)
	return l
}

// keysOf returns the cluster's keys as they are in storage.
func keysOf(w *world) (*registration.Keys, error) {
	return registration.Bootstrap(w.Context(), vault.New(w.store, w.secrets), time.Now())
}

// run starts the server and waits until it listens.
func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Run(ctx) }()
	w.stop = sync.OnceValue(func() error {
		cancel()
		return receive(w.T, ended)
	})
	w.Cleanup(func() { require.NoError(w, w.stop()) })
	limit, done := context.WithTimeout(w.Context(), eventually)
	defer done()
	require.NoError(w, w.server.Ready(limit))
}

// leads waits until the server answers calls.
func (w *world) leads() {
	require.Eventually(w, func() bool { return w.get("/readyz").StatusCode == http.StatusOK }, eventually, 5*time.Millisecond)
}

func (w *world) journal(e nstance.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
	close(w.news)
	w.news = make(chan struct{})
}

// await returns the first event that matches, as soon as there is one.
func (w *world) await(typ nstance.EventType, id nstance.InstanceID) nstance.Event {
	w.Helper()
	limit := time.After(eventually)
	for {
		e, ok, news := w.find(typ, id)
		if ok {
			return e
		}
		select {
		case <-news:
		case <-limit:
			require.FailNow(w, "no such event", "%s of %q", typ, id)
		}
	}
}

func (w *world) find(typ nstance.EventType, id nstance.InstanceID) (nstance.Event, bool, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == typ && (id == "" || e.Instance == id) {
			return e, true, w.news
		}
	}
	return nstance.Event{}, false, w.news
}

// count returns how many events of a type there were.
func (w *world) count(typ nstance.EventType) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

// machine waits for the group's first machine and returns its ID.
func (w *world) machine(tenant nstance.TenantID) nstance.InstanceID {
	w.Helper()
	var id nstance.InstanceID
	require.Eventually(w, func() bool {
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == tenant {
				id = m.ID
			}
		}
		return id != ""
	}, eventually, time.Millisecond)
	w.await(nstance.EventCreated, id)
	return id
}

// nonce returns what the machine finds in its user data.
func (w *world) nonce(id nstance.InstanceID) string {
	spec, ok := w.cloud.Spec(id)
	require.True(w, ok)
	return string(spec.UserData)
}

// A holder has a key and, once registered, a certificate.
type holder struct {
	w    *world
	key  ed25519.PrivateKey
	cert *tls.Certificate
}

func (w *world) holder() *holder { return &holder{w: w, key: pki.NewKey()} }

// dial opens a connection to addr as this holder.
func (h *holder) dial(addr string) *grpc.ClientConn {
	return h.dialWith(addr, pki.ClientTLS(h.w.keys.Identity.Pool(), h.cert, zone, cluster))
}

func (h *holder) dialWith(addr string, cfg *tls.Config) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	require.NoError(h.w, err)
	h.w.Cleanup(func() { conn.Close() })
	return conn
}

func (h *holder) csr(key ed25519.PrivateKey) []byte {
	csr, err := pki.NewCSR(key, "test")
	require.NoError(h.w, err)
	return csr
}

// register registers as an agent. Its errors are the server's.
func (h *holder) register(nonce string) (nstance.Credential, error) {
	conn := h.dial(h.w.server.Addresses().Registration)
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(h.w.Context(), &apiv1.RegisterAgentRequest{
		Nonce: nonce, Csr: h.csr(h.key), Addresses: []string{"10.1.2.3"}, Hostname: "web-1",
	})
	if err != nil {
		return nstance.Credential{}, wire.ErrorOf(err)
	}
	c := wire.CredentialOf(resp.GetCredential())
	h.use(h.key, c)
	return c, nil
}

func (h *holder) use(key ed25519.PrivateKey, c nstance.Credential) {
	h.key, h.cert = key, &tls.Certificate{Certificate: c.Chain, PrivateKey: key}
}

// client registers an operator or administrator and returns its holder.
func (w *world) client(role nstance.Role, tenant nstance.TenantID) *holder {
	w.Helper()
	nonce, err := w.keys.Nonces.Mint("", registration.Claims{
		Kind: role, Subject: string(cluster), Cluster: cluster, Tenant: tenant, JTI: rand.Text(),
		NotBefore: time.Now().Add(-24 * time.Hour), Expiry: time.Now().Add(time.Hour),
	})
	require.NoError(w, err)
	h := w.holder()
	conn := h.dial(w.server.Addresses().Registration)
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterOperator(w.Context(), &apiv1.RegisterOperatorRequest{Nonce: nonce, Csr: h.csr(h.key)})
	require.NoError(w, err)
	h.use(h.key, wire.CredentialOf(resp.GetCredential()))
	return h
}

// api returns the operator service as h sees it.
func (h *holder) api() apiv1.OperatorServiceClient {
	return apiv1.NewOperatorServiceClient(h.dial(h.w.server.Addresses().Operator))
}

func (w *world) admin() apiv1.OperatorServiceClient {
	return w.client(nstance.RoleAdmin, nstance.DefaultTenant).api()
}

// agent registers an instance with the nonce in its user data.
func (w *world) agent(id nstance.InstanceID) *holder {
	w.Helper()
	h := w.holder()
	_, err := h.register(w.nonce(id))
	require.NoError(w, err)
	return h
}

// A talk is an agent's session, as the agent sees it.
type talk struct {
	*testing.T
	holder *holder
	stream grpc.BidiStreamingClient[apiv1.ConnectRequest, apiv1.ConnectResponse]
	number uint64
	heard  chan *apiv1.ConnectResponse
	over   chan error  // why nothing more is heard
	stays  atomic.Bool // when asked to go away
}

// connect opens a session and waits for the welcome.
func (h *holder) connect() *talk {
	h.w.Helper()
	k := h.open(h.w.Context())
	require.NotNil(h.w, k.hear().GetWelcome())
	return k
}

func (h *holder) open(ctx context.Context) *talk {
	h.w.Helper()
	ctx, leave := context.WithCancel(ctx)
	h.w.Cleanup(leave)
	stream, err := apiv1.NewAgentServiceClient(h.dial(h.w.server.Addresses().Agent)).Connect(ctx)
	require.NoError(h.w, err)
	k := &talk{T: h.w.T, holder: h, stream: stream, heard: make(chan *apiv1.ConnectResponse, 1000), over: make(chan error, 1)}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				k.over <- err
				return
			}
			k.heard <- m
			if m.GetGoAway() != nil && !k.stays.Load() {
				leave()
			}
		}
	}()
	return k
}

// say sends a message and returns its number.
func (k *talk) say(m *apiv1.ConnectRequest) uint64 {
	k.number++
	m.Number = k.number
	_ = k.stream.Send(m) // its failure is heard
	return k.number
}

func (k *talk) report() uint64 {
	return k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{Version: nstance.ReportVersion, CanDrain: true}}})
}

// notice sends a set of one notice and returns its revision.
func (k *talk) notice(n nstance.Notice) uint64 { return k.notices(wire.NoticeAt(n, time.Now())) }

// notices sends a set of notices and returns its revision, which is the message's number.
func (k *talk) notices(all ...*apiv1.Notice) uint64 {
	return k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Notices{
		Notices: &apiv1.StandingNotices{Revision: k.number + 1, Notices: all},
	}})
}

// reportWith sends a report with notices, of which that of the message before is the revision.
func (k *talk) reportWith(notices ...*apiv1.Notice) uint64 {
	return k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{
		Version: nstance.ReportVersion, CanDrain: true, Notices: &apiv1.StandingNotices{Revision: k.number, Notices: notices},
	}}})
}

// hear returns the next message.
func (k *talk) hear() *apiv1.ConnectResponse {
	k.Helper()
	select {
	case m := <-k.heard:
		return m
	default:
	}
	select {
	case m := <-k.heard:
		return m
	case err := <-k.over:
		require.NoError(k, err, "the session is over")
	case <-time.After(eventually):
		require.FailNow(k, "nothing is heard")
	}
	return nil
}

// acked waits for the acknowledgement of a report, a revision of notices or the
// result of a drain, passing over others.
func (k *talk) acked(number uint64) {
	k.Helper()
	for acknowledged(k.hear()) != number {
		continue
	}
}

func acknowledged(m *apiv1.ConnectResponse) uint64 {
	a := m.GetAcknowledgement()
	return cmp.Or(a.GetReport(), a.GetNoticesRevision(), a.GetDrainGeneration())
}

// answered is acked, but what is passed over is still to be heard.
func (k *talk) answered(number uint64) {
	k.Helper()
	var others []*apiv1.ConnectResponse
	for m := k.hear(); acknowledged(m) != number; m = k.hear() {
		others = append(others, m)
	}
	for _, m := range others {
		k.heard <- m
	}
}

// ends waits for the end of the session and returns why.
func (k *talk) ends() error {
	k.Helper()
	return wire.ErrorOf(receive(k.T, k.over))
}

// ready registers the instance, connects, and reports well.
func (w *world) ready(id nstance.InstanceID) *talk {
	w.Helper()
	k := w.agent(id).connect()
	k.answered(k.report()) // there may be files for it already
	w.await(nstance.EventReady, id)
	return k
}

func reclaim(id string, in time.Duration) nstance.Notice {
	now := time.Now().UTC()
	return nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "test/spot", EventID: id, Deadline: now.Add(in), DetectedAt: now}
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(eventually):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}
