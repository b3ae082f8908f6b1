package server_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestShutdown: the shutdown timeout is 30 s, longer than the test waits.
func TestShutdown(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	watcher := w.watch(w.admin(), &apiv1.WatchInstanceEventsRequest{})
	watcher.snapshot()
	k.ignoreGoAway.Store(true)

	stopped := make(chan error, 1)
	go func() { stopped <- w.stopServer() }()
	require.NotNil(t, k.nextMessage().GetGoAway(), "agents receive GoAway before their connection ends")
	require.NoError(t, receive(t, stopped), "an agent that ignores GoAway and a watcher do not delay the shutdown")
	require.Error(t, k.awaitEnd())

	t.Run("the lease was released", func(t *testing.T) { require.True(t, leaseReleased(t, w.store)) })
	t.Run("the next server continues", func(t *testing.T) {
		second := newWorld(t, setup{webSize: 1, store: w.store, provider: w.cloud})
		require.EqualValues(t, 2, second.status().Epoch)
		k.client.w = second
		again := k.client.connect()
		again.awaitAck(again.sendReport())
		require.Equal(t, string(nstance.Ready), second.instance(second.admin(), id).GetState())
		require.Zero(t, second.countEvents(nstance.EventCreateRequested))
	})
}

func leaseReleased(t *testing.T, store storage.Store) bool {
	lease := records.NewDoc[struct {
		records.Header
		Released bool `json:"released"`
	}](store, layout.LeaseKey(zone), nil)
	o, err := lease.Load(t.Context())
	require.NoError(t, err)
	return o.Released
}

// An uncancellableProvider ignores the context of a create.
type uncancellableProvider struct {
	nstance.Provider
	entered, leave chan struct{}
}

func (s *uncancellableProvider) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	s.entered <- struct{}{}
	<-s.leave
	return s.Provider.Create(ctx, spec)
}

func TestLeaseIsReleasedBeforeShutdownWaits(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	cloud := simcloud.New(nil)
	t.Cleanup(cloud.Close)
	p := &uncancellableProvider{Provider: cloud, entered: make(chan struct{}, 10), leave: make(chan struct{})}
	w := newWorld(t, setup{webSize: 1, store: store, provider: p})
	receive(t, p.entered)
	k := w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)

	stopped := make(chan error, 1)
	go func() { stopped <- w.stopServer() }()
	require.Eventually(t, func() bool { return leaseReleased(t, store) }, eventually, time.Millisecond)
	require.Empty(t, stopped, "the call is still under way")
	_, err := k.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable, "no request is served any more")
	close(p.leave)
	require.NoError(t, receive(t, stopped))
}

func TestCallsEndWithTheTerm(t *testing.T) {
	t.Parallel()
	store := newWriteGate()
	w := newWorld(t, setup{webSize: 1, store: store})
	t.Cleanup(store.release)
	id := w.awaitMachine(nstance.DefaultTenant)
	w.connectReady(id)
	api := w.admin()
	held := make(chan struct{}, 10)
	store.Inject(storagetest.Fault{
		Op: storagetest.PutIfMatch, Prefix: layout.InstancePrefix(zone), Times: -1, Pass: true,
		Do: func() { held <- struct{}{}; <-store.opened },
	})
	failed := make(chan error, 1)
	go func() {
		_, err := api.DrainInstance(context.Background(), &apiv1.DrainInstanceRequest{Id: string(id)})
		failed <- wire.ErrorOf(err)
	}()
	receive(t, held)
	stopped := make(chan error, 1)
	go func() { stopped <- w.stopServer() }()
	require.ErrorIs(t, receive(t, failed), nstance.Unavailable)
	store.release()
	require.NoError(t, receive(t, stopped))
}

