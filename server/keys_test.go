package server_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// freshID returns an ID that no instance has.
func freshID() nstance.InstanceID {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x70, b[8]&0x3f|0x80
	return nstance.FormatInstanceID("web", b)
}

// nextMachine waits for a machine of the tenant other than old.
func (w *world) nextMachine(tenant nstance.TenantID, old nstance.InstanceID) (id nstance.InstanceID) {
	w.Helper()
	require.Eventually(w, func() bool {
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == tenant && m.ID != old {
				id = m.ID
			}
		}
		return id != ""
	}, eventually, time.Millisecond)
	w.await(nstance.EventCreated, id)
	return id
}

// who returns what the holder's certificate says.
func (h *holder) who() nstance.Identity {
	certs, err := pki.ParseCertificates(pki.MarshalCertificates(h.cert.Certificate...))
	require.NoError(h.w, err)
	id, err := pki.IdentityOf(certs[0])
	require.NoError(h.w, err)
	return id
}

// renewed exchanges the holder's certificate over its API.
func (h *holder) renewed() {
	h.w.Helper()
	key := pki.NewKey()
	if h.who().Role == nstance.RoleAgent {
		conn := h.dial(h.w.server.Addresses().Agent)
		defer conn.Close()
		resp, err := apiv1.NewAgentServiceClient(conn).RenewCertificate(h.w.Context(), &apiv1.RenewCertificateRequest{Csr: h.csr(key)})
		require.NoError(h.w, err)
		h.use(key, wire.CredentialOf(resp.GetCredential()))
		return
	}
	resp, err := h.api().RenewCertificate(h.w.Context(), &apiv1.OperatorServiceRenewCertificateRequest{Csr: h.csr(key)})
	require.NoError(h.w, err)
	h.use(key, wire.CredentialOf(resp.GetCredential()))
}

// A past is a clock that is behind, so that a test can move it forward without
// making certificates that TLS does not accept yet.
type past struct{ behind atomic.Int64 }

func newPast(d time.Duration) *past {
	p := &past{}
	p.behind.Store(int64(d))
	return p
}

func (p *past) now() time.Time       { return time.Now().Add(-time.Duration(p.behind.Load())) }
func (p *past) pass(d time.Duration) { p.behind.Add(-int64(d)) }

// A turn is a world whose keys are being rotated.
type turn struct {
	*world
	*past
	boss *holder // who rotates
}

func newTurn(t *testing.T) *turn {
	p := newPast(3 * registration.Settle)
	w := newWorld(t, setup{
		size: 1, shard: `"health_interval": "1h",`, store: dated{storage.NewMemory(), p.now}, // time passes everywhere
		opts: server.Options{Now: p.now, KeyInterval: 10 * time.Millisecond},
	})
	return &turn{w, p, w.client(nstance.RoleAdmin, "default")}
}

func (w *turn) rotate(step string, force bool) ([]*apiv1.Key, error) {
	resp, err := w.boss.api().RotateKey(w.Context(), &apiv1.RotateKeyRequest{Name: registration.Identity, Step: step, Force: force})
	if err == nil {
		w.keys, err = keysOf(w.world)
	}
	return resp.GetKeys(), wire.ErrorOf(err)
}

func (w *turn) mustRotate(step string) {
	w.Helper()
	_, err := w.rotate(step, false)
	require.NoError(w, err)
}

// asked waits until the watcher is asked to renew.
func (g *watching) asked() time.Duration {
	g.Helper()
	for {
		m, err := g.stream.Recv()
		require.NoError(g, err)
		if m.GetRenewal() != nil {
			return m.GetRenewal().GetWithin().AsDuration()
		}
	}
}

// asked waits until the watcher is asked to renew.
func (g *groupWatch) asked() time.Duration {
	g.Helper()
	for {
		m, err := g.stream.Recv()
		require.NoError(g, err)
		if m.GetRenewal() != nil {
			return m.GetRenewal().GetWithin().AsDuration()
		}
	}
}

