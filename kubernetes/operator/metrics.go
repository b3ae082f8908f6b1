package operator

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// drainMetrics are the figures of the drains of all clusters, read when they are asked for.
type drainMetrics struct {
	stats func() map[client.ObjectKey]nodedrain.Stats // by NstanceCluster
}

// A drainMetric is one figure.
type drainMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(nodedrain.Stats) float64
}

// drainFigures returns the figures. Counters begin at 0 with the operator that leads, and when
// another kubeconfig names another cluster.
func drainFigures() []drainMetric {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("nstance_drain_"+name, help, []string{"namespace", "cluster"}, nil)
	}
	return []drainMetric{
		{desc("nodes", "Nodes of an NstanceCluster that are being drained."), prometheus.GaugeValue, func(s nodedrain.Stats) float64 { return float64(s.Draining) }},
		{desc("refused_nodes", "Nodes that are being drained with a pod whose eviction is refused now, by a disruption budget or an admission webhook."), prometheus.GaugeValue, func(s nodedrain.Stats) float64 { return float64(s.Refused) }},
		{desc("pdb_overridden_total", "Pods that were deleted past their disruption budget."), prometheus.CounterValue, func(s nodedrain.Stats) float64 { return float64(s.PDBOverridden) }},
		{desc("budget_wait_seconds_total", "Time for which nodes had a pod whose eviction was refused, all nodes added up."), prometheus.CounterValue, func(s nodedrain.Stats) float64 { return s.BudgetWait.Seconds() }},
	}
}

// Describe implements prometheus.Collector.
func (drainMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range drainFigures() {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (m drainMetrics) Collect(ch chan<- prometheus.Metric) {
	for key, stats := range m.stats() {
		for _, f := range drainFigures() {
			ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(stats), key.Namespace, key.Name)
		}
	}
}

// drainStats returns the figures of each cluster whose nodes are drained.
func (f *fleets) drainStats() map[client.ObjectKey]nodedrain.Stats {
	out := map[client.ObjectKey]nodedrain.Stats{}
	for _, fl := range f.all() {
		fl.mu.Lock()
		if fl.nodes != nil {
			out[fl.key] = fl.nodes.Stats()
		}
		fl.mu.Unlock()
	}
	return out
}
