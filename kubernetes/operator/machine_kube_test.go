//go:build kube

package operator_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/kubernetes/operator"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// deployment makes a MachineDeployment of spot machines of group web, named web. What it
// leaves out is set by Cluster API's webhooks.
func (w *world) deployment(replicas int32, change func(*infrav1.NstanceMachineSpec)) *clusterv1.MachineDeployment {
	w.Helper()
	template := &infrav1.NstanceMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web"},
	}
	template.Spec.Template.Spec = infrav1.NstanceMachineSpec{Group: "web", Shape: infrav1.Shape{Spot: &infrav1.SpotOptions{}}}
	if change != nil {
		change(&template.Spec.Template.Spec)
	}
	require.NoError(w, w.Create(w.Context(), template))
	md := &clusterv1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web"},
		Spec: clusterv1.MachineDeploymentSpec{
			ClusterName: "c", Replicas: &replicas,
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
				ClusterName: "c", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceMachineTemplate", Name: "web"},
			}},
		},
	}
	require.NoError(w, w.Create(w.Context(), md))
	return md
}

// healthCheck has Cluster API remediate machines that are interrupted, at once.
func (w *world) healthCheck(selector map[string]string) {
	w.Helper()
	require.NoError(w, w.Create(w.Context(), &clusterv1.MachineHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "interrupted"},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: "c", Selector: metav1.LabelSelector{MatchLabels: selector},
			Checks: clusterv1.MachineHealthCheckChecks{
				UnhealthyMachineConditions: []clusterv1.UnhealthyMachineCondition{
					{Type: infrav1.ConditionInterrupted, Status: metav1.ConditionTrue, TimeoutSeconds: ptr.To[int32](0)},
					{Type: infrav1.ConditionCreateFailed, Status: metav1.ConditionTrue, TimeoutSeconds: ptr.To[int32](600)},
				},
			},
		},
	}))
}

// untilRunning waits until there are so many Machines, each with a Node and none leaving.
func (w *world) untilRunning(n int) (machines []clusterv1.Machine) {
	w.Helper()
	require.Eventually(w, func() bool {
		machines = w.machines()
		return len(machines) == n && !slices.ContainsFunc(machines, func(m clusterv1.Machine) bool {
			return m.Status.NodeRef.Name == "" || !m.DeletionTimestamp.IsZero()
		})
	}, eventually, poll, "%d machines: %s", n, lazy(func() string { return mustYAML(machines) + w.allMachines() }))
	return machines
}

func (w *world) allMachines() string { return w.listed(&infrav1.NstanceMachineList{}) }

// everything is what there is of a cluster.
func (w *world) everything() string {
	return w.listed(&clusterv1.MachinePoolList{}) + w.listed(&infrav1.NstanceMachinePoolList{}) + w.listed(&infrav1.NstanceShardGroupList{}) +
		w.listed(&clusterv1.MachineList{}) + w.allMachines()
}

func (w *world) listed(list client.ObjectList) string {
	if err := w.List(w.Context(), list, client.InNamespace(w.namespace)); err != nil {
		return err.Error()
	}
	return mustYAML(list)
}

// TestKubeMachine has a MachineDeployment make machines, one instance each, and give them
// up again.
func TestKubeMachine(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	md := w.deployment(2, nil)
	machines := w.untilRunning(2)
	require.Len(t, append(a.Cloud.Machines(), b.Cloud.Machines()...), 2)
	for _, m := range machines {
		require.Equal(t, "nstance:///"+m.Status.NodeRef.Name, m.Spec.ProviderID)
		require.Equal(t, "a", m.Status.FailureDomain)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Status.NodeRef.Name}}
		interruptible := func(n *corev1.Node) bool { return metav1.HasLabel(n.ObjectMeta, clusterv1.InterruptibleLabel) }
		until(w, node, interruptible, "interruptible")
		base := node.DeepCopy()
		delete(node.Labels, clusterv1.InterruptibleLabel)
		require.NoError(t, w.Patch(t.Context(), node, client.MergeFrom(base)))
		until(w, node, interruptible, "Cluster API puts the label back")
	}
	base := md.DeepCopy()
	md.Spec.Replicas = ptr.To[int32](1)
	require.NoError(t, w.Patch(t.Context(), md, client.MergeFrom(base)))
	left := w.untilRunning(1)
	require.Len(t, a.Cloud.Machines(), 1)
	require.Equal(t, left[0].Status.NodeRef.Name, string(a.Cloud.Machines()[0].ID))

	require.NoError(t, w.Delete(t.Context(), md))
	w.untilGone(&clusterv1.Machine{ObjectMeta: left[0].ObjectMeta})
	require.Empty(t, a.Cloud.Machines())
}

