package server_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// TestAttentionIsConsistent: API, status page and metric agree, and each caller
// sees its own tenant only.
func TestAttentionIsConsistent(t *testing.T) {
	t.Parallel()
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
	t.Run("the page tells what concerns groups, and counts the rest", func(t *testing.T) {
		shown := w.status().Attention
		lines, counts := w.scrapeMetrics(), map[string]int{}
		for _, a := range shown {
			counts[a.Kind] += a.Count
			if a.Kind == "config_refused" {
				require.Equal(t, web.Attention{Kind: a.Kind, Count: a.Count, Since: a.Since}, a, "it may quote settings, and the page has no login")
			}
		}
		require.Len(t, counts, len(all))
		for kind, n := range counts {
			require.Len(t, all[kind], n, kind)
			require.Contains(t, lines, `nstance_attention{kind="`+kind+`"} `+string(rune('0'+n)))
		}
		require.Contains(t, lines, `nstance_attention{kind="clock"} 0`)
		short := w.attentionOfKind("short")
		require.Equal(t, "group blue/db", short.Subject)
		require.Equal(t, all["short"][0].GetWhy(), short.Why)
		require.Equal(t, all["short"][0].GetRemedy(), short.Remedy)
		require.NotZero(t, short.Since)
	})
}

// TestUnreadableMetadataNeedsAttention: an agent that is deaf to its cloud shows in attention,
// metrics and its instance until it is not.
func TestUnreadableMetadataNeedsAttention(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	api := w.admin()
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	report := func(text string) {
		k.awaitAck(k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{MetadataError: new(text)}}}))
	}
	report("/latest/api/token: refused with status 403 (raise the hop limit)")
	list := listAttention(t, api)["metadata"]
	require.Len(t, list, 1)
	require.Equal(t, "group default/web", list[0].GetSubject())
	require.Contains(t, list[0].GetWhy(), "1 agents")
	require.Contains(t, list[0].GetWhy(), string(id)+": /latest/api/token: refused with status 403 (raise the hop limit)")
	require.NotNil(t, list[0].GetSince())
	require.NotEmpty(t, list[0].GetRemedy())
	require.Contains(t, w.scrapeMetrics(), "nstance_agents_metadata_unreadable 1")
	require.Contains(t, w.scrapeMetrics(), `nstance_attention{kind="metadata"} 1`)
	require.Eventually(t, func() bool {
		got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		return strings.Contains(got.GetInstance().GetLastReport().GetMetadataError(), "hop limit") &&
			slices.Contains(got.GetInstance().GetConditions(), "metadata_unreadable")
	}, eventually, 10*time.Millisecond)
	report("")
	require.Empty(t, listAttention(t, api)["metadata"])
	require.Contains(t, w.scrapeMetrics(), "nstance_agents_metadata_unreadable 0")
}

// TestAgentVersions: of each agent its version is shown, and those too far from the server's
// need attention. So is the zone of its machine.
func TestAgentVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	api, blue := w.admin(), w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	for reported, want := range map[string]struct {
		metric  string
		problem string
	}{
		version.Software: {version.Software, ""},
		"0.1.7":          {"0.1.7", ""},
		"0.9.0":          {"0.9.0", ": 0.9.0"},
		"1.3.0":          {"1.3.0", ": 1.3.0"},
		"next":           {"next", ": next"},
		"":               {"unknown", ""},
	} {
		t.Run("version "+want.metric, func(t *testing.T) {
			k.awaitAck(k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{Software: reported}}}))
			require.Contains(t, w.scrapeMetrics(), `nstance_agents{version="`+want.metric+`"} 1`)
			require.Eventually(t, func() bool {
				resp, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
				require.NoError(t, err)
				return resp.GetInstance().GetZone() == "sim-a" && resp.GetInstance().GetLastReport().GetSoftware() == reported
			}, eventually, 10*time.Millisecond)
			list := listAttention(t, api)["agent_version"]
			if want.problem == "" {
				require.Empty(t, list)
				return
			}
			require.Len(t, list, 1)
			require.Equal(t, "group default/web", list[0].GetSubject())
			require.Contains(t, list[0].GetWhy(), string(id)+want.problem)
			require.Empty(t, listAttention(t, blue)["agent_version"], "what agents of another tenant say")
		})
	}
}
