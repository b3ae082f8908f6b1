package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
)

func acknowledge(kind, subject string, d time.Duration) *apiv1.AcknowledgeAttentionRequest {
	return &apiv1.AcknowledgeAttentionRequest{Kind: kind, Subject: subject, Duration: durationpb.New(d), Reason: "ticket 7"}
}

// acknowledgeShort acknowledges that blue/db, whose agents never connect, has no ready member.
func acknowledgeShort(d time.Duration) *apiv1.AcknowledgeAttentionRequest {
	return acknowledge("short", "group blue/db", d)
}

// TestAcknowledgedAttention: it is still shown, with author, reason and end, after the rest,
// and does not count for alerts; under the next leader too, until that is ended.
func TestAcknowledgedAttention(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	eve := w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
	api := eve.operatorAPI()
	blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	short := func(api apiv1.OperatorServiceClient) []*apiv1.Attention { return listAttention(t, api)["short"] }
	require.Eventually(t, func() bool { return len(short(api)) == 2 }, eventually, time.Millisecond)

	t.Run("requests that make no sense", func(t *testing.T) {
		for words, bad := range map[string]*apiv1.AcknowledgeAttentionRequest{
			"kind: is missing":                 acknowledge("", "shard", time.Hour),
			"duration: is 0s":                  acknowledge("short", "group blue/db", 0),
			"duration: is 59s":                 acknowledgeShort(59 * time.Second),
			"duration: is 720h0m1s":            acknowledgeShort(720*time.Hour + time.Second),
			"group blue/db, group default/web": acknowledge("short", "", time.Hour),
		} {
			_, err := api.AcknowledgeAttention(t.Context(), bad)
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
			require.ErrorContains(t, wire.ErrorOf(err), words)
		}
		for _, absent := range []*apiv1.AcknowledgeAttentionRequest{acknowledge("clock", "", time.Hour), acknowledge("short", "group blue/x", time.Hour)} {
			_, err := api.AcknowledgeAttention(t.Context(), absent)
			require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
			require.ErrorContains(t, wire.ErrorOf(err), "nstance-admin attention list")
		}
	})
	t.Run("a dry run", func(t *testing.T) {
		req := acknowledgeShort(4 * time.Hour)
		req.DryRun = true
		resp, err := api.AcknowledgeAttention(t.Context(), req)
		require.NoError(t, err)
		require.False(t, resp.GetUnchanged())
		require.Nil(t, short(api)[0].GetAcknowledged())
	})

	resp, err := api.AcknowledgeAttention(t.Context(), acknowledgeShort(4*time.Hour))
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.GetEntries())
	require.Equal(t, "group blue/db", resp.GetSubject())
	check := func(w *world, api apiv1.OperatorServiceClient) {
		t.Helper()
		list := short(api)
		require.Equal(t, []string{"group default/web", "group blue/db"}, []string{list[0].GetSubject(), list[1].GetSubject()}, "after the rest")
		require.Nil(t, list[0].GetAcknowledged())
		a := list[1].GetAcknowledged()
		require.Equal(t, eve.identity().Subject, a.GetBy())
		require.Equal(t, "ticket 7", a.GetReason())
		require.WithinDuration(t, time.Now().Add(4*time.Hour), a.GetUntil().AsTime(), 2*time.Minute)
		lines := w.scrapeMetrics()
		require.Contains(t, lines, `nstance_attention{kind="short"} 1`)
		require.Contains(t, lines, `nstance_attention_acknowledged{group="db",kind="short",tenant="blue"} 1`)
		page := w.status()
		require.Equal(t, 1, page.AttentionAcknowledged)
		last := page.Attention[len(page.Attention)-1]
		require.Equal(t, "group blue/db", last.Subject)
		require.Equal(t, "ticket 7", last.Acknowledged.Reason)
	}
	check(w, api)
	t.Run("its tenant sees it, and cannot change it", func(t *testing.T) {
		require.Equal(t, "ticket 7", short(blue)[0].GetAcknowledged().GetReason())
		_, err := blue.AcknowledgeAttention(t.Context(), acknowledgeShort(time.Hour))
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
		_, err = blue.UnacknowledgeAttention(t.Context(), &apiv1.UnacknowledgeAttentionRequest{Kind: "short"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	})

	w.startSuccessor(server.Options{})
	require.Eventually(t, func() bool {
		list := short(w.admin())
		return len(list) == 2 && list[1].GetAcknowledged() != nil
	}, eventually, time.Millisecond)
	api = w.admin()
	check(w, api)
	ended, err := api.UnacknowledgeAttention(t.Context(), &apiv1.UnacknowledgeAttentionRequest{Kind: "short"})
	require.NoError(t, err)
	require.Equal(t, "group blue/db", ended.GetSubject(), "the only one of the kind")
	require.Nil(t, short(api)[0].GetAcknowledged())
	require.Contains(t, w.scrapeMetrics(), `nstance_attention{kind="short"} 2`)
	require.NotContains(t, strings.Join(w.scrapeMetrics(), "\n"), "nstance_attention_acknowledged{")
}

// TestAcknowledgedAlarm: an equal one about its subject does not alert, one about another does.
func TestAcknowledgedAlarm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	api := w.admin()
	raise := func(id nstance.InstanceID) {
		_, err := w.newClient().register(w.userDataNonce(id)) // with another key than before
		require.Error(t, err)
		w.awaitEvent(nstance.EventAlarm, id)
	}
	id, other := w.awaitMachine(nstance.DefaultTenant), w.awaitMachine("blue")
	for _, id := range []nstance.InstanceID{id, other} {
		require.Eventually(t, func() bool { // a server that still reads its shard refuses for a moment
			_, err := w.newClient().register(w.userDataNonce(id))
			return err == nil
		}, eventually, time.Millisecond)
	}
	raise(id)
	require.Contains(t, w.scrapeMetrics(), `nstance_attention{kind="alarm"} 1`)
	_, err := api.AcknowledgeAttention(t.Context(), acknowledge("alarm", "", time.Hour))
	require.NoError(t, err)
	raise(id)
	require.NotNil(t, listAttention(t, api)["alarm"][0].GetAcknowledged())
	require.Contains(t, w.scrapeMetrics(), `nstance_attention{kind="alarm"} 0`)
	raise(other)
	require.Contains(t, w.scrapeMetrics(), `nstance_attention{kind="alarm"} 1`)
}