// A laggard is a client whose cache is behind: after an NstanceMachine has got its instance
// it is read once as it was before, and once as it was then.
type laggard struct {
	client.Client
	mu     sync.Mutex
	behind map[client.ObjectKey][]*infrav1.NstanceMachine // versions to be read next
	latest map[client.ObjectKey]*infrav1.NstanceMachine   // as read
}

func (l *laggard) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	m, ok := obj.(*infrav1.NstanceMachine)
	if !ok {
		return l.Client.Get(ctx, key, obj, opts...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.behind[key]; len(old) > 0 {
		l.behind[key] = old[1:]
		old[0].DeepCopyInto(m)
		return nil
	}
	err := l.Client.Get(ctx, key, obj, opts...)
	l.latest[key] = m.DeepCopy()
	return err
}

func (l *laggard) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	err := l.Client.Patch(ctx, obj, patch, opts...)
	m, ok := obj.(*infrav1.NstanceMachine)
	if !ok || err != nil || m.Spec.InstanceID == "" {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if read := l.latest[client.ObjectKeyFromObject(m)]; read.Spec.InstanceID == "" {
		read.Spec.InstanceID = "-" // once
		before := read.DeepCopy()
		before.Spec.InstanceID = ""
		l.behind[client.ObjectKeyFromObject(m)] = []*infrav1.NstanceMachine{before, m.DeepCopy()}
	}
	return nil
}

// TestKubeMachineOnce makes one instance for a machine, also when the operator reads an
// old version of it.
func TestKubeMachineOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newClient = func(cfg *rest.Config, opts client.Options) (client.Client, error) {
		c, err := client.New(cfg, opts)
		return &laggard{Client: c, behind: map[client.ObjectKey][]*infrav1.NstanceMachine{}, latest: map[client.ObjectKey]*infrav1.NstanceMachine{}}, err
	}
	a, _ := w.provision()
	w.deployment(5, nil)
	w.untilRunning(5)
	require.Len(t, a.Cloud.Machines(), 5)
}

// unhooked is a client whose cache does not have the hooks of Machines yet.
type unhooked struct{ client.Client }

func (u unhooked) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	err := u.Client.Get(ctx, key, obj, opts...)
	if machine, ok := obj.(*clusterv1.Machine); ok {
		delete(machine.Annotations, operator.PreDrainHook)
	}
	return err
}

// TestKubeMachineReleased leaves no hook on the Machine of an NstanceMachine that is gone,
// also when the operator does not know that there is one: Cluster API would wait for ever.
func TestKubeMachineReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newClient = func(cfg *rest.Config, opts client.Options) (client.Client, error) {
		c, err := client.New(cfg, opts)
		return unhooked{c}, err
	}
	a, _ := w.provision()
	w.deployment(1, nil)
	machine := &w.untilRunning(1)[0]
	pod := w.slowPod(machine.Status.NodeRef.Name)
	require.NoError(t, a.Cloud.Reclaim(nstance.InstanceID(machine.Status.NodeRef.Name), time.Minute))
	hooked := func(m *clusterv1.Machine) bool { return metav1.HasAnnotation(m.ObjectMeta, operator.PreDrainHook) }
	until(w, machine, hooked, "it is drained")
	m := &infrav1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: machine.Spec.InfrastructureRef.Name}}
	require.NoError(t, w.Delete(t.Context(), m))
	require.NoError(t, w.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	w.untilGone(m)
	require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(machine), machine))
	require.False(t, hooked(machine))
	require.NoError(t, w.Delete(t.Context(), machine))
	w.untilGone(machine)
}

// TestKubeMachineReclaim has a MachineHealthCheck replace a machine that the cloud takes
// back. Its node is drained once, by the operator.
func TestKubeMachineReclaim(t *testing.T) { machineReclaim(newWorld(t)) }

// TestKubeMachineReclaimAsShipped is the same with Cluster API's own manager as it is
// shipped: it looks at a MachineHealthCheck every 15 s.
func TestKubeMachineReclaimAsShipped(t *testing.T) {
	t.Parallel()
	c, err := kubetest.Start(kubetest.Options{})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	stop, err := manage(c)
	require.NoError(t, err)
	t.Cleanup(stop)
	machineReclaim(newWorldIn(t, c))
}

