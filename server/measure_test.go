package server_test

import (
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
	"github.com/nstance-go/nstance/server"
)

// scrape returns the lines of /metrics that begin with nstance_.
func (w *world) scrape() []string {
	w.Helper()
	resp := w.get("/metrics")
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
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	api := w.admin()
	k.acked(k.notice(reclaim("e1", time.Minute)))
	next := w.await(nstance.EventReplacementRequested, "").Instance
	w.await(nstance.EventCreated, next)
	w.ready(next)
	_, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: "x"})
	require.Error(t, err)
	lines := w.scrape()
	for _, want := range []string{
		`nstance_leading 1`, `nstance_lease_epoch 1`, `nstance_agents_connected 2`, `nstance_orphans 0`,
		`nstance_group_members{group="web",state="wanted",tenant="default"} 1`,
		`nstance_group_members{group="web",state="leaving",tenant="default"} 1`,
		`nstance_server_info{cluster="c1",shard="s1",version="` + server.Version + `"} 1`,
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
	t.Run("every metric is documented, and nothing else", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join("..", "docs", "metrics.md"))
		require.NoError(t, err)
		documented := map[string]bool{}
		for _, m := range regexp.MustCompile("(?m)^\\| `(nstance_[a-z_]+)`").FindAllStringSubmatch(string(text), -1) {
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
		// A drain that has ended, and a group that is held, this test does not have.
		for _, name := range []string{"nstance_drains_total", "nstance_group_held"} {
			require.True(t, documented[name])
			exported[name] = true
		}
		require.Len(t, exported, len(documented), "something is documented that does not exist")
	})
	t.Run("alerts and the dashboard ask for what exists", func(t *testing.T) {
		docs, err := os.ReadFile(filepath.Join("..", "docs", "metrics.md"))
		require.NoError(t, err)
		for _, file := range []string{"prometheus-alerts.yaml", "grafana-dashboard.json"} {
			text, err := os.ReadFile(filepath.Join("..", "deploy", file))
			require.NoError(t, err)
			names := regexp.MustCompile(`nstance_[a-z_]+`).FindAllString(string(text), -1)
			require.NotEmpty(t, names)
			for _, name := range names {
				for _, part := range []string{"_bucket", "_sum", "_count"} {
					name = strings.TrimSuffix(name, part)
				}
				require.Contains(t, string(docs), "| `"+name+"`", file)
			}
		}
	})
}

func TestMetricsOfAStandby(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	require.NoError(t, w.stop())
	w.conf.set(replace(t, ordinary(1), `"cluster": {"id": "c1"}`, `"cluster": {"id": "c2"}`), nil)
	var err error
	w.server, err = server.New(t.Context(), w.store, w.cloud, w.conf.read, &server.Options{Journal: w.journal})
	require.NoError(t, err)
	w.run()
	lines := w.scrape()
	require.Contains(t, lines, "nstance_leading 0")
	for _, line := range lines {
		require.NotContains(t, line, "nstance_group_members")
	}
}

func TestTraces(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	w := newWorld(t, setup{size: 1, opts: server.Options{Traces: tp}})
	w.machine(nstance.DefaultTenant)
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