// TestWatchersAreAskedToRenew as agents are: their streams would end with the key.
func TestWatchersAreAskedToRenew(t *testing.T) {
	w := newTurn(t)
	operator := w.client(nstance.RoleOperator, "default")
	watch := w.watch(operator.api(), &apiv1.WatchInstanceEventsRequest{})
	watch.snapshot()
	groups := w.watchGroups(w.boss.api(), &apiv1.WatchGroupsRequest{})
	groups.snapshot()
	w.mustRotate("begin")
	w.pass(registration.Settle)
	w.mustRotate("activate")
	require.Equal(t, 5*time.Second, watch.asked())
	require.Equal(t, 5*time.Second, groups.asked())
	t.Run("a later watcher, with its snapshot", func(t *testing.T) {
		w.watch(operator.api(), &apiv1.WatchInstanceEventsRequest{}).asked()
		w.watchGroups(operator.api(), &apiv1.WatchGroupsRequest{}).asked()
	})
	t.Run("a watcher that resumes", func(t *testing.T) {
		w.watch(operator.api(), &apiv1.WatchInstanceEventsRequest{AfterSeq: watch.seq}).asked()
		w.watchGroups(operator.api(), &apiv1.WatchGroupsRequest{AfterSeq: groups.seq}).asked()
	})
	t.Run("not a watcher that has renewed", func(t *testing.T) {
		operator.renewed()
		late := w.watch(operator.api(), &apiv1.WatchInstanceEventsRequest{})
		late.snapshot()
		id := w.machine("default")
		w.ready(id)
		require.NotEmpty(t, late.event().GetType(), "the first thing that it hears")
	})
}

// shows returns which key signed the certificate that a port shows.
func shows(t *testing.T, w *world, addr string) string {
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", addr) //nolint:gosec // that is what is looked at
	require.NoError(t, err)
	defer conn.Close()
	id, err := pki.IdentityOf(conn.(*tls.Conn).ConnectionState().PeerCertificates[0])
	require.NoError(t, err)
	return id.Issuer
}

func TestIdentityRotatesUnderRunningServers(t *testing.T) {
	w := newTurn(t)
	other := secondShard(t, w.world)
	agent := w.agent(w.machine("default"))
	session := agent.connect()
	watcher := w.client(nstance.RoleOperator, "default")
	watch := w.watch(watcher.api(), &apiv1.WatchInstanceEventsRequest{})
	watch.snapshot()
	old := w.keys.Identity.Issuer()

	w.mustRotate("begin")
	_, err := w.rotate("activate", false)
	require.ErrorIs(t, err, nstance.Conflict, "servers may not have noticed")
	w.pass(registration.Settle)
	w.mustRotate("activate")
	next := w.keys.Identity.Issuer()
	require.NotEqual(t, old, next)

	t.Run("a client with a certificate of the old key is served, and asked to renew", func(t *testing.T) {
		for session.hear().GetRenewal() == nil {
			continue
		}
		require.Equal(t, old, shows(t, w.world, w.server.Addresses().Agent), "by a server it knows")
		session.acked(session.report())
		_, err := watcher.api().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		again := agent.open(t.Context())
		require.NotNil(t, again.hear().GetWelcome())
		for again.hear().GetRenewal() == nil { // at each session
			continue
		}
	})
	t.Run("other shards' servers follow, without a restart", func(t *testing.T) {
		late := w.client(nstance.RoleAdmin, "default")
		require.Equal(t, next, late.who().Issuer)
		require.Eventually(t, func() bool {
			_, err := apiv1.NewOperatorServiceClient(late.dialTo(other.Addresses().Operator, "s2")).ListKeys(t.Context(), &apiv1.ListKeysRequest{})
			return err == nil
		}, eventually, 5*time.Millisecond)
	})
	w.pass(registration.Settle)
	t.Run("finish waits for every holder, in every shard", func(t *testing.T) {
		foreign := w.foreignRecord("s2", old)
		_, err := w.rotate("finish", false)
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "1 in shard s1")
		require.ErrorContains(t, err, "1 in shard s2")
		require.ErrorContains(t, err, "in operators")

		w.boss.renewed()
		agent.renewed()
		agent.connect()
		watcher.renewed()
		_, err = watcher.api().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		_, err = w.rotate("finish", false)
		require.ErrorContains(t, err, "(1 in shard s2), such as "+string(foreign), "the others have certificates of the new key, and use them")
		require.NoError(t, storage.NewRecords(w.store, "s2", nil).Delete(t.Context(), foreign))
		_, err = w.store.PutIfAbsent(t.Context(), "instance/s2/default/web/"+string(freshID())+".json", []byte("{damaged"))
		require.NoError(t, err)
		_, err = w.rotate("finish", false)
		require.ErrorContains(t, err, "unreadable", "what cannot be read may be a holder")
	})
	t.Run("the renewal is made durable, for the servers of other shards", func(t *testing.T) {
		require.Eventually(t, func() bool {
			rec := w.stored(nstance.InstanceID(agent.who().Subject))
			return rec.Pending == nil && rec.Current.Issuer == next
		}, eventually, 5*time.Millisecond)
	})
	t.Run("afterwards the old key is nothing any more", func(t *testing.T) {
		_, err := w.rotate("finish", true)
		require.NoError(t, err)
		require.Equal(t, next, shows(t, w.world, w.server.Addresses().Agent))
		require.Eventually(t, func() bool { return shows(t, w.world, other.Addresses().Registration) == next }, eventually, 5*time.Millisecond)
		session := agent.connect()
		session.acked(session.report())
		require.Equal(t, 3, w.count(nstance.EventKeysRotated))
	})
}

