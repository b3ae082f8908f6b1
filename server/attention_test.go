package server_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// attention returns by kind what a caller is told needs attention.
func attention(t *testing.T, api apiv1.OperatorServiceClient) map[string][]*apiv1.Attention {
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

// TestAttentionIsShownAlike: what the API lists is what the page and the metric
// count, and each caller is told what concerns its tenant.
func TestAttentionIsShownAlike(t *testing.T) {
	w := newWorld(t, setup{size: 2})
	api, blue := w.admin(), w.client(nstance.RoleOperator, "blue").api()
	id := w.machine("blue")
	_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Tenant: "blue", Group: "db", Reason: "audit"})
	require.NoError(t, err)
	w.agent(id)
	_, err = w.holder().register(w.nonce(id)) // with another key than before
	require.Error(t, err)
	w.await(nstance.EventAlarm, id)
	w.conf.set("{", nil)
	_, err = api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.Error(t, err)

	require.Eventually(t, func() bool { return len(attention(t, api)[reconcile.AttentionShort]) == 2 }, eventually, time.Millisecond)
	all, theirs := attention(t, api), attention(t, blue)
	t.Run("to administrators all of it", func(t *testing.T) {
		require.Equal(t, "group blue/db", all[reconcile.AttentionShort][0].GetSubject())
		require.Equal(t, "0 of 2 members are ready, 2 booting", all[reconcile.AttentionShort][1].GetWhy())
		require.NotNil(t, all[reconcile.AttentionShort][1].GetSince())
		require.Contains(t, all[plan.HoldFrozen][0].GetWhy(), "audit")
		require.Equal(t, "instance "+string(id), all[reconcile.AttentionAlarm][0].GetSubject())
		require.Contains(t, all["config_refused"][0].GetRemedy(), "nstance-admin config refresh")
	})
	t.Run("to operators what concerns their tenant", func(t *testing.T) {
		require.Len(t, theirs[reconcile.AttentionShort], 1)
		require.Len(t, theirs[plan.HoldFrozen], 1)
		require.Len(t, theirs[reconcile.AttentionAlarm], 1)
		require.Empty(t, theirs["config_refused"])
		for _, list := range attention(t, w.client(nstance.RoleOperator, nstance.DefaultTenant).api()) {
			for _, a := range list {
				require.Equal(t, "default", a.GetTenant())
			}
		}
	})
	t.Run("on the page and in the metrics by kind", func(t *testing.T) {
		shown := w.status().Attention
		require.Len(t, shown, len(all))
		lines := w.scrape()
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
