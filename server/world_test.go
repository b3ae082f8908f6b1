package server_test

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/secret"
)

const (
	cluster = nstance.ClusterID("c1")
	zone    = nstance.ShardID("s1")

	// eventually is the deadline of conditions that normally hold at once. Only
	// a failing test waits this long.
	eventually = time.Minute
)

// kinds are the provider kinds that the configurations of these tests may name.
var kinds = provider.Kinds{simcloud.Kind(), {Name: "aws", Spot: true, Open: simcloud.Kind().Open}}

// configuration is a shard with two tenants. %s is further shard settings, %d the
// size of group default/web.
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

// A setup is how a world differs from the default one.
type setup struct {
	webSize  int
	config   string // the whole configuration, instead of the default one
	shard    string
	store    storage.Store
	cloud    simcloud.Options
	provider nstance.Provider // wraps the cloud
	opts     server.Options
	rates    bool // read interruption rates at once
	noWait   bool // do not wait until the server leads
}

// A world is one server over a store in memory and a simulated cloud, reached
// over real sockets.
type world struct {
	*testing.T
	store      storage.Store
	cloud      *simcloud.Cloud
	conf       source
	secrets    *secret.Box
	server     *server.Server
	keys       *keyring.Keys
	stopServer func() error // returns the result of Run

	filePasses atomic.Int64

	mu         sync.Mutex
	events     []nstance.Event
	eventAdded chan struct{} // closed and replaced with every event
}

func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	w := &world{T: t, store: s.store, cloud: simcloud.New(&s.cloud), eventAdded: make(chan struct{}), secrets: s.opts.Secrets}
	t.Cleanup(w.cloud.Close)
	if w.store == nil {
		w.store = storage.NewMemory()
	}
	if s.config == "" {
		s.config = fmt.Sprintf(configuration, s.shard, s.webSize)
	}
	w.conf.set(s.config, nil)
	s.opts.Journal = w.journal
	if s.opts.Kinds == nil {
		s.opts.Kinds = kinds
	}
	hasten(&s.opts, func() { w.filePasses.Add(1) })
	if s.rates {
		hastenRates(&s.opts)
	}
	if s.provider == nil {
		s.provider = w.cloud
	}
	var err error
	w.releaseLease()
	w.server, err = server.New(t.Context(), w.store, s.provider, w.conf.read, &s.opts)
	require.NoError(t, err)
	w.run()
	w.keys, err = storedKeys(w)
	require.NoError(t, err)
	if !s.noWait {
		w.awaitLeading()
	}
	if !s.noWait && s.store == nil {
		require.Eventually(t, func() bool { return groupsKnown(w.server) }, eventually, time.Millisecond)
	}
	return w
}

// releaseLease makes a store look as if the last leader had released its lease,
// so that no server has to wait for it.
func (w *world) releaseLease() {
	w.Helper()
	if prepared, err := lease.Prepare(w.Context(), w.store, zone); err == nil && prepared {
		return
	}
	if _, err := w.store.Get(w.Context(), layout.LeaseKey(zone)); !errors.Is(err, nstance.NotFound) {
		return
	}
	last := immediateElector(w, w.store)
	_, err := last.Campaign(w.Context())
	require.NoError(w, err)
	require.NoError(w, last.Resign(w.Context()))
}

// immediateElector returns an elector that takes the lease without waiting.
func immediateElector(t testing.TB, store storage.Store) lease.Elector {
	t.Helper()
	l, err := lease.New(store, zone, &lease.Options{TakeAtOnce: true, TTL: records.MaxLeaseTTL})
	require.NoError(t, err)
	return l
}

// storedKeys returns the cluster's keys as they are in storage.
func storedKeys(w *world) (*keyring.Keys, error) {
	return keyring.Bootstrap(w.Context(), vault.New(w.store, w.secrets), time.Now())
}

// run starts the server and waits until it listens.
func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Run(ctx) }()
	w.stopServer = sync.OnceValue(func() error {
		cancel()
		return receive(w.T, ended)
	})
	w.Cleanup(func() { require.NoError(w, w.stopServer()) })
	limit, done := context.WithTimeout(w.Context(), eventually)
	defer done()
	require.NoError(w, w.server.Ready(limit))
}

// awaitLeading waits until the server answers calls.
func (w *world) awaitLeading() {
	require.Eventually(w, func() bool { return w.getPage("/readyz").StatusCode == http.StatusOK }, eventually, 5*time.Millisecond)
}

func (w *world) journal(e nstance.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
	close(w.eventAdded)
	w.eventAdded = make(chan struct{})
}

// awaitEvent returns the first event that matches, as soon as there is one.
func (w *world) awaitEvent(typ nstance.EventType, id nstance.InstanceID) nstance.Event {
	w.Helper()
	limit := time.After(eventually)
	for {
		e, ok, news := w.findEvent(typ, id)
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

func (w *world) findEvent(typ nstance.EventType, id nstance.InstanceID) (nstance.Event, bool, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == typ && (id == "" || e.Instance == id) {
			return e, true, w.eventAdded
		}
	}
	return nstance.Event{}, false, w.eventAdded
}

// hasEvent reports whether there was an event that is says yes to.
func (w *world) hasEvent(is func(nstance.Event) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, is)
}

