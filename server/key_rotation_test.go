package server_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// newInstanceID returns an unused ID.
func newInstanceID() nstance.InstanceID {
	id, err := nstance.NewInstanceID("web", time.Now())
	if err != nil {
		panic(err)
	}
	return id
}

// awaitNextMachine waits for a machine of the tenant that is not old.
func (w *world) awaitNextMachine(tenant nstance.TenantID, old nstance.InstanceID) (id nstance.InstanceID) {
	w.Helper()
	require.Eventually(w, func() bool {
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == tenant && m.ID != old {
				id = m.ID
			}
		}
		return id != ""
	}, eventually, time.Millisecond)
	w.awaitEvent(nstance.EventCreated, id)
	return id
}

// identity returns the identity in the client's certificate.
func (h *client) identity() nstance.Identity {
	certs, err := pki.ParseCertificates(pki.MarshalCertificates(h.cert.Certificate...))
	require.NoError(h.w, err)
	id, err := pki.IdentityOf(certs[0])
	require.NoError(h.w, err)
	return id
}

// renewCertificate renews the client's certificate over its API.
func (h *client) renewCertificate() {
	h.w.Helper()
	if h.identity().Role == nstance.RoleAgent {
		require.NoError(h.w, h.renewAgent())
		return
	}
	key := pki.NewKey()
	resp, err := h.operatorAPI().RenewCertificate(h.w.Context(), &apiv1.OperatorServiceRenewCertificateRequest{Csr: h.csr(key)})
	require.NoError(h.w, err)
	h.useCredential(key, wire.CredentialOf(resp.GetCredential()))
}

// renewAgent renews an agent's certificate and returns the server's errors.
func (h *client) renewAgent() error {
	h.w.Helper()
	key, conn := pki.NewKey(), h.dial(h.w.server.Addresses().Agent)
	defer conn.Close()
	resp, err := apiv1.NewAgentServiceClient(conn).RenewCertificate(h.w.Context(), &apiv1.RenewCertificateRequest{Csr: h.csr(key)})
	if err == nil {
		h.useCredential(key, wire.CredentialOf(resp.GetCredential()))
	}
	return err
}

// A slowClock is a clock that is behind. A test can advance it without creating
// certificates that TLS does not accept yet.
type slowClock struct{ behind atomic.Int64 }

func newSlowClock(d time.Duration) *slowClock {
	p := &slowClock{}
	p.behind.Store(int64(d))
	return p
}

func (p *slowClock) now() time.Time          { return time.Now().Add(-time.Duration(p.behind.Load())) }
func (p *slowClock) advance(d time.Duration) { p.behind.Add(-int64(d)) }

// A keyRotation is a world whose keys are rotated.
type keyRotation struct {
	*world
	*slowClock
	rotationAdmin *client
}

func newKeyRotation(t *testing.T) *keyRotation {
	p := newSlowClock(3 * keyring.Settle)
	w := newWorld(t, setup{
		webSize: 1, shard: `"health_interval": "1h",`, store: datedStore{storage.NewMemory(), p.now}, // server and storage use the same clock
		opts: server.Options{Now: p.now, KeyInterval: 10 * time.Millisecond},
	})
	return &keyRotation{w, p, w.registerClient(nstance.RoleAdmin, "default")}
}

func (w *keyRotation) rotate(step string, force bool) ([]*apiv1.Key, error) {
	resp, err := w.rotationAdmin.operatorAPI().RotateKey(w.Context(), &apiv1.RotateKeyRequest{Name: keyring.Identity, Step: step, Force: force})
	if err == nil {
		w.keys, err = storedKeys(w.world)
	}
	return resp.GetKeys(), wire.ErrorOf(err)
}

func (w *keyRotation) mustRotate(step string) {
	w.Helper()
	_, err := w.rotate(step, false)
	require.NoError(w, err)
}

// awaitRenewalRequest waits until the server asks the watcher to renew.
func (g *instanceWatch) awaitRenewalRequest() time.Duration {
	g.Helper()
	for {
		m, err := g.stream.Recv()
		require.NoError(g, err)
		if m.GetRenewal() != nil {
			return m.GetRenewal().GetWithin().AsDuration()
		}
	}
}

