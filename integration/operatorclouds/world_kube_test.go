//go:build kube

package operatorclouds_test

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/kubernetes/operator"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// eventually is the deadline of conditions that normally hold within seconds.
const eventually = 3 * time.Minute

// A world is a namespace with an operator of its own, and a shard at a test cloud.
type world struct {
	*testing.T
	*site
	client.Client
	namespace  string
	hypervisor *hypervisor
}

// newWorld returns a world whose cluster is provisioned, with the machines of a cloud.
func newWorld(t *testing.T, protocol string, open func(*testing.T, *hypervisor) *site) *world {
	t.Helper()
	w := &world{T: t, namespace: servers.Namespace(t), hypervisor: &hypervisor{T: t, provider: protocol}}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	var err error
	w.Client, err = client.New(servers.Config, client.Options{Scheme: scheme})
	require.NoError(t, err)
	w.site = open(t, w.hypervisor)
	shards := shardtest.New(t)
	shard := shards.StartIn("a", w.place)
	w.hypervisor.shard.Store(shard)
	w.background(w.kubelets)
	w.secret("nstance", map[string][]byte{"nonce": []byte(shards.OperatorNonce()), "ca.crt": shards.Keys().Identity.CertPEM()})
	kubeconfig, err := os.ReadFile(servers.Kubeconfig)
	require.NoError(t, err)
	w.secret("c-kubeconfig", map[string][]byte{"value": kubeconfig})

	mgr, err := ctrl.NewManager(servers.Config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}}},
	})
	require.NoError(t, err)
	require.NoError(t, operator.Add(mgr, nil))
	w.background(func(ctx context.Context) { assert.NoError(t, mgr.Start(ctx)) })
	w.cluster(shard)
	return w
}

// background runs f until the test ends.
func (w *world) background(f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	w.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// kubelets makes a ready Node for each machine that runs, with the ID that the cloud's
// controller manager gives it.
func (w *world) kubelets(ctx context.Context) {
	known := map[string]bool{}
	for sleep.For(ctx, 50*time.Millisecond) {
		for _, m := range w.Machines() {
			if known[m.Handle] || m.Status != nstance.StatusRunning {
				continue
			}
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(m.ID)}, Spec: corev1.NodeSpec{ProviderID: w.providerID(m)}}
			if err := w.Create(ctx, n); err != nil && !apierrors.IsAlreadyExists(err) {
				continue
			}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			known[m.Handle] = w.Status().Update(ctx, n) == nil
		}
	}
}

func (w *world) secret(name string, data map[string][]byte) {
	w.Helper()
	require.NoError(w, w.Create(w.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}}, Data: data,
	}))
}

func (w *world) named(name string, labels map[string]string) metav1.ObjectMeta {
	all := map[string]string{clusterv1.ClusterNameLabel: "c"}
	for key, value := range labels {
		all[key] = value
	}
	return metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: all}
}

// cluster makes a Cluster over the shard, whose machines are replaced once they are interrupted.
func (w *world) cluster(s *shardtest.Shard) {
	w.Helper()
	nc := &infrav1.NstanceCluster{
		ObjectMeta: w.named("c", nil),
		Spec: infrav1.NstanceClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443},
			Registration:         infrav1.RegistrationReference{SecretName: "nstance"},
			Shards:               []infrav1.Shard{{Name: string(s.Name()), Address: s.Operator(), RegistrationAddress: s.Registration()}},
		},
	}
	for _, obj := range []client.Object{nc, kubetest.NewControlPlane(w.namespace, "c"), &clusterv1.Cluster{
		ObjectMeta: w.named("c", nil),
		Spec: clusterv1.ClusterSpec{
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceCluster", Name: "c"},
			ControlPlaneRef:   clusterv1.ContractVersionedObjectReference{APIGroup: kubetest.ControlPlane.Group, Kind: kubetest.ControlPlane.Kind, Name: "c"},
		},
	}, &clusterv1.MachineHealthCheck{
		ObjectMeta: w.named("interrupted", nil),
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: "c", Selector: metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.ClusterNameLabel: "c"}},
			Checks: clusterv1.MachineHealthCheckChecks{
				NodeStartupTimeoutSeconds: ptr.To[int32](600),
				UnhealthyMachineConditions: []clusterv1.UnhealthyMachineCondition{
					{Type: infrav1.ConditionInterrupted, Status: metav1.ConditionTrue, TimeoutSeconds: ptr.To[int32](0)},
				},
			},
		},
	}} {
		require.NoError(w, w.Create(w.Context(), obj))
	}
	w.until("shards and nodes are reached", func() bool {
		return w.Get(w.Context(), client.ObjectKeyFromObject(nc), nc) == nil &&
			meta.IsStatusConditionTrue(nc.Status.Conditions, infrav1.ConditionShardsConnected) && meta.IsStatusConditionTrue(nc.Status.Conditions, infrav1.ConditionNodesReached)
	})
}

