//go:build kube

package program

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// dashboardExpressions returns the PromQL of the operator's dashboard.
func dashboardExpressions(t *testing.T) (out []string) {
	t.Helper()
	data, err := os.ReadFile("../../../../deploy/grafana-dashboard-operator.json")
	require.NoError(t, err)
	var dashboard struct {
		Templating struct {
			List []struct{ Query string }
		}
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(data, &dashboard))
	for _, v := range dashboard.Templating.List {
		if strings.HasPrefix(v.Query, "label_values(") {
			out = append(out, v.Query)
		}
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			out = append(out, target.Expr)
		}
	}
	require.Greater(t, len(out), 15)
	return out
}

// labelsOf returns the labels of each metric in the text that a program exports.
func labelsOf(text string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(text) {
		m := regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? \S+\n$`).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		labels := []string{"job", "instance"} // of the scraper
		for _, l := range regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`).FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, l[1])
		}
		out[m[1]] = labels
	}
	return out
}

// TestKubeDashboard: the program exports the metrics, with the labels, that the dashboard
// and docs/metrics.md name.
func TestKubeDashboard(t *testing.T) {
	r := start(t, "--name=dashboard")
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	leader(t, "dashboard", r)
	requireReconciled(t)
	c := configuration(t, "nstance-operator", r.webhook)
	require.NoError(t, api.Create(t.Context(), c))
	t.Cleanup(func() { require.NoError(t, api.Delete(context.Background(), c)) })
	pool := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: servers.Namespace(t), Name: "asks-a-webhook"}}
	require.Eventually(t, func() bool { return api.Create(t.Context(), pool.DeepCopy(), client.DryRunAll) == nil }, eventually, interval)
	var exported map[string][]string
	require.Eventually(t, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.metrics+"/metrics", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+servers.Config.BearerToken)
		resp, err := web.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		exported = labelsOf(string(text))
		return resp.StatusCode == http.StatusOK && exported["controller_runtime_reconcile_total"] != nil && exported["controller_runtime_webhook_latency_seconds_bucket"] != nil
	}, eventually, interval)

	docs, err := os.ReadFile("../../../../docs/metrics.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(docs), "## The operator\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n## ")
	documented := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|([^|]*)\\|").FindAllStringSubmatch(table, -1) {
		documented[m[1]] = nil
		if strings.HasPrefix(m[1], "nstance_drain_") {
			continue // there are none without a cluster: TestKubeToldOfDrain of package operator has them
		}
		labels := exported[m[1]]
		if labels == nil {
			labels = exported[m[1]+"_bucket"]
		}
		require.NotNil(t, labels, "docs/metrics.md: there is no %s", m[1])
		for _, l := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(m[2], -1) {
			require.Contains(t, labels, l[1], "docs/metrics.md: %s", m[1])
		}
	}
	require.Greater(t, len(documented), 10)

	name := regexp.MustCompile(`\b[a-z]+_[a-z_]+\b`)
	grouping := regexp.MustCompile(`by \(([a-z, ]+)\) \((?:[a-z]+\()*([a-z_]+)`)
	selector := regexp.MustCompile(`([a-z_]+)\{([^}]*)\}`)
	for _, expr := range dashboardExpressions(t) {
		bare := regexp.MustCompile(`"[^"]*"|\$\w+|label_values|histogram_quantile`).ReplaceAllString(expr, "")
		names := name.FindAllString(bare, -1)
		require.NotEmpty(t, names, expr)
		for _, n := range names {
			require.Contains(t, exported, n, expr)
			require.Contains(t, documented, strings.TrimSuffix(n, "_bucket"), "docs/metrics.md lacks it")
		}
		for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
			for _, l := range strings.Split(g[1], ", ") {
				require.Contains(t, exported[g[2]], l, expr)
			}
		}
		for _, s := range selector.FindAllStringSubmatch(expr, -1) {
			for _, matcher := range strings.Split(s[2], ", ") {
				label, _, ok := strings.Cut(matcher, "=")
				require.True(t, ok && slices.Contains(exported[s[1]], label), "%s: %s", matcher, expr)
			}
		}
	}
}
