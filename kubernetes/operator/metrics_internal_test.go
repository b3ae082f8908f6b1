package operator

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/internal/test/metrictables"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// TestMetricsDocument compares the table of docs/metrics.md with the figures of drains.
func TestMetricsDocument(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(drainMetrics{func() map[client.ObjectKey]nodedrain.Stats { return map[client.ObjectKey]nodedrain.Stats{{}: {}} }})
	doctest.Section(t, doctest.Docs("metrics.md"), "drains", metrictables.Table(t, registry, func(string) bool { return true }))
}
