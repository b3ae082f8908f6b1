package server_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server"
)

// scrapeMetrics returns the lines of /metrics that start with nstance_.
func (w *world) scrapeMetrics() []string {
	w.Helper()
	resp := w.getPage("/metrics")
	require.Equal(w, 200, resp.StatusCode)
	body, err := io.ReadAll(resp.Body)
	require.NoError(w, err)
	var out []string
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "nstance_") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	api := w.admin()
	k.awaitAck(k.sendNotice(reclaimNotice("e1", time.Minute)))
	next := w.awaitEvent(nstance.EventReplacementRequested, "").Instance
	w.awaitEvent(nstance.EventCreated, next)
	w.connectReady(next)
	_, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: "x"})
	require.Error(t, err)
	lines := w.scrapeMetrics()
	for _, want := range []string{
		`nstance_leading 1`, `nstance_lease_epoch 1`, `nstance_agents_connected 2`, `nstance_orphans 0`,
		`nstance_group_members{group="web",state="wanted",tenant="default"} 1`,
		`nstance_group_members{group="web",state="leaving",tenant="default"} 1`,
		`nstance_members{group="web",instance_type="small",market="spot",tenant="default",zone="sim-a"} 2`,
		`nstance_server_info{cluster="c1",shard="s1",version="` + version.Software + `"} 1`,
		`nstance_notices_total{kind="reclaim",source="other"} 1`,
		`nstance_events_total{type="notice_received"} 1`,
		`nstance_replacement_requested_seconds_count{cause="notice"} 1`,
		`nstance_replacement_ready_seconds_count{cause="notice"} 1`,
		`nstance_grpc_streams{method="Connect"} 2`,
		`nstance_grpc_request_seconds_count{code="invalid",method="GetInstance"} 1`,
	} {
		require.Contains(t, lines, want)
	}
	for _, want := range []string{`nstance_provider_call_seconds_count{code="ok",op="create"} `, `nstance_storage_call_seconds_count{code="ok",op="put_if_absent"} `} {
		require.True(t, slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, want) }), want)
	}
	t.Run("every metric is documented, and no other", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join("..", "docs", "metrics.md"))
		require.NoError(t, err)
		documented := map[string]bool{}
		ours, _, _ := strings.Cut(string(text), "\n## The operator\n")
		for _, m := range regexp.MustCompile("(?m)^\\| `(nstance_[a-z_]+)`").FindAllStringSubmatch(ours, -1) {
			documented[m[1]] = true
		}
		exported := map[string]bool{}
		for _, line := range lines {
			name := regexp.MustCompile(`^[a-z_]+`).FindString(line)
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, part)
			}
			exported[name] = true
			require.True(t, documented[name], "docs/metrics.md lacks %s", name)
		}
		// This test has no ended drain, no held group, no webhook, nothing acknowledged, and not always a removed object.
		for _, name := range []string{"nstance_attention_acknowledged", "nstance_drains_total", "nstance_group_held", "nstance_storage_removed_total", "nstance_webhook_messages_total"} {
			require.True(t, documented[name])
			exported[name] = true
		}
		require.Len(t, exported, len(documented), "something is documented that does not exist")
	})
}

// metricLabelValues has the possible values of labels with a closed set of values.
func metricLabelValues() map[string][]string {
	codes := []string{"ok"}
	for _, c := range []nstance.Code{
		nstance.Invalid, nstance.NotFound, nstance.Conflict, nstance.Capacity, nstance.Quota, nstance.Throttled, nstance.Denied,
		nstance.Ambiguous, nstance.Unavailable, nstance.Internal,
	} {
		codes = append(codes, string(c))
	}
	return map[string][]string{
		"kind":    append(server.AttentionKinds(), holdKinds()...),
		"outcome": {string(nstance.OutcomeDrained), string(nstance.OutcomeFailed), "cut_short", "cancelled"},
		"code":    codes,
		"state":   {"wanted", "ready", "booting", "leaving", "stale", "on_demand", "preserved", "gone"},
		"cause":   {"notice", "gone", "unhealthy"},
	}
}