// awaitRenewalRequest waits until the server asks the watcher to renew.
func (g *groupWatch) awaitRenewalRequest() time.Duration {
	g.Helper()
	for {
		m, err := g.stream.Recv()
		require.NoError(g, err)
		if m.GetRenewal() != nil {
			return m.GetRenewal().GetWithin().AsDuration()
		}
	}
}

// TestWatchersAreAskedToRenew: like agents, because their streams end with the key.
func TestWatchersAreAskedToRenew(t *testing.T) {
	t.Parallel()
	w := newKeyRotation(t)
	operator := w.registerClient(nstance.RoleOperator, "default")
	watch := w.watch(operator.operatorAPI(), &apiv1.WatchInstanceEventsRequest{})
	watch.snapshot()
	groups := w.watchGroups(w.rotationAdmin.operatorAPI(), &apiv1.WatchGroupsRequest{})
	groups.snapshot()
	w.mustRotate("begin")
	w.advance(keyring.Settle)
	w.mustRotate("activate")
	require.Equal(t, 5*time.Second, watch.awaitRenewalRequest())
	require.Equal(t, 5*time.Second, groups.awaitRenewalRequest())
	t.Run("a new watcher, with its snapshot", func(t *testing.T) {
		w.watch(operator.operatorAPI(), &apiv1.WatchInstanceEventsRequest{}).awaitRenewalRequest()
		w.watchGroups(operator.operatorAPI(), &apiv1.WatchGroupsRequest{}).awaitRenewalRequest()
	})
	t.Run("a watcher that resumes", func(t *testing.T) {
		w.watch(operator.operatorAPI(), &apiv1.WatchInstanceEventsRequest{AfterSeq: watch.seq}).awaitRenewalRequest()
		w.watchGroups(operator.operatorAPI(), &apiv1.WatchGroupsRequest{AfterSeq: groups.seq}).awaitRenewalRequest()
	})
	t.Run("not a watcher that has renewed", func(t *testing.T) {
		operator.renewCertificate()
		late := w.watch(operator.operatorAPI(), &apiv1.WatchInstanceEventsRequest{})
		late.snapshot()
		id := w.awaitMachine("default")
		w.connectReady(id)
		require.NotEmpty(t, late.nextEvent().GetType(), "the first thing that it hears")
	})
}

// servingKey returns the key that signed a port's certificate.
func servingKey(t *testing.T, w *world, addr string) string {
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", addr) //nolint:gosec // the test checks the certificate itself
	require.NoError(t, err)
	defer conn.Close()
	id, err := pki.IdentityOf(conn.(*tls.Conn).ConnectionState().PeerCertificates[0])
	require.NoError(t, err)
	return id.Issuer
}

