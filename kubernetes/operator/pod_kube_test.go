//go:build kube

package operator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/never"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/operator"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// askingPod makes a pod of the workload cluster, which all tests share, that asks for a
// machine of a group.
func (w *world) askingPod(name, group string, annotations map[string]string) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: name, Labels: map[string]string{operator.PodGroup: group}, Annotations: annotations,
		},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{operator.ClaimLabel: group}, Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	require.NoError(w, w.Create(w.Context(), p))
	w.Cleanup(func() {
		_ = w.Delete(context.WithoutCancel(w.Context()), p.DeepCopy(), client.GracePeriodSeconds(0))
	})
	return p
}

// permitting has the NstanceCluster make machines for pods.
func (w *world) permitting(p *infrav1.MachinesForPods) {
	w.Helper()
	nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	require.NoError(w, w.Get(w.Context(), client.ObjectKeyFromObject(nc), nc))
	before := nc.DeepCopy()
	nc.Spec.MachinesForPods = p
	require.NoError(w, w.Patch(w.Context(), nc, client.MergeFrom(before)))
}

// provisionedForPods is a cluster that makes machines for the pods of these tests.
func provisionedForPods(t *testing.T) (*world, *shardtest.Shard, *shardtest.Shard) {
	t.Helper()
	w, a, b := provisioned(t)
	w.permitting(&infrav1.MachinesForPods{Namespaces: []string{w.namespace}, Groups: []string{"web", "nowhere"}, Max: 10})
	return w, a, b
}

// untilNoMachines waits until no Machine and no NstanceMachine is left.
func (w *world) untilNoMachines() {
	w.Helper()
	require.Eventually(w, func() bool {
		var list infrav1.NstanceMachineList
		require.NoError(w, w.List(w.Context(), &list, client.InNamespace(w.namespace)))
		return len(w.machines()) == 0 && len(list.Items) == 0
	}, eventually, poll, "%s", lazy(w.everything))
}

// TestKubePod makes a Machine for a pod that asks for one, whose node has the label that
// the pod selects it by, and gives it up when the pod is deleted, or has ended while no
// operator ran. An operator that starts meanwhile makes no second one.
func TestKubePod(t *testing.T) {
	w, a, b := provisionedForPods(t)
	pod := w.askingPod("job", "web", map[string]string{operator.PodClaim: "job-1"})
	machine := w.untilRunning(1)[0]
	require.Equal(t, string(pod.UID), machine.Labels[operator.PodLabel])
	require.Equal(t, w.namespace+"/job", machine.Annotations[operator.PodLabel])
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Status.NodeRef.Name}}
	until(w, node, func(n *corev1.Node) bool { return n.Labels[operator.ClaimLabel] == "job-1" }, "its node can be selected")

	w.restart()
	second := w.askingPod("second", "web", nil)
	machines := w.untilRunning(2)
	require.True(t, slices.ContainsFunc(machines, func(m clusterv1.Machine) bool { return m.UID == machine.UID }))
	require.Len(t, append(a.Cloud.Machines(), b.Cloud.Machines()...), 2)

	require.NoError(t, w.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	w.untilGone(&machine)
	left := w.untilRunning(1)[0]
	require.Equal(t, string(second.UID), left.Labels[operator.PodLabel])

	w.stop()
	second.Status.Phase = corev1.PodSucceeded
	require.NoError(t, w.Status().Update(t.Context(), second))
	w.start()
	w.untilNoMachines()
	require.Empty(t, append(a.Cloud.Machines(), b.Cloud.Machines()...))
}

// TestKubePodRemediation replaces the Machine of a pod that a MachineHealthCheck finds
// unhealthy: Cluster API replaces none that has no owner.
func TestKubePodRemediation(t *testing.T) {
	w, _, _ := provisionedForPods(t)
	w.askingPod("job", "web", nil)
	machine := w.untilRunning(1)[0]
	w.healthCheck(map[string]string{clusterv1.ClusterNameLabel: "c"})
	require.NoError(t, w.Patch(t.Context(), machine.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"cluster.x-k8s.io/remediate-machine":""}}}`))))
	require.Eventually(t, func() bool {
		machines := w.machines()
		return len(machines) == 1 && machines[0].UID != machine.UID && machines[0].Status.NodeRef.Name != ""
	}, eventually, poll, "%s", lazy(w.everything))
	require.Equal(t, machine.Name, w.machines()[0].Name)
}

// TestKubePodClusterDeleted has the machine of a living pod go with the Cluster.
func TestKubePodClusterDeleted(t *testing.T) {
	w, a, b := provisionedForPods(t)
	pod := w.askingPod("job", "web", nil)
	w.untilRunning(1)
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	require.NoError(t, w.Delete(t.Context(), cluster))
	w.untilGone(cluster)
	w.untilNoMachines()
	require.Empty(t, append(a.Cloud.Machines(), b.Cloud.Machines()...))
	require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
}

// TestKubePodCreateFails has an event on the pod say why its machine cannot be created, once
// for each reason. It is created once it can be.
func TestKubePodCreateFails(t *testing.T) {
	w, a, _ := provisionedForPods(t)
	a.Cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Invalid, Times: 1})
	pod := w.askingPod("job", "web", nil)
	require.Eventually(t, func() bool { return len(w.eventsOf(pod)) > 0 }, eventually, poll)
	a.Resume("web") // else the shape is tried again after a minute
	w.untilRunning(1)
	events := w.eventsOf(pod)
	require.Contains(t, events[0], "OnDemandMachineNotCreated: ")
	require.Contains(t, events[0], "create refused")
}

// TestKubePodPaused does nothing for a Cluster that is paused, and all of it afterwards.
func TestKubePodPaused(t *testing.T) {
	w, _, _ := provisionedForPods(t)
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	pause := func(paused string) {
		require.NoError(t, w.Patch(t.Context(), cluster, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":`+paused+`}}`))))
		nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
		until(w, nc, func(nc *infrav1.NstanceCluster) bool {
			c := meta.FindStatusCondition(nc.Status.Conditions, clusterv1.PausedCondition)
			return c != nil && (c.Status == metav1.ConditionTrue) == (paused == "true")
		}, "the operator knows")
	}
	pause("true")
	w.askingPod("job", "web", nil)
	bad := w.askingPod("bad", "nowhere", nil)
	never.True(t, func() bool { return len(w.machines()) > 0 || len(w.eventsOf(bad)) > 0 }, time.Second, 100*time.Millisecond,
		"%s", lazy(func() string { return mustYAML(w.eventsOf(bad)) + mustYAML(cluster) + w.everything() }))
	pause("false")
	w.untilRunning(1)
}

