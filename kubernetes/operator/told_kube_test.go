//go:build kube

package operator_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/operator"
)

// untilEvent waits until an event about an object of a kind has these words.
func (w *world) untilEvent(about, kind string, words ...string) {
	w.Helper()
	var seen []string
	require.Eventually(w, func() bool {
		var list corev1.EventList
		seen = nil
		require.NoError(w, w.List(w.Context(), &list, client.InNamespace(w.namespace)))
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			text := e.InvolvedObject.Kind + " " + e.Type + " " + e.Reason + " " + e.Message
			seen = append(seen, text)
			return e.InvolvedObject.Kind == about && e.Type == kind && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
		})
	}, eventually, poll, "%s %v: %s", about, words, lazy(func() string { return strings.Join(seen, "\n") }))
}

// figure returns a metric of the only cluster; -1: there is none.
func figure(t *testing.T, from prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			require.Len(t, f.GetMetric(), 1)
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return -1
}

// TestKubeToldByEvents: each controller says in events what changes: a refusal as a warning.
func TestKubeToldByEvents(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	w.untilEvent("NstanceCluster", corev1.EventTypeNormal, "Connected", "ShardsConnected is True")
	sg := w.shardGroup("nowhere", 1, func(s *infrav1.NstanceShardGroupSpec) { s.Template = "no-such-template" })
	w.untilEvent("NstanceShardGroup", corev1.EventTypeWarning, "NotAccepted", "Synced is False", "no-such-template")
	require.NoError(t, w.Delete(t.Context(), sg))
	w.pool(1, func(p *infrav1.NstanceMachinePoolSpec) { p.Spot = &infrav1.SpotOptions{} })
	w.untilEvent("NstanceMachinePool", corev1.EventTypeNormal, "Ready is True")
	w.untilEvent("NstanceMachine", corev1.EventTypeNormal, "Ready is True")
	require.NoError(t, a.Cloud.Reclaim(a.Cloud.Machines()[0].ID, time.Minute))
	w.untilEvent("NstanceMachine", corev1.EventTypeWarning, "Reclaimed", "NstanceInterrupted is True")
	a.Stop()
	w.untilEvent("NstanceCluster", corev1.EventTypeWarning, "ShardsLost", "ShardsConnected is False")
}

// TestKubeToldOfDrain: a Machine says why it is drained, until when, and which budget keeps it;
// metrics have what waits, and what was deleted past a budget.
func TestKubeToldOfDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	figures := prometheus.NewRegistry()
	w.options = &operator.Options{Metrics: figures}
	a, _ := w.provision()
	w.deployment(1, nil)
	machine := w.untilRunning(1)[0]
	p := w.podOn(machine.Status.NodeRef.Name, "web", map[string]string{"app": "web"})
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	require.NoError(t, w.Status().Update(t.Context(), p))
	require.NoError(t, w.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}))
	require.Zero(t, figure(t, figures, "nstance_drain_pdb_overridden_total"))
	require.NoError(t, a.Cloud.Reclaim(a.Cloud.Machines()[0].ID, 50*time.Second))
	until(w, &machine, func(m *clusterv1.Machine) bool {
		c := conditions.Get(m, infrav1.ConditionDraining)
		return c != nil && c.Status == metav1.ConditionTrue && strings.Contains(c.Message, "because of notice") && strings.Contains(c.Message, ", until ") &&
			strings.Contains(c.Message, "pods remaining: 1") && strings.Contains(c.Message, "The disruption budget web ")
	}, "its progress is told")
	require.EqualValues(t, 1, figure(t, figures, "nstance_drain_nodes"))
	require.EqualValues(t, 1, figure(t, figures, "nstance_drain_refused_nodes"))
	require.Eventually(t, func() bool { return figure(t, figures, "nstance_drain_budget_wait_seconds_total") > 1 }, eventually, poll)
	require.Eventually(t, func() bool { return figure(t, figures, "nstance_drain_pdb_overridden_total") == 1 }, eventually, poll)
	w.endPods()
	require.Eventually(t, func() bool { return figure(t, figures, "nstance_drain_nodes") == 0 }, eventually, poll)
}
