// Package metrictables renders the metrics of registries as tables for docs/metrics.md.
package metrictables

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// Table renders those metrics of a registry of which wanted is true. It requires a series of
// each that the registry describes: a table cannot know the type of one that has none.
func Table(t *testing.T, registry prometheus.Gatherer, wanted func(name string) bool) string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string]bool{}
	var out strings.Builder
	out.WriteString("| metric | labels | type | meaning |\n|---|---|---|---|\n")
	for _, f := range families {
		found[f.GetName()] = true
		if wanted(f.GetName()) {
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", f.GetName(), labels(f), strings.ToLower(f.GetType().String()), strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace(f.GetHelp()))
		}
	}
	for _, name := range described(t, registry) {
		require.True(t, found[name] || !wanted(name), "there is no series of %s", name)
	}
	return out.String()
}

// labels returns the names of a metric's labels.
func labels(f *dto.MetricFamily) string {
	var names []string
	for _, pair := range f.GetMetric()[0].GetLabel() {
		names = append(names, "`"+pair.GetName()+"`")
	}
	return strings.Join(names, ", ")
}

// described returns the names of the metrics that a registry describes.
func described(t *testing.T, registry prometheus.Gatherer) (names []string) {
	t.Helper()
	collector, ok := registry.(prometheus.Collector)
	require.True(t, ok, "%T does not describe its metrics", registry)
	descriptions := make(chan *prometheus.Desc)
	go func() { defer close(descriptions); collector.Describe(descriptions) }()
	for d := range descriptions {
		names = append(names, regexp.MustCompile(`fqName: "([^"]*)"`).FindStringSubmatch(d.String())[1])
	}
	return names
}