// eventsOf returns the messages of events on a pod.
func (w *world) eventsOf(pod *corev1.Pod) (out []string) {
	w.Helper()
	var list corev1.EventList
	require.NoError(w, w.List(w.Context(), &list, client.InNamespace(pod.Namespace)))
	for _, e := range list.Items {
		if e.InvolvedObject.UID == pod.UID {
			out = append(out, e.Reason+": "+e.Message)
		}
	}
	return out
}

// TestKubePodMistakes has an event on the pod name what is wrong, and what to do.
func TestKubePodMistakes(t *testing.T) {
	w, _, _ := provisionedForPods(t)
	for name, c := range map[string]struct {
		group       string
		annotations map[string]string
		want        string
	}{
		"group": {"nowhere", nil, "OnDemandMachineRefused: metadata.annotations[on-demand.nstance.dev/group]: no shard of NstanceCluster c has group nowhere" +
			" (name a group that a shard has, in another pod, or add the group to a shard's configuration)"},
		"name":  {"web", map[string]string{operator.PodGroup: "No Group"}, "OnDemandMachineRefused: metadata.annotations[on-demand.nstance.dev/group]: "},
		"claim": {"web", map[string]string{operator.PodClaim: "no label"}, "OnDemandMachineRefused: metadata.annotations[on-demand.nstance.dev/claim]: "},
	} {
		pod := w.askingPod("bad-"+name, c.group, c.annotations)
		var events []string
		require.Eventually(t, func() bool {
			events = w.eventsOf(pod)
			return len(events) == 1
		}, eventually, poll, "%s: %s", name, lazy(w.everything))
		require.Contains(t, events[0], c.want)
	}
	require.Empty(t, w.machines())
}

// TestKubePodPermission: no pod has a machine of its own unless the NstanceCluster says so, for
// its namespace, its group and its type, and not more than it says.
func TestKubePodPermission(t *testing.T) {
	w, a, b := provisioned(t)
	n := 0
	refused := func(annotations map[string]string, want string) {
		t.Helper()
		n++
		pod := w.askingPod(fmt.Sprintf("refused-%d", n), "web", annotations)
		require.Eventually(t, func() bool {
			return slices.ContainsFunc(w.eventsOf(pod), func(e string) bool { return strings.HasPrefix(e, "OnDemandMachineRefused: "+want) })
		}, eventually, poll, "%s: %s", want, lazy(w.everything))
		require.NoError(t, w.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	}
	refused(nil, "spec.machinesForPods: NstanceCluster c makes no machines for pods")
	w.permitting(&infrav1.MachinesForPods{Namespaces: []string{"other"}, Groups: []string{"web"}, Max: 1})
	refused(nil, "spec.machinesForPods.namespaces: ")
	w.permitting(&infrav1.MachinesForPods{Namespaces: []string{w.namespace}, Groups: []string{"other"}, Max: 1})
	refused(nil, "spec.machinesForPods.groups: ")
	w.permitting(&infrav1.MachinesForPods{Namespaces: []string{w.namespace}, Groups: []string{"web"}, InstanceTypes: []string{"small"}, Max: 2})
	refused(map[string]string{operator.PodInstanceType: "gpu"}, "spec.machinesForPods.instanceTypes: ")
	require.Empty(t, w.machines())

	pods := make([]*corev1.Pod, 6)
	for i := range pods { // all at once: the count holds however many workers there are
		pods[i] = w.askingPod(fmt.Sprintf("job-%d", i), "web", nil)
	}
	w.untilRunning(2)
	require.Eventually(t, func() bool {
		said := 0
		for _, pod := range pods {
			if slices.ContainsFunc(w.eventsOf(pod), func(e string) bool { return strings.HasPrefix(e, "OnDemandMachineRefused: spec.machinesForPods.max: ") }) {
				said++
			}
		}
		return said == len(pods)-2
	}, eventually, poll, "%s", lazy(w.everything))
	require.Len(t, w.machines(), 2)
	require.Len(t, append(a.Cloud.Machines(), b.Cloud.Machines()...), 2)

	w.permitting(&infrav1.MachinesForPods{Namespaces: []string{w.namespace}, Groups: []string{"web"}, Max: 6})
	require.Eventually(t, func() bool { return len(w.machines()) == len(pods) }, 20*time.Second, 20*time.Millisecond,
		"permission counts at once, not with the next try after a minute: %s", lazy(w.everything))
}