// promExpressions returns the PromQL in a file of deploy.
func promExpressions(t *testing.T, file string) (out []string) {
	text, err := os.ReadFile(filepath.Join("..", "deploy", file))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^\s*expr: (.+)$|"expr": ("(?:[^"\\]|\\.)*")`).FindAllStringSubmatch(string(text), -1) {
		expr := m[1]
		if m[2] != "" {
			require.NoError(t, json.Unmarshal([]byte(m[2]), &expr))
		}
		out = append(out, expr)
	}
	require.NotEmpty(t, out)
	return out
}

// TestAlertLabelValuesExist checks the expressions without a parser: brackets, the
// labels of each metric, and their values.
func TestAlertLabelValuesExist(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile(filepath.Join("..", "docs", "metrics.md"))
	require.NoError(t, err)
	labels := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(nstance_[a-z_]+)` \\|([^|]*)\\|").FindAllStringSubmatch(string(docs), -1) {
		labels[m[1]] = m[2]
	}
	selector := regexp.MustCompile(`(nstance_[a-z_]+)\{([^}]*)\}`)
	matcher := regexp.MustCompile(`^([a-z_]+)(=|!=|=~|!~)"([^"]*)"$`)
	closed := metricLabelValues()
	for _, file := range []string{"prometheus-alerts.yaml", "grafana-dashboard.json"} {
		for _, expr := range promExpressions(t, file) {
			require.True(t, bracketsBalanced(expr), "%s: %s", file, expr)
			for _, s := range selector.FindAllStringSubmatch(expr, -1) {
				name := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(s[1], "")
				for _, one := range strings.Split(s[2], ",") {
					m := matcher.FindStringSubmatch(strings.TrimSpace(one))
					require.NotNil(t, m, "%s: %q in %s", file, one, expr)
					require.Contains(t, labels[name], "`"+m[1]+"`", "%s has no such label: %s", name, expr)
					if strings.HasPrefix(m[3], "$") || closed[m[1]] == nil {
						continue
					}
					for _, value := range strings.Split(m[3], "|") {
						require.Contains(t, closed[m[1]], value, "%s: %s", file, expr)
					}
				}
			}
		}
	}
}

// TestDashboardMetrics checks the metrics in the dashboard.
func TestDashboardMetrics(t *testing.T) {
	t.Parallel()
	shown := strings.Join(promExpressions(t, "grafana-dashboard.json"), "\n")
	for what, expr := range map[string]string{
		"queue age": `nstance_queue_age_seconds`, "time to replacement": `nstance_replacement_ready_seconds_bucket`,
		"notices by source":      `by \([a-z, ]*source[a-z, ]*\) \([a-z]+\(nstance_notices_total`,
		"drains by outcome":      `by \([a-z, ]*outcome[a-z, ]*\) \([a-z]+\(nstance_drains_total`,
		"provider calls by code": `by \([a-z, ]*code[a-z, ]*\) \([a-z]+\(nstance_provider_call_seconds_count`,
		"agents connected":       `nstance_agents_connected`, "lease age": `nstance_lease_age_seconds`,
	} {
		require.Regexp(t, expr, shown, what)
	}
}

// bracketsBalanced reports whether brackets outside of strings are balanced and all
// strings end.
func bracketsBalanced(expr string) bool {
	var open []rune
	quoted := false
	for _, r := range expr {
		i := strings.IndexRune("(){}[]", r)
		switch {
		case r == '"':
			quoted = !quoted
		case quoted || i < 0:
		case i%2 == 0:
			open = append(open, rune("(){}[]"[i+1]))
		case len(open) == 0 || open[len(open)-1] != r:
			return false
		default:
			open = open[:len(open)-1]
		}
	}
	return !quoted && len(open) == 0
}