// TestDamagedAcknowledgements: entries count as before, and the shard says so.
func TestDamagedAcknowledgements(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	key := layout.AttentionKey(zone)
	require.Eventually(t, func() bool { _, err := w.store.Get(t.Context(), key); return err == nil }, eventually, time.Millisecond)
	require.NoError(t, w.stopServer())
	obj, err := w.store.Get(t.Context(), key)
	require.NoError(t, err)
	_, err = w.store.PutIfMatch(t.Context(), key, []byte("{"), obj.Version)
	require.NoError(t, err)
	next := newWorld(t, setup{webSize: 1, store: w.store, provider: w.cloud})
	api := next.admin()
	require.Eventually(t, func() bool { return len(listAttention(t, api)["acknowledgements"]) == 1 }, eventually, time.Millisecond)
	require.Contains(t, listAttention(t, api)["acknowledgements"][0].GetWhy(), key)
	require.Eventually(t, func() bool { return len(listAttention(t, api)["short"]) > 0 }, eventually, time.Millisecond)
	_, err = api.AcknowledgeAttention(t.Context(), acknowledge("short", listAttention(t, api)["short"][0].GetSubject(), time.Hour))
	require.ErrorContains(t, wire.ErrorOf(err), key, "it is not overwritten")
	got, err := api.GetRecord(t.Context(), &apiv1.GetRecordRequest{Key: key})
	require.NoError(t, err)
	require.NotEmpty(t, got.GetError())
}