// TestAgentsDuringShardRead: while a new leader reads the shard, agents are refused
// with Unavailable, not as unknown.
func TestAgentsDuringShardRead(t *testing.T) {
	t.Parallel()
	inner := storage.NewMemory()
	first := newWorld(t, setup{webSize: 1, store: inner})
	id := first.awaitMachine(nstance.DefaultTenant)
	k := first.connectReady(id)
	require.NoError(t, first.stopServer())

	store := storagetest.NewFaulty(inner)
	reading, read := make(chan struct{}, 10), make(chan struct{})
	store.Inject(storagetest.Fault{
		Op: storagetest.List, Prefix: layout.InstancePrefix(zone), Times: -1, Pass: true,
		Do: func() { reading <- struct{}{}; <-read },
	})
	w := newWorld(t, setup{webSize: 1, store: store, provider: first.cloud, noWait: true})
	receive(t, reading)
	k.client.w = w
	_, err := apiv1.NewAgentServiceClient(k.client.dial(w.server.Addresses().Agent)).Connect(t.Context())
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
	_, err = k.client.register(first.userDataNonce(id))
	require.ErrorIs(t, err, nstance.Unavailable)
	require.Equal(t, 503, w.getPage("/readyz").StatusCode)
	require.Equal(t, 200, w.getPage("/healthz").StatusCode)
	close(read)
	w.awaitLeading()
	k.client.connect()
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, store storage.Store, text string) error {
		t.Helper()
		var conf source
		conf.set(text, nil)
		cloud := simcloud.New(nil)
		defer cloud.Close()
		s, err := server.New(t.Context(), store, cloud, conf.read, nil)
		if err != nil {
			return err
		}
		return s.Run(t.Context())
	}
	good := defaultConfig(1)

	t.Run("a port in use", func(t *testing.T) {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer taken.Close()
		err = start(t, storage.NewMemory(), replaceOnce(t, good, `"agent": "127.0.0.1:0"`, `"agent": "`+taken.Addr().String()+`"`))
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorContains(t, err, "shard.bind.agent")
		require.ErrorContains(t, err, taken.Addr().String())
		require.ErrorContains(t, err, "choose another port")
	})
	t.Run("an address that the machine does not have", func(t *testing.T) {
		err := start(t, storage.NewMemory(), replaceOnce(t, good, `"http": "127.0.0.1:0"`, `"http": "192.0.2.1:0"`))
		require.ErrorContains(t, err, "shard.bind.http")
		require.ErrorContains(t, err, "use an address of this machine")
	})
	t.Run("a bad configuration", func(t *testing.T) {
		err := start(t, storage.NewMemory(), replaceOnce(t, good, `"cluster"`, `"clutser"`))
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "cluster")
	})
	t.Run("a store that cannot be written", func(t *testing.T) {
		store := storagetest.NewFaulty(storage.NewMemory())
		store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Times: -1, Err: nstance.Errorf(nstance.Denied, "put: permission denied")})
		err := start(t, store, good)
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "probe the storage")
	})
	t.Run("a store whose directory is removed", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "store")
		store, err := storage.OpenDir(dir, nil)
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.WriteFile(dir, nil, 0o600))
		require.ErrorContains(t, start(t, store, good), "store")
	})
	t.Run("keys sealed with a key that the server lacks", func(t *testing.T) {
		store := storage.NewMemory()
		_, err := store.PutIfAbsent(t.Context(), layout.SecretKey("identity-ca.key"), []byte("damaged"))
		require.NoError(t, err)
		err = start(t, store, good)
		require.ErrorContains(t, err, "identity-ca.key")
		_, err = store.Get(t.Context(), layout.CACertKey("identity-ca"))
		require.ErrorIs(t, err, nstance.NotFound, "no further certificates")
	})
}

// TestCorruptRecord: an unreadable record still counts as existing.
func TestCorruptRecord(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	key := layout.InstanceKey(zone, nstance.DefaultTenant, "web", id)
	_, err = store.PutIfAbsent(t.Context(), key, []byte(`{"format": "1`))
	require.NoError(t, err)

	w := newWorld(t, setup{webSize: 1, store: store})
	w.awaitMachine("blue") // other groups are still planned
	w.awaitEvent(nstance.EventRecordUnreadable, id)
	api := w.admin()
	shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
	require.NoError(t, err)
	require.Len(t, shard.GetProblems(), 1)
	require.Contains(t, shard.GetProblems()[0], key)
	require.Equal(t, 1, w.attentionOfKind("record").Count)
	require.Empty(t, w.attentionOfKind("record").Why, "the page has no login")
	theirs, err := w.registerClient(nstance.RoleOperator, "blue").operatorAPI().GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
	require.NoError(t, err)
	require.Empty(t, theirs.GetProblems())

	groups, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.NoError(t, err)
	require.Equal(t, "unreadable", groups.GetGroups()[1].GetHolds()[0].GetKind())
	require.Len(t, w.cloud.Machines(), 1, "it was not replaced")
	obj, err := store.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, `{"format": "1`, string(obj.Data))
}

func TestRunTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	for range 2 {
		err := w.server.Run(t.Context())
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "make another Server")
	}
	require.NoError(t, w.stopServer(), "the first run goes on")
}

// TestContextEndsEarly: a process that is stopped while it starts has not failed.
func TestContextEndsEarly(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]storagetest.Op{"reads keys": storagetest.Get, "makes keys": storagetest.PutIfAbsent} {
		t.Run("while it "+name, func(t *testing.T) {
			s, store := newServer(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			store.Inject(storagetest.Fault{Op: op, Times: -1, Err: context.Canceled, Do: cancel})
			require.NoError(t, s.Run(ctx))
			require.Zero(t, s.Addresses())
		})
	}
}

func TestAddressesBeforeRun(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t)
	require.Zero(t, s.Addresses())
}

// newServer returns a server that has not run.
func newServer(t *testing.T) (*server.Server, *storagetest.Faulty) {
	t.Helper()
	var conf source
	conf.set(defaultConfig(1), nil)
	cloud, store := simcloud.New(nil), storagetest.NewFaulty(storage.NewMemory())
	t.Cleanup(cloud.Close)
	s, err := server.New(t.Context(), store, cloud, conf.read, nil)
	require.NoError(t, err)
	return s, store
}
