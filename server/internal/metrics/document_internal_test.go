package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/internal/test/metrictables"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// TestDocument compares the table of docs/metrics.md with the registry.
func TestDocument(t *testing.T) {
	m := New(func() State {
		return State{
			Leading: true, Versions: map[string]int{"": 1}, Attention: map[string]int{"": 1}, Acknowledged: map[Acknowledged]int{{}: 1}, Pools: map[loop.MemberPool]int{{}: 1},
			Groups: []reconcile.GroupView{{Holds: []reconcile.HoldView{{Hold: plan.Hold{Kind: plan.HoldPaused}}}}},
		}
	})
	for _, vec := range []*prometheus.HistogramVec{m.provider, m.storage, m.requests, m.warnings} {
		vec.WithLabelValues("", "")
	}
	for _, vec := range []*prometheus.HistogramVec{m.losses.requested, m.losses.ready} {
		vec.WithLabelValues("")
	}
	for _, vec := range []*prometheus.CounterVec{m.notices, m.webhooks} {
		vec.WithLabelValues("", "")
	}
	for _, vec := range []*prometheus.CounterVec{m.removed, m.events, m.drains} {
		vec.WithLabelValues("")
	}
	m.streams.WithLabelValues("")
	own := func(name string) bool { return strings.HasPrefix(name, namespace+"_") }
	doctest.Section(t, doctest.Docs("metrics.md"), "server", metrictables.Table(t, m.registry, own))
}
