//go:build kube

package operator_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// columns returns what kubectl get shows of an object, by column.
func (w *world) columns(resource, name string) map[string]any {
	w.Helper()
	data, err := servers.Client.CoreV1().RESTClient().Get().
		AbsPath("/apis", infrav1.GroupVersion.Group, infrav1.GroupVersion.Version, "namespaces", w.namespace, resource, name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(w.Context()).Raw()
	require.NoError(w, err)
	var table metav1.Table
	require.NoError(w, json.Unmarshal(data, &table))
	require.Len(w, table.Rows, 1)
	out := map[string]any{}
	for i, c := range table.ColumnDefinitions {
		out[c.Name] = table.Rows[0].Cells[i]
	}
	return out
}

// TestKubeColumns has kubectl get show what is wrong as it is: a deadline in the future,
// all shards that are lost, and a hold.
func TestKubeColumns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}}
	}
	put := func(obj client.Object, status func()) {
		t.Helper()
		require.NoError(t, w.Create(t.Context(), obj))
		status()
		require.NoError(t, w.Status().Update(t.Context(), obj))
	}
	deadline := metav1.NewTime(time.Now().Add(time.Hour).UTC().Truncate(time.Second))
	m := &infrav1.NstanceMachine{ObjectMeta: at("m"), Spec: infrav1.NstanceMachineSpec{Group: "web"}}
	put(m, func() { m.Status.Leaving = infrav1.Leaving{Cause: "notice", Deadline: deadline} })
	require.Equal(t, deadline.Format(time.RFC3339), w.columns("nstancemachines", "m")["Deadline"])

	nc := &infrav1.NstanceCluster{ObjectMeta: at("n"), Spec: infrav1.NstanceClusterSpec{
		Shards:       []infrav1.Shard{{Name: "a", Address: "a:1"}, {Name: "b", Address: "b:1"}},
		Registration: infrav1.RegistrationReference{SecretName: "nstance"},
	}}
	put(nc, func() {
		nc.Status.Conditions = []metav1.Condition{{
			Type: infrav1.ConditionShardsConnected, Status: metav1.ConditionFalse, Reason: "ShardsLost", Message: "a, b", LastTransitionTime: deadline,
		}}
	})
	require.Equal(t, "a, b", w.columns("nstanceclusters", "n")["Lost"])

	sg := &infrav1.NstanceShardGroup{ObjectMeta: at("web--a"), Spec: infrav1.NstanceShardGroupSpec{Group: "web", Shard: "a", Size: new(int32)}}
	put(sg, func() { sg.Status.Holds = []infrav1.Hold{{Kind: "capacity"}, {Kind: "backoff"}} })
	require.Equal(t, "capacity", w.columns("nstanceshardgroups", "web--a")["Hold"])
}