func TestIdentityRotationWithRunningServers(t *testing.T) {
	t.Parallel()
	w := newKeyRotation(t)
	other := startSecondShard(t, w.world)
	agent := w.registerAgent(w.awaitMachine("default"))
	unregistered := w.awaitMachine("blue")
	session := agent.connect()
	watcher := w.registerClient(nstance.RoleOperator, "default")
	watch := w.watch(watcher.operatorAPI(), &apiv1.WatchInstanceEventsRequest{})
	watch.snapshot()
	old := w.keys.Identity.Issuer()

	w.mustRotate("begin")
	_, err := w.rotate("activate", false)
	require.ErrorIs(t, err, nstance.Conflict, "servers may not have noticed")
	w.advance(keyring.Settle)
	w.mustRotate("activate")
	next := w.keys.Identity.Issuer()
	require.NotEqual(t, old, next)

	t.Run("a client with a certificate of the old key is served, and asked to renew", func(t *testing.T) {
		for session.nextMessage().GetRenewal() == nil {
			continue
		}
		require.Equal(t, old, servingKey(t, w.world, w.server.Addresses().Agent), "the server still shows the old key")
		session.awaitAck(session.sendReport())
		_, err := watcher.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		again := agent.open(t.Context())
		require.NotNil(t, again.nextMessage().GetWelcome())
		for again.nextMessage().GetRenewal() == nil { // it is repeated in each session
			continue
		}
	})
	t.Run("servers of other shards follow without a restart", func(t *testing.T) {
		late := w.registerClient(nstance.RoleAdmin, "default")
		require.Equal(t, next, late.identity().Issuer)
		require.Eventually(t, func() bool {
			_, err := apiv1.NewOperatorServiceClient(late.dialTo(other.Addresses().Operator, "s2")).ListKeys(t.Context(), &apiv1.ListKeysRequest{})
			return err == nil
		}, eventually, 5*time.Millisecond)
	})
	w.advance(keyring.Settle)
	t.Run("finish waits for every certificate in every shard", func(t *testing.T) {
		w.awaitEvent(nstance.EventDeleted, unregistered) // it knew the old key only, and had no more time to register
		foreign := w.addForeignRecord("s2", old)
		_, err := w.rotate("finish", false)
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "1 in shard s1")
		require.ErrorContains(t, err, "1 in shard s2")
		require.ErrorContains(t, err, "in operators")

		w.rotationAdmin.renewCertificate()
		agent.renewCertificate()
		agent.connect()
		watcher.renewCertificate()
		_, err = watcher.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		_, err = w.rotate("finish", false)
		require.ErrorContains(t, err, "(1 in shard s2), such as "+string(foreign), "the others have certificates of the new key, and use them")
		require.NoError(t, records.New(w.store, "s2", nil).Delete(t.Context(), foreign))
		_, err = w.store.PutIfAbsent(t.Context(), "instance/s2/default/web/"+string(newInstanceID())+".json", []byte("{damaged"))
		require.NoError(t, err)
		_, err = w.rotate("finish", false)
		require.ErrorContains(t, err, "unreadable", "what cannot be read may be a holder")
	})
	t.Run("the renewal is durable for servers of other shards", func(t *testing.T) {
		require.Eventually(t, func() bool {
			rec := w.storedInstance(nstance.InstanceID(agent.identity().Subject))
			return rec.Pending == nil && rec.Current.Issuer == next
		}, eventually, 5*time.Millisecond)
	})
	t.Run("afterwards the old key is not trusted", func(t *testing.T) {
		_, err := w.rotate("finish", true)
		require.NoError(t, err)
		require.Equal(t, next, servingKey(t, w.world, w.server.Addresses().Agent))
		require.Eventually(t, func() bool { return servingKey(t, w.world, other.Addresses().Registration) == next }, eventually, 5*time.Millisecond)
		session := agent.connect()
		session.awaitAck(session.sendReport())
		require.Equal(t, 3, w.countEvents(eventtype.KeysRotated))
	})
}

func TestForcedFinishRejectsOldKey(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newKeyRotation(t)
	agent := w.registerAgent(w.awaitMachine("default"))
	session := agent.connect()
	operator := w.registerClient(nstance.RoleOperator, "default")
	api := operator.operatorAPI()
	watch := w.watch(api, &apiv1.WatchInstanceEventsRequest{})
	watch.snapshot()
	w.mustRotate("begin")
	w.advance(keyring.Settle)
	w.mustRotate("activate")
	_, err := w.rotate("finish", true)
	require.NoError(t, err)
	require.Error(t, session.awaitEnd())
	require.ErrorIs(t, watch.awaitEnd(), nstance.Denied)
	_, err = api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied, "on the connection that was valid before")
}

