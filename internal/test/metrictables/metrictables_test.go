package metrictables_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/metrictables"
)

func TestTable(t *testing.T) {
	calls := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "calls_seconds", Help: "Time of calls."}, []string{"op", "code"})
	calls.WithLabelValues("put", "ok").Observe(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(calls, prometheus.NewGauge(prometheus.GaugeOpts{Name: "depth", Help: "One | many."}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_threads", Help: "Threads."}), prometheus.NewCounterVec(prometheus.CounterOpts{Name: "go_unused"}, []string{"a"}))
	require.Equal(t, "| metric | labels | type | meaning |\n|---|---|---|---|\n"+
		"| `calls_seconds` | `code`, `op` | histogram | Time of calls. |\n"+
		"| `depth` |  | gauge | One \\| many. |\n", metrictables.Table(t, registry, func(name string) bool { return !strings.HasPrefix(name, "go_") }))
}