// TestMetricsOfDrainsAndHolds has drains with every outcome and a held group.
func TestMetricsOfDrainsAndHolds(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newWorld(t, setup{webSize: 2, shard: `"default_drain_timeout": "1s",`})
	operator := w.registerClient(nstance.RoleOperator, "default").operatorAPI()
	var ids []nstance.InstanceID
	require.Eventually(t, func() bool {
		ids = nil
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == "default" {
				ids = append(ids, m.ID)
			}
		}
		return len(ids) == 2
	}, eventually, time.Millisecond)
	for _, id := range ids {
		w.awaitEvent(nstance.EventCreated, id)
		w.connectReady(id)
	}
	_, err := operator.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web", Reason: "busy"})
	require.NoError(t, err)
	w.watch(operator, &apiv1.WatchInstanceEventsRequest{DrainExecutor: true}).snapshot()
	_, err = operator.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(ids[0])})
	require.NoError(t, err)
	_, err = operator.AcknowledgeDrained(t.Context(), &apiv1.AcknowledgeDrainedRequest{
		Id: string(ids[0]), Generation: w.awaitEvent(nstance.EventDrainStarted, ids[0]).Drain.Generation, Outcome: string(nstance.OutcomeDrained),
	})
	require.NoError(t, err)
	_, err = operator.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(ids[1])})
	require.NoError(t, err)
	w.awaitEvent(nstance.EventDrainAcknowledged, ids[0])
	w.awaitEvent(nstance.EventDrainCutShort, ids[1])
	lines := w.scrapeMetrics()
	for _, want := range []string{
		`nstance_drains_total{outcome="drained"} 1`, `nstance_drains_total{outcome="cut_short"} 1`,
		`nstance_group_held{group="web",kind="paused",tenant="default"} 1`,
	} {
		require.Contains(t, lines, want)
	}
}

func TestMetricsOfAStandby(t *testing.T) {
	t.Parallel()
	leader := newWorld(t, setup{webSize: 1})
	w := newWorld(t, setup{store: leader.store, webSize: 1, noWait: true})
	lines := w.scrapeMetrics()
	require.Contains(t, lines, "nstance_leading 0")
	for _, line := range lines {
		require.NotContains(t, line, "nstance_group_members")
	}
}

func TestTraces(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	w := newWorld(t, setup{webSize: 1, opts: server.Options{Traces: tp}})
	w.awaitMachine(nstance.DefaultTenant)
	size := int32(2)
	_, err := w.admin().UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Tenant: "default", Size: &size})
	require.NoError(t, err)
	var request, write trace.SpanContext
	require.Eventually(t, func() bool {
		var parent trace.SpanID
		created := false
		for _, s := range spans.GetSpans() {
			switch {
			case s.Name == "nstance.v1.OperatorService/UpdateGroup":
				request = s.SpanContext
			case strings.HasPrefix(s.Name, "storage.put"):
				for _, a := range s.Attributes {
					if string(a.Key) == "nstance.key" && a.Value.AsString() == "groups/s1.jsonc" {
						write, parent = s.SpanContext, s.Parent.SpanID()
					}
				}
			case s.Name == "provider.create":
				created = true
			}
		}
		return created && request.IsValid() && parent == request.SpanID()
	}, eventually, 5*time.Millisecond)
	require.Equal(t, request.TraceID(), write.TraceID(), "the write is part of the request")
}

func holdKinds() (kinds []string) {
	for _, kind := range []plan.HoldKind{
		plan.HoldBackoff, plan.HoldHalted, plan.HoldPaused, plan.HoldSettling, plan.HoldUnhealthyCap,
		plan.HoldBreaker, plan.HoldClock, plan.HoldUnreadable, plan.HoldFrozen, plan.HoldDefinition,
		plan.HoldBudget, plan.HoldCapacity, plan.HoldDrain, plan.HoldPending, plan.HoldRolledBack,
	} {
		kinds = append(kinds, string(kind))
	}
	return kinds
}