// TestNewLeaderRejectsOldKey: a connection that a standby accepted before a key was removed
// is open when that server leads.
func TestNewLeaderRejectsOldKey(t *testing.T) {
	t.Parallel()
	p := newSlowClock(3 * keyring.Settle)
	opts := server.Options{Now: p.now, KeyInterval: 10 * time.Millisecond, Shared: true, Bind: server.Addresses{Peer: "127.0.0.1:0"}}
	one := setup{store: datedStore{storage.NewMemory(), p.now}, opts: opts}
	w := &keyRotation{newWorld(t, one), p, nil}
	w.rotationAdmin = w.registerClient(nstance.RoleAdmin, "default")
	one.noWait = true
	second := newWorld(t, one)
	api := apiv1.NewOperatorServiceClient(w.rotationAdmin.dial(second.server.Addresses().Operator))
	_, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
	peer := second.peerService(second.issueServerCert(zone, cluster))
	watchAsPeer := func() error {
		stream, err := peer.Watch(t.Context(), &apiv1.WatchRequest{Server: "test"})
		if err == nil {
			_, err = stream.Recv()
		}
		return wire.ErrorOf(err)
	}
	require.ErrorIs(t, watchAsPeer(), nstance.Unavailable)
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	atLeader, err := w.peerService(w.issueServerCert(zone, cluster)).Watch(ctx, &apiv1.WatchRequest{Server: "test"})
	require.NoError(t, err)
	_, err = atLeader.Recv()
	require.NoError(t, err)

	w.mustRotate("begin")
	w.advance(keyring.Settle)
	w.mustRotate("activate")
	_, err = w.rotate("finish", true)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return servingKey(t, second, second.server.Addresses().Registration) == w.keys.Identity.Issuer()
	}, eventually, 5*time.Millisecond)
	for err == nil {
		_, err = atLeader.Recv()
	}
	require.Equal(t, codes.Unavailable, status.Code(err), "the leader has closed the connection")
	require.NoError(t, w.stopServer())
	second.awaitLeading()
	_, err = api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	require.ErrorIs(t, watchAsPeer(), nstance.Denied)
}

func TestListKeys(t *testing.T) {
	t.Parallel()
	w := newKeyRotation(t)
	id := w.awaitMachine("default")
	list := func() map[string]*apiv1.Key {
		resp, err := w.admin().ListKeys(t.Context(), &apiv1.ListKeysRequest{})
		require.NoError(t, err)
		out := map[string]*apiv1.Key{}
		for _, k := range resp.GetKeys() {
			out[k.GetName()+" "+k.GetPhase()] = k
		}
		return out
	}
	keys := list()
	require.Len(t, keys, 3)
	require.Equal(t, w.keys.Identity.Issuer(), keys["identity current"].GetId())
	require.Equal(t, w.keys.Nonces.KeyID(), keys["nonce current"].GetId())
	require.EqualValues(t, 2, keys["nonce current"].GetHolders(), "machines that have not used their nonce up")
	require.Positive(t, keys["nonce current"].GetLastUseEnds().AsTime().Sub(w.now()))
	require.NotNil(t, keys["identity current"].GetNotAfter())
	require.Zero(t, keys["workload current"].GetHolders())

	_, err := w.rotate("begin", false)
	require.NoError(t, err)
	keys = list()
	require.Len(t, keys, 4)
	require.WithinDuration(t, w.now().Add(keyring.Settle), keys["identity next"].GetNextStepAt().AsTime(), time.Minute)
	w.registerAgent(id)
	require.EqualValues(t, 2, list()["identity current"].GetHolders(), "one certificate, and a machine that knows no other key")
}

func TestRotateKeyErrors(t *testing.T) {
	t.Parallel()
	w := newKeyRotation(t)
	for name, tc := range map[string]struct {
		req  *apiv1.RotateKeyRequest
		code nstance.Code
	}{
		"an unknown set":      {&apiv1.RotateKeyRequest{Name: "encryption", Step: "begin"}, nstance.Invalid},
		"an unknown step":     {&apiv1.RotateKeyRequest{Name: "nonce", Step: "go"}, nstance.Invalid},
		"force without need":  {&apiv1.RotateKeyRequest{Name: "nonce", Step: "begin", Force: true}, nstance.Invalid},
		"activate at once":    {&apiv1.RotateKeyRequest{Name: "nonce", Step: "activate"}, nstance.Conflict},
		"a dry run of a step": {&apiv1.RotateKeyRequest{Name: "nonce", Step: "activate", DryRun: true}, nstance.Conflict},
	} {
		_, err := w.admin().RotateKey(t.Context(), tc.req)
		require.ErrorIs(t, wire.ErrorOf(err), tc.code, name)
	}
	require.Zero(t, w.countEvents(eventtype.KeysRotated))
}