// deployment makes a MachineDeployment of one spot machine of a group, of the group's name.
func (w *world) deployment(group string) {
	w.Helper()
	of := map[string]string{clusterv1.MachineDeploymentNameLabel: group}
	template := &infrav1.NstanceMachineTemplate{ObjectMeta: w.named(group, nil)}
	template.Spec.Template.Spec = infrav1.NstanceMachineSpec{Group: group, Shape: infrav1.Shape{Spot: &infrav1.SpotOptions{MaxPrice: w.maxPrice}}}
	require.NoError(w, w.Create(w.Context(), template))
	labels := w.named(group, of).Labels
	require.NoError(w, w.Create(w.Context(), &clusterv1.MachineDeployment{
		ObjectMeta: w.named(group, nil),
		Spec: clusterv1.MachineDeploymentSpec{
			ClusterName: "c", Replicas: ptr.To[int32](1), Selector: metav1.LabelSelector{MatchLabels: labels},
			Rollout: clusterv1.MachineDeploymentRolloutSpec{Strategy: clusterv1.MachineDeploymentRolloutStrategy{
				Type: clusterv1.RollingUpdateMachineDeploymentStrategyType,
				RollingUpdate: clusterv1.MachineDeploymentRolloutStrategyRollingUpdate{
					MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
				},
			}},
			Template: clusterv1.MachineTemplateSpec{ObjectMeta: clusterv1.ObjectMeta{Labels: labels}, Spec: clusterv1.MachineSpec{
				ClusterName: "c", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceMachineTemplate", Name: group},
			}},
		},
	}))
}

// until waits for a condition.
func (w *world) until(what string, holds func() bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), eventually)
	defer cancel()
	for !holds() {
		if !sleep.For(ctx, 50*time.Millisecond) {
			require.FailNow(w, what, "%s%s%+v", w.listed(&clusterv1.MachineList{}), w.listed(&infrav1.NstanceMachineList{}), w.Machines())
		}
	}
}

func (w *world) listed(list client.ObjectList) string {
	if err := w.List(w.Context(), list, client.InNamespace(w.namespace)); err != nil {
		return err.Error()
	}
	text, err := yaml.Marshal(list)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// machine returns the Machine of a deployment that is not being deleted; nil: there is none.
func (w *world) machine(deployment string) *clusterv1.Machine {
	w.Helper()
	var list clusterv1.MachineList
	require.NoError(w, w.List(w.Context(), &list, client.InNamespace(w.namespace), client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: deployment}))
	list.Items = slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool { return !m.DeletionTimestamp.IsZero() })
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

// untilRunning waits until a deployment's machine has a Node, and returns what the cloud has.
func (w *world) untilRunning(deployment string) (machine *clusterv1.Machine, m testcloud.Machine) {
	w.Helper()
	w.until("a machine with a node", func() bool {
		machine = w.machine(deployment)
		return machine != nil && machine.Status.NodeRef.Name != ""
	})
	all := w.Machines()
	at := slices.IndexFunc(all, func(m testcloud.Machine) bool { return string(m.ID) == machine.Status.NodeRef.Name })
	require.GreaterOrEqual(w, at, 0, "%+v", all)
	return machine, all[at]
}

// untilRemediated waits until a Machine that was interrupted is deleted for it, and returns
// the condition that it had then.
func (w *world) untilRemediated(machine *clusterv1.Machine, interrupt func()) *metav1.Condition {
	w.Helper()
	const held = "test.nstance.dev/held"
	base := machine.DeepCopy()
	controllerutil.AddFinalizer(machine, held)
	require.NoError(w, w.Patch(w.Context(), machine, client.MergeFrom(base)))
	interrupt()
	w.until("it is remediated, and Cluster API has done all it does", func() bool {
		return w.Get(w.Context(), client.ObjectKeyFromObject(machine), machine) == nil &&
			!machine.DeletionTimestamp.IsZero() && slices.Equal(machine.Finalizers, []string{held})
	})
	base = machine.DeepCopy()
	controllerutil.RemoveFinalizer(machine, held)
	require.NoError(w, w.Patch(w.Context(), machine, client.MergeFrom(base)))
	found := meta.FindStatusCondition(machine.Status.Conditions, infrav1.ConditionInterrupted)
	require.NotNil(w, found)
	w.Logf("%s: %s", found.Reason, found.Message)
	return found
}
