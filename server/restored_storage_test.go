package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/backup"
	"github.com/nstance-go/nstance/internal/generation"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// copyOf returns a copy of every object, as other tools make one.
func copyOf(t *testing.T, s storage.Store) storage.Store {
	t.Helper()
	to := storage.NewMemory()
	for e, err := range s.List(t.Context(), "", "") {
		require.NoError(t, err)
		o, err := s.Get(t.Context(), e.Key)
		require.NoError(t, err)
		_, err = to.PutIfAbsent(t.Context(), e.Key, o.Data)
		require.NoError(t, err)
	}
	return to
}

// restored returns a copy that was made storage of its own. The servers of the original have
// been stopped.
func restored(t *testing.T, s storage.Store, o backup.Options) storage.Store {
	t.Helper()
	to := copyOf(t, s)
	_, err := backup.Replace(t.Context(), to, o)
	require.NoError(t, err)
	return to
}

// A placed store says where it is.
type placed struct {
	storage.Store
	at string
}

func (p placed) Location() string { return p.at }

// TestCopyOfStorageIsNotServed: a server on a copy of storage ends, and says what to do.
// Storage that says nothing of its place is served.
func TestCopyOfStorageIsNotServed(t *testing.T) {
	store := placed{storage.NewMemory(), "s3://prod"}
	w := newWorld(t, setup{webSize: 1, store: store})
	w.awaitMachine(nstance.DefaultTenant)
	require.NoError(t, w.stopServer())
	s, err := server.New(t.Context(), placed{copyOf(t, store), "s3://staging"}, w.cloud, w.conf.read, &server.Options{Kinds: kinds})
	require.NoError(t, err)
	err = s.Run(t.Context())
	require.ErrorIs(t, err, nstance.Invalid)
	for _, words := range []string{"is a copy", "s3://prod", "s3://staging", "restore --in-place"} {
		require.ErrorContains(t, err, words)
	}
	for _, at := range []string{"s3://prod", ""} { // it was set back in its place; it is not known
		require.NoError(t, newWorld(t, setup{webSize: 1, store: placed{copyOf(t, store), at}, provider: w.cloud}).stopServer())
	}
}

// TestRestoreRevokes: what was revoked or used after a copy was made is not accepted after the
// copy was restored, unless grants are kept.
func TestRestoreRevokes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1, store: storage.NewMemory()})
	eve := w.registerClient(nstance.RoleOperator, "blue")
	groups := func() error {
		_, err := eve.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		return wire.ErrorOf(err)
	}
	require.NoError(t, groups())
	agent := w.registerAgent(w.awaitMachine(nstance.DefaultTenant))
	nonce := w.mintOperatorNonce("blue")
	moved, back := restored(t, w.store, backup.Options{KeepGrants: true}), restored(t, w.store, backup.Options{})
	require.NoError(t, w.newClient().registerOperator(nonce))
	w.revoke(eve)
	require.ErrorIs(t, groups(), nstance.Denied)
	require.NoError(t, w.stopServer())

	serve := func(s storage.Store) {
		eve.w = newWorld(t, setup{webSize: 1, store: s, provider: w.cloud})
		agent.w = eve.w
	}
	serve(back)
	require.Error(t, groups())
	require.NotEqual(t, nstance.Unavailable, nstance.CodeOf(groups()))
	require.Error(t, eve.w.newClient().registerOperator(nonce), "it was used since")
	require.NoError(t, eve.w.newClient().registerOperator(eve.w.mintOperatorNonce("blue")))
	require.Positive(t, generation.Of(eve.w.status().Epoch))
	agent.connect()
	require.NoError(t, eve.w.stopServer())

	serve(moved)
	require.NoError(t, groups(), "nothing was revoked, it was said")
	require.NoError(t, eve.w.newClient().registerOperator(nonce))
}

// TestRestoreAcceptsNoDeletedInstance: the identity of an instance that was deleted after the copy
// was made is not accepted, from the first moment on.
func TestRestoreAcceptsNoDeletedInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 2, store: storage.NewMemory()})
	ids := w.awaitMachines(2)
	kept, thief := w.connectReady(ids[0]).client, w.connectReady(ids[1]).client
	back := restored(t, w.store, backup.Options{})
	admin := w.admin()
	_, err := admin.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(ids[1]), NoDrain: true})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !w.cloudHas(ids[1]) }, eventually, time.Millisecond)
	require.NoError(t, w.stopServer())

	second := newWorld(t, setup{webSize: 2, store: back, provider: w.cloud})
	thief.w, kept.w = second, second
	require.Eventually(t, func() bool {
		k := kept.open(t.Context())
		select {
		case m := <-k.messages:
			return m.GetWelcome() != nil
		case <-k.ended:
			return false
		}
	}, eventually, time.Millisecond)
	select {
	case m := <-thief.open(t.Context()).messages:
		require.Nil(t, m.GetWelcome(), "it is welcome")
	case <-thief.open(t.Context()).ended:
	}
}

func (w *world) cloudHas(id nstance.InstanceID) bool {
	for _, m := range w.cloud.Machines() {
		if m.ID == id {
			return true
		}
	}
	return false
}

// TestRestoredCopyBesideItsOriginal: the restored one keeps the machines that it did not make, and
// says so. The original stands still from the moment that it sees one of the other's, and says
// so. No machine is made or deleted for what the other does.
func TestRestoredCopyBesideItsOriginal(t *testing.T) {
	t.Parallel()
	const shard = `"gc": {"interval": "1s", "registration_timeout": "3s"},`
	w := newWorld(t, setup{webSize: 2, shard: shard, store: storage.NewMemory()})
	for _, id := range w.awaitMachines(2) {
		w.connectReady(id)
	}
	back := restored(t, w.store, backup.Options{})
	admin := w.admin()
	resize := func(api apiv1.OperatorServiceClient, n int32) {
		t.Helper()
		_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: &n})
		require.NoError(t, err)
	}
	resize(admin, 3)
	w.awaitMachines(3)

	other := newWorld(t, setup{webSize: 2, shard: shard, store: back, provider: w.cloud})
	others := other.admin()
	orphan := func() string {
		for _, a := range listAttention(t, others)["orphan"] {
			return a.GetWhy()
		}
		return ""
	}
	require.Eventually(t, func() bool { return strings.Contains(orphan(), "term 1 has made it") }, eventually, eventually/300)
	resize(others, 3)
	require.Eventually(t, func() bool { return w.countMachines(nstance.DefaultTenant) == 4 }, eventually, time.Millisecond)

	frozen := func() string {
		for _, a := range listAttention(t, admin)["frozen"] {
			return a.GetWhy()
		}
		return ""
	}
	require.Eventually(t, func() bool {
		return strings.Contains(frozen(), fmt.Sprintf("was made by term %d, this is term 1", other.status().Epoch))
	}, eventually, eventually/300)
	w.awaitHold(admin, "web", "frozen")
	resize(admin, 9)
	passes := w.filePasses.Load()
	require.Eventually(t, func() bool { return w.filePasses.Load() > passes+3 }, eventually, time.Millisecond)
	require.Equal(t, 4, w.countMachines(nstance.DefaultTenant), "the original makes none")
	resize(admin, 3)

	// A person decides for the original.
	require.NoError(t, other.stopServer())
	list, err := admin.ListOrphans(t.Context(), &apiv1.ListOrphansRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetOrphans(), 1)
	_, err = admin.DeleteOrphan(t.Context(), &apiv1.DeleteOrphanRequest{Id: list.GetOrphans()[0].GetId()})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return frozen() == "" && w.countMachines(nstance.DefaultTenant) == 3 }, eventually, eventually/300)
}
