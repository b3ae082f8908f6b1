//go:build kube

package operator_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-go/nstance/kubernetes/kubetest"
)

// BenchmarkKubeBesideMachineSet has Cluster API's MachineSet controller with a MachineHealthCheck,
// and then a group of a shard, bring up 1,000 nodes with a pod each over one simulated cloud, and
// lose 500 at once with two minutes each, while a disruption budget permits 125 pods to be away.
// Each has an API server of its own. Cluster API needs an infrastructure provider, which is
// nstance-operator: both programs count.
func BenchmarkKubeBesideMachineSet(b *testing.B) {
	b.Run("machineset", func(b *testing.B) { measureApart(b, machineSet) })
	b.Run("nstance", func(b *testing.B) { measureApart(b, ours) })
}

func measureApart(b *testing.B, side func(*world) *neighbour) {
	c, err := kubetest.Start(kubetest.Options{Controllers: true, Scheduler: true, Kubelets: true})
	require.NoError(b, err)
	b.Cleanup(c.Stop)
	stop, err := manage(c)
	require.NoError(b, err)
	b.Cleanup(stop)
	side(newWorldIn(b, c)).measure(b)
	b.ReportMetric(0, "ns/op") // one run is no operation
}

// machineSet is Cluster API's manager with machines of a shard.
func machineSet(w *world) *neighbour {
	n := ours(w)
	pid, metrics := w.management.ClusterAPI()
	n.name, n.programs = "machineset", append(n.programs, program{pid: pid, metrics: metrics})
	n.grow = func() {
		w.healthCheck(map[string]string{clusterv1.MachineDeploymentNameLabel: "web"})
		w.deployment(besideSize, nil)
	}
	return n
}
