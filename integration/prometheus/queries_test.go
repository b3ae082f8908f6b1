//go:build linux

package prometheus_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
)

// TestMain makes this program nstance-server too: the machines and the server of a shard are
// copies of it.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || !slices.Contains([]string{"machine", "drain-demo", "run"}, os.Args[1]) {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	parts := servercmd.Parts{Kinds: provider.Kinds{local.Kind(servercmd.Machine()...)}}
	code := servercmd.Main(ctx, parts, os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}

// shard runs a server and agents until the test ends, and returns the address of the server's
// pages and the folder of an administrator's identity.
func shard(t *testing.T) (pages, identity string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := dev.Run(ctx, &dev.Options{HTTP: "127.0.0.1:0", Instances: 2, Out: w, Err: io.Discard})
		_ = w.Close()
		ended <- err
	}()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if m := regexp.MustCompile(`^status page +(\S+)/$`).FindStringSubmatch(lines.Text()); m != nil {
			pages = m[1]
		}
		if m := regexp.MustCompile(`export NSTANCE_ADMIN_DIR=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			identity = m[1]
		}
		if strings.Contains(lines.Text(), " group_ready ") {
			go func() { _, _ = io.Copy(io.Discard, r) }() // ends with dev.Run
			return pages, identity
		}
	}
	require.FailNow(t, "the shard has ended")
	return "", ""
}

// eventful has a shard react to a reclaim, and has two entries need attention, of which one is
// acknowledged.
func eventful(t *testing.T, identity string) {
	t.Helper()
	call := func(args ...string) []byte {
		var out, errs bytes.Buffer
		code := admin.Main(t.Context(), nil, append(args, "--identity", identity, "-o", "json"), strings.NewReader(""), &out, &errs, os.Getenv)
		require.Zero(t, code, "%s: %s", args, &errs)
		return out.Bytes()
	}
	var instances []struct{ ID, Group string }
	require.NoError(t, json.Unmarshal(call("instance", "list"), &instances))
	call("interrupt", instances[0].ID, "--wait", "--yes")
	call("group", "pause", instances[0].Group, "--reason", "a test")
	call("pool", "avoid", "market=spot", "--for", "1h", "--reason", "a test", "--yes")
	call("attention", "ack", "paused", "--for", "1h", "--reason", "a test")
}

// scraped are series as Prometheus reads them, by name and labels, with the labels that it adds.
func scraped(t *testing.T, text string) map[string]series {
	t.Helper()
	all := map[string]series{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndex(line, " ")
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		require.NoError(t, err, line)
		name, own, _ := strings.Cut(line[:at], "{")
		all[name+`{instance="a",job="nstance",`+strings.TrimSuffix(own, "}")+"}"] = always(value)
	}
	require.NotEmpty(t, all)
	return all
}

// metricLabels returns the names of the labels of each metric.
func metricLabels(t *testing.T, all map[string]series) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for text := range all {
		metric, err := parser.NewParser(parser.Options{}).ParseMetric(text)
		require.NoError(t, err, text)
		metric.Range(func(l labels.Label) {
			if l.Name != model.MetricNameLabel {
				out[metric.Get(model.MetricNameLabel)] = append(out[metric.Get(model.MetricNameLabel)], l.Name)
			}
		})
	}
	return out
}

// A dashboard is a file of deploy.
type dashboard struct {
	Templating struct {
		List []struct{ Query string }
	}
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

func readDashboard(t *testing.T, file string) (d dashboard) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../deploy", file))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &d))
	require.NotEmpty(t, d.Panels)
	return d
}

// withoutVariables puts a value in place of each of Grafana's variables: all of them.
func withoutVariables(expr string) string {
	return regexp.MustCompile(`\$\w+`).ReplaceAllString(strings.ReplaceAll(expr, "$__rate_interval", "5m"), ".*")
}

// requireDashboard requires that each panel and each variable of a dashboard shows something.
func requireDashboard(t *testing.T, file string, all map[string]series) {
	t.Helper()
	d, known := readDashboard(t, file), metricLabels(t, all)
	for _, p := range d.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			expr := withoutVariables(target.Expr)
			require.NoError(t, checkNames(expr, known), "%s: %s", file, p.Title)
			require.NotEmpty(t, evaluate(t, expr, all), "%s: %s shows nothing: %s", file, p.Title, expr)
		}
	}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Query); m != nil {
			require.NoError(t, checkNames("count by ("+m[2]+") ("+withoutVariables(m[1])+")", known), "%s: %s", file, v.Query)
		}
	}
}

// evaluate returns what Prometheus answers an hour after the first scrape.
func evaluate(t *testing.T, expr string, all map[string]series) promql.Vector {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{Logger: slog.New(slog.DiscardHandler), MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	defer engine.Close()
	q, err := engine.NewInstantQuery(t.Context(), memory(all), nil, expr, at(time.Hour))
	require.NoError(t, err, expr)
	defer q.Close()
	result := q.Exec(t.Context())
	require.NoError(t, result.Err, expr)
	vector, err := result.Vector()
	require.NoError(t, err, expr)
	return slices.Clone(vector)
}

// TestShardQueries: the dashboard and the alerts of shards name metrics and labels that a
// server exposes.
func TestShardQueries(t *testing.T) {
	pages, identity := shard(t)
	eventful(t, identity)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, pages+"/metrics", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	all := scraped(t, string(text))
	requireDashboard(t, "grafana-dashboard.json", all)
	known := metricLabels(t, all)
	for _, r := range rules(t) {
		require.NoError(t, checkNames(r.Expr, known), r.Alert)
		evaluate(t, r.Expr, all)
	}
}