// A repeated create must send the same bytes as the first attempt, even if the keys
// were rotated since.
func TestUserDataUnchangedByRotation(t *testing.T) {
	t.Parallel()
	w := newKeyRotation(t)
	def := nstance.Definition{UserData: nstance.UserData{Content: "{{.Cluster.CACert}}{{.Nonce}}"}}
	fresh := reconcile.RenderRequest{
		ID: newInstanceID(), Group: nstance.GroupKey{Tenant: "default", Group: "web"}, CreatedAt: w.now(), RegisterBy: w.now().Add(time.Hour), Definition: def,
	}
	first, err := server.Render(w.server, fresh)
	require.NoError(t, err)
	repeated := fresh
	repeated.SignedWith = first.SignedWith
	step := func(set, step string, force bool) {
		_, err := w.admin().RotateKey(t.Context(), &apiv1.RotateKeyRequest{Name: set, Step: step, Force: force})
		require.NoError(t, err)
		w.keys, err = storedKeys(w.world)
		require.NoError(t, err)
	}
	for _, s := range []string{"begin", "activate"} {
		step(keyring.Identity, s, false)
		step(keyring.Nonces, s, false)
		w.advance(keyring.Settle)
		again, err := server.Render(w.server, repeated)
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
	t.Run("a later one trusts both", func(t *testing.T) {
		later, err := server.Render(w.server, fresh)
		require.NoError(t, err)
		require.Contains(t, string(later.UserData), string(w.keys.Identity.CertPEM()))
		require.Len(t, later.SignedWith.Authorities, 2)
	})
	t.Run("user data that cannot be rendered again is refused", func(t *testing.T) {
		step(keyring.Nonces, "finish", true)
		_, err := server.Render(w.server, repeated)
		require.ErrorIs(t, err, nstance.Conflict)
		require.NotErrorIs(t, err, nstance.NotFound)
	})
}

// dialTo is dial for the server of another shard.
func (h *client) dialTo(addr string, shard nstance.ShardID) *grpc.ClientConn {
	return h.dialWith(addr, pki.ClientTLS(h.w.keys.Identity.Pool(), h.cert, shard, cluster))
}

// startSecondShard runs the server of another shard over the same storage.
func startSecondShard(t *testing.T, w *world) *server.Server {
	cloud := simcloud.New(nil)
	t.Cleanup(cloud.Close)
	text := `{"cluster": {"id": "c1"}, "shard": {"id": "s2", "provider": {"kind": "sim"}, "shutdown_timeout": "5s",
		"bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0"}}}`
	_, err := lease.Prepare(t.Context(), w.store, "s2")
	require.NoError(t, err)
	source := func(context.Context) (string, []byte, error) { return "s2.jsonc", []byte(text), nil }
	s, err := server.New(t.Context(), w.store, cloud, source, &server.Options{Kinds: kinds, KeyInterval: 10 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, receive(t, ended))
	})
	require.NoError(t, s.Ready(t.Context()))
	return s
}

// addForeignRecord writes the record of a registered instance of another shard.
func (w *keyRotation) addForeignRecord(shard nstance.ShardID, issuer string) nstance.InstanceID {
	key := pki.NewKey().Public().(ed25519.PublicKey)
	rec, err := records.New(w.store, shard, nil).Create(w.Context(), records.Instance{
		ID: newInstanceID(), Tenant: "default", Group: "web", CreatedAt: w.now(), RegisteredAt: w.now(),
		Current: &records.KeyRecord{Fingerprint: pki.KeyFingerprint(key), Serial: "1", Issuer: issuer, NotAfter: w.now().Add(-time.Hour)},
	})
	require.NoError(w, err)
	return rec.ID
}

// storedInstance reads the record of an instance of this shard as it is in storage.
func (w *keyRotation) storedInstance(id nstance.InstanceID) records.Instance {
	obj, err := w.store.Get(w.Context(), layout.InstanceKey(zone, "default", "web", id))
	require.NoError(w, err)
	var rec records.Instance
	require.NoError(w, json.Unmarshal(obj.Data, &rec))
	return rec
}