// countEvents returns how many events of a type there were.
func (w *world) countEvents(typ nstance.EventType) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

// awaitMachines waits until the default tenant has so many machines, and each is created.
func (w *world) awaitMachines(n int) (ids []nstance.InstanceID) {
	w.Helper()
	require.Eventually(w, func() bool {
		ids = nil
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == nstance.DefaultTenant {
				ids = append(ids, m.ID)
			}
		}
		return len(ids) == n
	}, eventually, time.Millisecond)
	for _, id := range ids {
		w.awaitEvent(nstance.EventCreated, id)
	}
	return ids
}

// awaitMachine waits for the group's first machine and returns its ID.
func (w *world) awaitMachine(tenant nstance.TenantID) nstance.InstanceID {
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
	w.awaitEvent(nstance.EventCreated, id)
	return id
}

// userDataNonce returns the nonce in the machine's user data.
func (w *world) userDataNonce(id nstance.InstanceID) string {
	spec, ok := w.cloud.Spec(id)
	require.True(w, ok)
	return string(spec.UserData)
}

// A client has a key and, once registered, a certificate.
type client struct {
	w    *world
	key  ed25519.PrivateKey
	cert *tls.Certificate
}

func (w *world) newClient() *client { return &client{w: w, key: pki.NewKey()} }

// dial opens a connection to addr with the client's certificate.
func (h *client) dial(addr string) *grpc.ClientConn {
	return h.dialWith(addr, pki.ClientTLS(h.w.keys.Identity.Pool(), h.cert, zone, cluster))
}

func (h *client) dialWith(addr string, cfg *tls.Config) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	require.NoError(h.w, err)
	h.w.Cleanup(func() { conn.Close() })
	return conn
}

func (h *client) csr(key ed25519.PrivateKey) []byte {
	csr, err := pki.NewCSR(key, "test")
	require.NoError(h.w, err)
	return csr
}

// register registers as an agent and returns the server's errors.
func (h *client) register(nonce string) (nstance.Credential, error) {
	conn := h.dial(h.w.server.Addresses().Registration)
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(h.w.Context(), &apiv1.RegisterAgentRequest{
		Nonce: nonce, Csr: h.csr(h.key), Addresses: []string{"10.1.2.3"}, Hostname: "web-1",
	})
	if err != nil {
		return nstance.Credential{}, wire.ErrorOf(err)
	}
	c := wire.CredentialOf(resp.GetCredential())
	h.useCredential(h.key, c)
	return c, nil
}

func (h *client) useCredential(key ed25519.PrivateKey, c nstance.Credential) {
	h.key, h.cert = key, &tls.Certificate{Certificate: c.Chain, PrivateKey: key}
}

// registerClient registers an operator or administrator.
func (w *world) registerClient(role nstance.Role, tenant nstance.TenantID) *client {
	w.Helper()
	nonce, err := w.keys.Nonces.Mint("", keyring.Claims{
		Kind: role, Subject: string(cluster), Cluster: cluster, Tenant: tenant, JTI: rand.Text(),
		NotBefore: time.Now().Add(-24 * time.Hour), Expiry: time.Now().Add(time.Hour),
	})
	require.NoError(w, err)
	h := w.newClient()
	conn := h.dial(w.server.Addresses().Registration)
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterOperator(w.Context(), &apiv1.RegisterOperatorRequest{Nonce: nonce, Csr: h.csr(h.key)})
	require.NoError(w, err)
	h.useCredential(h.key, wire.CredentialOf(resp.GetCredential()))
	return h
}

// operatorAPI returns a client of the operators' API.
func (h *client) operatorAPI() apiv1.OperatorServiceClient {
	return apiv1.NewOperatorServiceClient(h.dial(h.w.server.Addresses().Operator))
}

func (w *world) admin() apiv1.OperatorServiceClient {
	return w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant).operatorAPI()
}

// registerAgent registers an instance with the nonce in its user data.
func (w *world) registerAgent(id nstance.InstanceID) *client {
	w.Helper()
	h := w.newClient()
	_, err := h.register(w.userDataNonce(id))
	require.NoError(w, err)
	return h
}

// An agentSession is the agent's end of a session.
type agentSession struct {
	*testing.T
	client       *client
	stream       grpc.BidiStreamingClient[apiv1.ConnectRequest, apiv1.ConnectResponse]
	lastNumber   uint64
	messages     chan *apiv1.ConnectResponse
	ended        chan error // why the session ended
	ignoreGoAway atomic.Bool
}

// connect opens a session and waits for the welcome.
func (h *client) connect() *agentSession {
	h.w.Helper()
	k := h.open(h.w.Context())
	require.NotNil(h.w, k.nextMessage().GetWelcome())
	return k
}

