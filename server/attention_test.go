package server_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/reconcile/plan"
)

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

// TestAttentionIsConsistent: API, status page and metric agree, and each caller
// sees its own tenant only.
func TestAttentionIsConsistent(t *testing.T) {
	w := newWorld(t, setup{webSize: 2})
	api, blue := w.admin(), w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	id := w.awaitMachine("blue")
	_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Tenant: "blue", Group: "db", Reason: "audit"})
	require.NoError(t, err)
	w.registerAgent(id)
	_, err = w.newClient().register(w.userDataNonce(id)) // with another key than before
	require.Error(t, err)
	w.awaitEvent(nstance.EventAlarm, id)
	w.conf.set("{", nil)
	_, err = api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.Error(t, err)

	require.Eventually(t, func() bool { return len(listAttention(t, api)["short"]) == 2 }, eventually, time.Millisecond)
	all, theirs := listAttention(t, api), listAttention(t, blue)
	t.Run("administrators see all", func(t *testing.T) {
		require.Equal(t, "group blue/db", all["short"][0].GetSubject())
		require.Equal(t, "0 of 2 members are ready, 2 booting", all["short"][1].GetWhy())
		require.NotNil(t, all["short"][1].GetSince())
		require.Contains(t, all[string(plan.HoldFrozen)][0].GetWhy(), "audit")
		require.Equal(t, "instance "+string(id), all["alarm"][0].GetSubject())
		require.Contains(t, all["config_refused"][0].GetRemedy(), "nstance-admin config refresh")
	})
	t.Run("operators see their tenant", func(t *testing.T) {
		require.Len(t, theirs["short"], 1)
		require.Len(t, theirs[string(plan.HoldFrozen)], 1)
		require.Len(t, theirs["alarm"], 1)
		require.Empty(t, theirs["config_refused"])
		for _, list := range listAttention(t, w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()) {
			for _, a := range list {
				require.Equal(t, "default", a.GetTenant())
			}
		}
	})
	t.Run("page and metrics count by kind", func(t *testing.T) {
		shown := w.status().Attention
		require.Len(t, shown, len(all))
		lines := w.scrapeMetrics()
		for _, a := range shown {
			require.Len(t, all[a.Kind], a.Count, a.Kind)
			require.Contains(t, lines, `nstance_attention{kind="`+a.Kind+`"} `+string(rune('0'+a.Count)))
		}
		require.Contains(t, lines, `nstance_attention{kind="clock"} 0`)
		text, err := json.Marshal(shown)
		require.NoError(t, err)
		for _, secret := range []string{"blue", "db", "audit", string(id)} {
			require.NotContains(t, string(text), secret)
		}
	})
}
