package metrics_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server/internal/metrics"
)

// page returns the lines of a scrape that begin with one of the names.
func page(m *metrics.Metrics, names ...string) (out []string) {
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(rec.Body.String()) {
		for _, name := range names {
			if strings.HasPrefix(line, "nstance_"+name) {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return out
}

func TestAllStateIsExported(t *testing.T) {
	hold := func(kind plan.HoldKind) reconcile.HoldView { return reconcile.HoldView{Hold: plan.Hold{Kind: kind}} }
	s := metrics.State{
		Cluster: "c1", Shard: "s1", Version: "v", Leading: true, Epoch: 7, LeaseAge: 1500 * time.Millisecond, LeaseTTL: 6 * time.Second, Agents: 3,
		QueueAge: 250 * time.Millisecond, Orphans: 4, MetadataUnreadable: 22, Attention: map[string]int{"clock": 5}, Acknowledged: map[metrics.Acknowledged]int{{Kind: "short", Group: nstance.GroupKey{Tenant: "t", Group: "g"}}: 23}, JournalLost: 6, LogLost: 21,
		Groups: []reconcile.GroupView{{
			Group: nstance.Group{Key: nstance.GroupKey{Tenant: "t", Group: "g"}, Size: 11}, Ready: 12, Booting: 13, Leaving: 14, Stale: 15, OnDemand: 16, Preserved: 17, Gone: 18,
			Holds: []reconcile.HoldView{hold(plan.HoldPaused), hold(plan.HoldBreaker), hold(plan.HoldPaused)},
		}},
		Pools: map[loop.MemberPool]int{
			{Group: nstance.GroupKey{Tenant: "t", Group: "g"}, InstanceType: "small", Zone: "z", Market: nstance.Spot}: 19,
			{Group: nstance.GroupKey{Tenant: "t", Group: "g"}, InstanceType: "small"}:                                  20,
		},
	}
	m := metrics.New(func() metrics.State { return s })
	names := []string{"server_info", "leading", "lease_", "agents_", "queue_", "group_", "orphans", "attention", "journal_", "log_", "members"}
	require.ElementsMatch(t, []string{
		`nstance_server_info{cluster="c1",shard="s1",version="v"} 1`,
		`nstance_leading 1`, `nstance_lease_epoch 7`, `nstance_lease_age_seconds 1.5`, `nstance_lease_ttl_seconds 6`, `nstance_agents_connected 3`, `nstance_agents_metadata_unreadable 22`,
		`nstance_queue_age_seconds 0.25`, `nstance_orphans 4`, `nstance_attention{kind="clock"} 5`, `nstance_journal_lost_total 6`, `nstance_log_lines_lost_total 21`,
		`nstance_attention_acknowledged{group="g",kind="short",tenant="t"} 23`,
		`nstance_group_members{group="g",state="wanted",tenant="t"} 11`,
		`nstance_group_members{group="g",state="ready",tenant="t"} 12`,
		`nstance_group_members{group="g",state="booting",tenant="t"} 13`,
		`nstance_group_members{group="g",state="leaving",tenant="t"} 14`,
		`nstance_group_members{group="g",state="stale",tenant="t"} 15`,
		`nstance_group_members{group="g",state="on_demand",tenant="t"} 16`,
		`nstance_group_members{group="g",state="preserved",tenant="t"} 17`,
		`nstance_group_members{group="g",state="gone",tenant="t"} 18`,
		`nstance_members{group="g",instance_type="small",market="spot",tenant="t",zone="z"} 19`,
		`nstance_members{group="g",instance_type="small",market="",tenant="t",zone=""} 20`,
		`nstance_group_held{group="g",kind="paused",tenant="t"} 1`,
		`nstance_group_held{group="g",kind="breaker",tenant="t"} 1`,
	}, page(m, names...))

	s.Leading = false
	require.ElementsMatch(t, []string{
		`nstance_server_info{cluster="c1",shard="s1",version="v"} 1`, `nstance_leading 0`, `nstance_attention{kind="clock"} 5`, `nstance_attention_acknowledged{group="g",kind="short",tenant="t"} 23`, `nstance_journal_lost_total 6`, `nstance_log_lines_lost_total 21`,
	}, page(m, names...), "a standby speaks of itself only")
}

func TestDrainsByOutcome(t *testing.T) {
	m := metrics.New(func() metrics.State { return metrics.State{} })
	for n, e := range []nstance.Event{
		{Type: nstance.EventDrainAcknowledged, Reason: string(nstance.OutcomeDrained)},
		{Type: nstance.EventDrainAcknowledged, Reason: string(nstance.OutcomeFailed)},
		{Type: nstance.EventDrainCutShort},
		{Type: nstance.EventDrainCancelled},
	} {
		for range n + 1 {
			m.Event(e)
		}
	}
	require.ElementsMatch(t, []string{
		`nstance_drains_total{outcome="drained"} 1`, `nstance_drains_total{outcome="failed"} 2`,
		`nstance_drains_total{outcome="cut_short"} 3`, `nstance_drains_total{outcome="cancelled"} 4`,
	}, page(m, "drains_total"))
}