func machineReclaim(w *world) {
	t := w.TB
	a, _ := w.provision()
	w.healthCheck(map[string]string{clusterv1.MachineDeploymentNameLabel: "web"})
	w.deployment(1, nil)
	machine := &w.untilRunning(1)[0]
	pod := w.slowPod(machine.Status.NodeRef.Name)
	doomed := nstance.InstanceID(machine.Status.NodeRef.Name)

	began := time.Now()
	require.NoError(t, a.Cloud.Reclaim(doomed, time.Minute))
	until(w, machine, func(m *clusterv1.Machine) bool { return !m.DeletionTimestamp.IsZero() }, "it is remediated")
	t.Logf("remediated %s after the notice", time.Since(began).Round(time.Millisecond))
	require.True(t, meta.IsStatusConditionTrue(machine.Status.Conditions, infrav1.ConditionInterrupted))
	require.Contains(t, machine.Annotations, "pre-drain.delete.hook.machine.cluster.x-k8s.io/nstance", "Cluster API does not drain it too")
	until(w, machine, func(m *clusterv1.Machine) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineDeletingCondition)
		return c != nil && c.Reason == clusterv1.MachineDeletingWaitingForPreDrainHookReason
	}, "it waits for our drain")
	require.NoError(t, w.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	w.untilGone(machine)
	next := w.untilRunning(1)[0]
	require.NotEqual(t, machine.Name, next.Name)
	require.Len(t, a.Cloud.Machines(), 1)
}

// TestKubeMachineCreateFails shows a create that is refused as a condition on NstanceMachine
// and Machine, and creates the machine once it is not refused any more.
func TestKubeMachineCreateFails(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	a.Cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Invalid, Times: 1})
	w.deployment(1, nil)
	var machine clusterv1.Machine
	require.Eventually(t, func() bool {
		machines := w.machines()
		if len(machines) > 0 {
			machine = machines[0]
		}
		return meta.IsStatusConditionTrue(machine.Status.Conditions, infrav1.ConditionCreateFailed)
	}, eventually, poll, "the Machine says so: %s", lazy(w.allMachines))
	a.Resume("web") // else the shape is tried again after a minute
	w.untilRunning(1)
	until(w, &machine, func(m *clusterv1.Machine) bool {
		return meta.IsStatusConditionFalse(m.Status.Conditions, infrav1.ConditionCreateFailed)
	}, "and that it is over")
	require.Len(t, a.Cloud.Machines(), 1)
}

// TestKubeMachineMistakes has the condition name what is wrong, and what to do.
func TestKubeMachineMistakes(t *testing.T) {
	t.Parallel()
	w, _, _ := provisioned(t)
	w.deployment(1, func(s *infrav1.NstanceMachineSpec) { s.Group, s.Shard = "nowhere", "a" })
	require.Eventually(t, func() bool {
		machines := w.machines()
		if len(machines) == 0 {
			return false
		}
		c := meta.FindStatusCondition(machines[0].Status.Conditions, infrav1.ConditionCreateFailed)
		return c != nil && c.Status == metav1.ConditionTrue && c.Message == `spec.group: shard a has no group nowhere (add the group to the shard's configuration)`
	}, eventually, poll, "%s", lazy(w.allMachines))
}

// TestKubeMachineRequested deletes the Machine of an instance that was given up at the
// shard, without a health check.
func TestKubeMachineRequested(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	w.deployment(1, nil)
	machine := &w.untilRunning(1)[0]
	a.Delete(nstance.InstanceID(machine.Status.NodeRef.Name))
	w.untilGone(machine)
	next := w.untilRunning(1)[0]
	require.NotEqual(t, machine.Name, next.Name)
}

// TestKubeMachineVolumes has the node of a machine that is gone stay until its volumes are
// detached: Cluster API deletes nodes without waiting.
func TestKubeMachineVolumes(t *testing.T) {
	for name, start := range map[string]func(w *world){
		"of a Machine": func(w *world) {
			w.healthCheck(map[string]string{clusterv1.MachineDeploymentNameLabel: "web"})
			w.deployment(1, nil)
		},
		"of a pool": func(w *world) {
			w.pool(1, func(s *infrav1.NstanceMachinePoolSpec) { s.Shape = infrav1.Shape{Spot: &infrav1.SpotOptions{}} })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, a, _ := provisioned(t)
			start(w)
			machine := &w.untilRunning(1)[0]
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Status.NodeRef.Name}}
			volume := &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: node.Name},
				Spec:       storagev1.VolumeAttachmentSpec{Attacher: "test.nstance.dev", NodeName: node.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &node.Name}},
			}
			require.NoError(t, w.Create(t.Context(), volume))
			require.NoError(t, a.Cloud.Reclaim(nstance.InstanceID(node.Name), 0))
			until(w, machine, func(m *clusterv1.Machine) bool {
				require.NoError(t, w.nodes.Get(t.Context(), client.ObjectKeyFromObject(node), node), "deleted with volumes attached")
				c := meta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineDeletingCondition)
				return c != nil && c.Reason == clusterv1.MachineDeletingWaitingForInfrastructureDeletionReason && time.Since(c.LastTransitionTime.Time) > 3*time.Second
			}, "its removal waits")
			require.NoError(t, w.Delete(t.Context(), volume))
			w.untilGone(machine)
			w.untilGone(node)
		})
	}
}