func TestFinishByForceCutsOffTheOldKey(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newTurn(t)
	agent := w.agent(w.machine("default"))
	session := agent.connect()
	operator := w.client(nstance.RoleOperator, "default")
	api := operator.api()
	watch := w.watch(api, &apiv1.WatchInstanceEventsRequest{})
	watch.snapshot()
	w.mustRotate("begin")
	w.pass(registration.Settle)
	w.mustRotate("activate")
	_, err := w.rotate("finish", true)
	require.NoError(t, err)
	require.Error(t, session.ends())
	require.ErrorIs(t, watch.ends(), nstance.Denied)
	_, err = api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied, "on the connection that was good once")
}

func TestListKeys(t *testing.T) {
	w := newTurn(t)
	id := w.machine("default")
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
	require.WithinDuration(t, w.now().Add(registration.Settle), keys["identity next"].GetNextStepAt().AsTime(), time.Minute)
	w.agent(id)
	require.EqualValues(t, 2, list()["identity current"].GetHolders(), "one certificate, and a machine that knows no other key")
}

func TestRotateKeyRefuses(t *testing.T) {
	w := newTurn(t)
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
	require.Zero(t, w.count(nstance.EventKeysRotated))
}

// An intent whose create is repeated must carry the bytes of the first attempt,
// whatever became of the keys meanwhile.
func TestUserDataIsTheSameAcrossARotation(t *testing.T) {
	w := newTurn(t)
	def := nstance.Definition{UserData: nstance.UserData{Content: "{{.Cluster.CACert}}{{.Nonce}}"}}
	rec := storage.Instance{
		ID: freshID(), Tenant: "default", Group: "web", CreatedAt: w.now(), LaunchTimeout: time.Hour, RegistrationTimeout: time.Minute,
	}
	before := rec
	first, err := server.Render(w.server, &rec, def)
	require.NoError(t, err)
	rec.UserDataDigest = "recorded"
	step := func(set, step string, force bool) {
		_, err := w.admin().RotateKey(t.Context(), &apiv1.RotateKeyRequest{Name: set, Step: step, Force: force})
		require.NoError(t, err)
		w.keys, err = keysOf(w.world)
		require.NoError(t, err)
	}
	for _, s := range []string{"begin", "activate"} {
		step(registration.Identity, s, false)
		step(registration.Nonces, s, false)
		w.pass(registration.Settle)
		again, err := server.Render(w.server, &rec, def)
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
	t.Run("a later one trusts both", func(t *testing.T) {
		fresh := before
		data, err := server.Render(w.server, &fresh, def)
		require.NoError(t, err)
		require.Contains(t, string(data), string(w.keys.Identity.CertPEM()))
		require.Len(t, fresh.Authorities, 2)
	})
	t.Run("what cannot be made again is refused for good", func(t *testing.T) {
		step(registration.Nonces, "finish", true)
		_, err := server.Render(w.server, &rec, def)
		require.ErrorIs(t, err, nstance.Conflict)
		require.NotErrorIs(t, err, nstance.NotFound)
	})
}

// dialTo is dial for the server of another shard.
func (h *holder) dialTo(addr string, shard nstance.ShardID) *grpc.ClientConn {
	return h.dialWith(addr, pki.ClientTLS(h.w.keys.Identity.Pool(), h.cert, shard, cluster))
}

// secondShard runs the server of another shard over the same storage.
func secondShard(t *testing.T, w *world) *server.Server {
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

// foreignRecord writes the record of a registered instance of another shard.
func (w *turn) foreignRecord(shard nstance.ShardID, issuer string) nstance.InstanceID {
	key := pki.NewKey().Public().(ed25519.PublicKey)
	rec, err := storage.NewRecords(w.store, shard, nil).Create(w.Context(), storage.Instance{
		ID: freshID(), Tenant: "default", Group: "web", CreatedAt: w.now(), RegisteredAt: w.now(),
		Current: &storage.KeyRecord{Fingerprint: pki.KeyFingerprint(key), Serial: "1", Issuer: issuer, NotAfter: w.now().Add(-time.Hour)},
	})
	require.NoError(w, err)
	return rec.ID
}

// stored reads the record of an instance of this shard as it is in storage.
func (w *turn) stored(id nstance.InstanceID) storage.Instance {
	obj, err := w.store.Get(w.Context(), storage.InstanceKey(zone, "default", "web", id))
	require.NoError(w, err)
	var rec storage.Instance
	require.NoError(w, json.Unmarshal(obj.Data, &rec))
	return rec
}
