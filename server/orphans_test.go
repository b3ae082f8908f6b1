package server_test

import (
	"crypto/ed25519"
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
)

// createOrphan creates a machine with the shard's tags and no record.
func (w *world) createOrphan() nstance.InstanceID {
	w.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	id, err := nstance.NewInstanceID("web", now)
	require.NoError(w, err)
	_, err = w.cloud.Create(w.Context(), nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: w.keys.Installation, Cluster: cluster, Shard: zone, Tenant: "blue"}, Group: "lost",
		CreatedAt: now, Arch: nstance.AMD64, InstanceType: "small", Market: nstance.Spot, Token: string(id) + "-1",
	})
	require.NoError(w, err)
	w.awaitEvent(nstance.EventOrphanSeen, id)
	return id
}

// newUnrecordedClient returns a client whose certificate is in no record.
func (w *world) newUnrecordedClient(id nstance.InstanceID) *client {
	w.Helper()
	h := w.newClient()
	issued, err := w.keys.Identity.Issue(keyring.Template{
		Subject: string(id), Tenant: "blue", Role: nstance.RoleAgent, Key: h.key.Public().(ed25519.PublicKey), Lifetime: time.Hour, Now: time.Now(),
	})
	require.NoError(w, err)
	h.cert = &tls.Certificate{Certificate: [][]byte{issued.Certificate}, PrivateKey: h.key}
	return h
}

func TestOrphans(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newWorld(t, setup{webSize: 1, shard: `"gc": {"interval": "1s"},`})
	api := w.admin()
	list := func() []*apiv1.Orphan {
		resp, err := api.ListOrphans(t.Context(), &apiv1.ListOrphansRequest{})
		require.NoError(t, err)
		return resp.GetOrphans()
	}
	require.Empty(t, list())
	member := w.awaitMachine(nstance.DefaultTenant)

	t.Run("are listed with the reason that they are kept", func(t *testing.T) {
		id := w.createOrphan()
		got := list()
		require.Len(t, got, 1)
		require.Equal(t, []string{string(id), "blue", "lost", "small", "spot"},
			[]string{got[0].GetId(), got[0].GetTenant(), got[0].GetGroup(), got[0].GetInstanceType(), got[0].GetMarket()})
		require.NotEmpty(t, got[0].GetProviderId())
		require.Contains(t, got[0].GetSpared(), "has not led for 5m")
	})
	t.Run("a dry run changes nothing", func(t *testing.T) {
		id := list()[0].GetId()
		adopt, err := api.AdoptOrphan(t.Context(), &apiv1.AdoptOrphanRequest{Id: id, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, id, adopt.GetOrphan().GetId())
		del, err := api.DeleteOrphan(t.Context(), &apiv1.DeleteOrphanRequest{Id: id, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, id, del.GetOrphan().GetId())
		require.Len(t, list(), 1)
	})
	t.Run("are adopted, and their agents are accepted again", func(t *testing.T) {
		id := nstance.InstanceID(list()[0].GetId())
		agent := w.newUnrecordedClient(id)
		_, err := api.AdoptOrphan(t.Context(), &apiv1.AdoptOrphanRequest{Id: string(id)})
		require.NoError(t, err)
		require.Empty(t, list())
		k := agent.connect()
		k.awaitAck(k.sendReport())
		w.awaitEvent(nstance.EventReady, id)
		resp, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		require.Equal(t, "lost", resp.GetInstance().GetGroup())
		require.Equal(t, "ready", resp.GetInstance().GetState())

		another := w.newUnrecordedClient(id).open(t.Context())
		require.ErrorIs(t, another.awaitEnd(), nstance.Denied, "by the first certificate only")
	})
	t.Run("are deleted on request", func(t *testing.T) {
		id := w.createOrphan()
		_, err := api.DeleteOrphan(t.Context(), &apiv1.DeleteOrphanRequest{Id: string(id)})
		require.NoError(t, err)
		w.awaitEvent(nstance.EventDeleted, id)
		_, there := w.cloud.Spec(id)
		require.False(t, there)
	})
	t.Run("members are no orphans", func(t *testing.T) {
		for _, dry := range []bool{true, false} {
			_, err := api.AdoptOrphan(t.Context(), &apiv1.AdoptOrphanRequest{Id: string(member), DryRun: dry})
			require.Equal(t, codes.NotFound, status.Code(err))
			_, err = api.DeleteOrphan(t.Context(), &apiv1.DeleteOrphanRequest{Id: string(member), DryRun: dry})
			require.Equal(t, codes.NotFound, status.Code(err))
		}
		_, there := w.cloud.Spec(member)
		require.True(t, there)
	})
}