func (h *client) open(ctx context.Context) *agentSession {
	h.w.Helper()
	ctx, leave := context.WithCancel(ctx)
	h.w.Cleanup(leave)
	stream, err := apiv1.NewAgentServiceClient(h.dial(h.w.server.Addresses().Agent)).Connect(ctx)
	require.NoError(h.w, err)
	k := &agentSession{T: h.w.T, client: h, stream: stream, messages: make(chan *apiv1.ConnectResponse, 1000), ended: make(chan error, 1)}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				k.ended <- err
				return
			}
			k.messages <- m
			if m.GetGoAway() != nil && !k.ignoreGoAway.Load() {
				leave()
			}
		}
	}()
	return k
}

// send sends a message and returns its number.
func (k *agentSession) send(m *apiv1.ConnectRequest) uint64 {
	k.lastNumber++
	m.Number = k.lastNumber
	_ = k.stream.Send(m) // an error also ends the session
	return k.lastNumber
}

func (k *agentSession) sendReport() uint64 {
	return k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{Version: wire.ReportVersion, CanDrain: true}}})
}

// sendNotice sends a set of one notice and returns its revision.
func (k *agentSession) sendNotice(n nstance.Notice) uint64 {
	return k.sendNotices(wire.NoticeAt(n, time.Now()))
}

// sendNotices sends a set of notices and returns its revision, which is the message's number.
func (k *agentSession) sendNotices(all ...*apiv1.Notice) uint64 {
	return k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Notices{
		Notices: &apiv1.StandingNotices{Revision: k.lastNumber + 1, Notices: all},
	}})
}

// sendReportWith sends a report with notices. Their revision is the number of the message before.
func (k *agentSession) sendReportWith(notices ...*apiv1.Notice) uint64 {
	return k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{
		Version: wire.ReportVersion, CanDrain: true, Notices: &apiv1.StandingNotices{Revision: k.lastNumber, Notices: notices},
	}}})
}

// nextMessage returns the next message.
func (k *agentSession) nextMessage() *apiv1.ConnectResponse {
	k.Helper()
	select {
	case m := <-k.messages:
		return m
	default:
	}
	select {
	case m := <-k.messages:
		return m
	case err := <-k.ended:
		require.NoError(k, err, "the session ended")
	case <-time.After(eventually):
		require.FailNow(k, "no message")
	}
	return nil
}

// awaitAck waits for the acknowledgement of a report, a revision of notices or
// the result of a drain. It drops other messages.
func (k *agentSession) awaitAck(number uint64) {
	k.Helper()
	for ackNumber(k.nextMessage()) != number {
		continue
	}
}

func ackNumber(m *apiv1.ConnectResponse) uint64 {
	a := m.GetAcknowledgement()
	return cmp.Or(a.GetReport(), a.GetNoticesRevision(), a.GetDrainGeneration())
}

// awaitAckKeepingOthers is awaitAck, but other messages stay to be received.
func (k *agentSession) awaitAckKeepingOthers(number uint64) {
	k.Helper()
	var others []*apiv1.ConnectResponse
	for m := k.nextMessage(); ackNumber(m) != number; m = k.nextMessage() {
		others = append(others, m)
	}
	for _, m := range others {
		k.messages <- m
	}
}

// awaitEnd waits for the end of the session and returns its error.
func (k *agentSession) awaitEnd() error {
	k.Helper()
	return wire.ErrorOf(receive(k.T, k.ended))
}

// connectReady registers the instance, connects, and sends a healthy report.
func (w *world) connectReady(id nstance.InstanceID) *agentSession {
	w.Helper()
	k := w.registerAgent(id).connect()
	k.awaitAckKeepingOthers(k.sendReport()) // the server may already send files
	w.awaitEvent(nstance.EventReady, id)
	return k
}

func reclaimNotice(id string, in time.Duration) nstance.Notice {
	now := time.Now().UTC()
	return nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "test/spot", EventID: id, Deadline: now.Add(in), DetectedAt: now}
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(eventually):
		require.FailNow(t, "nothing received")
		panic("unreachable")
	}
}

// listAttention returns the attention list of a caller, by kind.
func listAttention(t *testing.T, api apiv1.OperatorServiceClient) map[string][]*apiv1.Attention {
	t.Helper()
	shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
	require.NoError(t, err)
	require.Zero(t, shard.GetAttentionOmitted())
	out := map[string][]*apiv1.Attention{}
	for _, a := range shard.GetAttention() {
		out[a.GetKind()] = append(out[a.GetKind()], a)
	}
	return out
}

// getPage fetches a page and reads its body.
func (w *world) getPage(path string) *http.Response {
	w.Helper()
	resp, err := http.Get("http://" + w.server.Addresses().HTTP + path)
	require.NoError(w, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(w, err)
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp
}

func (w *world) status() web.Status {
	w.Helper()
	var s web.Status
	require.NoError(w, json.NewDecoder(w.getPage("/status.json").Body).Decode(&s))
	return s
}
