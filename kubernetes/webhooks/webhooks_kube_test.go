//go:build kube

package webhooks_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/kubernetes/webhooks"
)

var (
	servers *kubetest.Cluster
	api     client.Client
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	code := kubetest.Main(m, kubetest.Options{}, func(c *kubetest.Cluster) {
		servers = c
		mgr, err := prepare(c)
		if err != nil {
			panic(err)
		}
		running.Go(func() {
			if err := mgr.Start(ctx); err != nil {
				panic(err)
			}
		})
	})
	cancel()
	running.Wait()
	os.Exit(code)
}

// prepare installs resources and webhooks, and makes the manager that answers.
// One object is older than the webhooks.
func prepare(c *kubetest.Cluster) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := infrav1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := c.InstallCRDs("../config/crd"); err != nil {
		return nil, err
	}
	var err error
	if api, err = client.New(c.Config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	if err = api.Create(context.Background(), olderThanWebhooks()); err != nil {
		return nil, err
	}
	hooks, err := c.PrepareWebhooks("../config/webhook/manifests.yaml")
	if err != nil {
		return nil, err
	}
	if err := hooks.Install(c.Config); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(c.Config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: hooks.LocalServingHost, Port: hooks.LocalServingPort, CertDir: hooks.LocalServingCertDir,
		}),
	})
	if err != nil {
		return nil, err
	}
	return mgr, webhooks.Add(mgr)
}

// world returns a namespace, once the webhooks answer in it.
func world(t *testing.T) string {
	t.Helper()
	namespace := servers.Namespace(t)
	probe := machine(func(m *infrav1.NstanceMachine) { m.Name = "probe" })
	probe.Namespace = namespace
	require.Eventually(t, func() bool { return api.Create(t.Context(), probe, client.DryRunAll) == nil }, time.Minute, 20*time.Millisecond)
	return namespace
}

func olderThanWebhooks() *infrav1.NstanceMachinePool {
	p := pool(func(p *infrav1.NstanceMachinePool) { p.Spec.Spot = &infrav1.SpotOptions{} })
	p.Namespace, p.Name = "default", "older"
	return p
}

func machine(with func(*infrav1.NstanceMachine)) *infrav1.NstanceMachine {
	m := &infrav1.NstanceMachine{Spec: infrav1.NstanceMachineSpec{Group: "web", Shape: infrav1.Shape{InstanceType: "m7g.large"}}}
	with(m)
	return m
}

func machineTemplate(with func(*infrav1.NstanceMachineTemplate)) *infrav1.NstanceMachineTemplate {
	t := &infrav1.NstanceMachineTemplate{}
	t.Spec.Template.Spec = infrav1.NstanceMachineSpec{Group: "web", Shape: infrav1.Shape{InstanceType: "m7g.large"}}
	with(t)
	return t
}

func pool(with func(*infrav1.NstanceMachinePool)) *infrav1.NstanceMachinePool {
	p := &infrav1.NstanceMachinePool{Spec: infrav1.NstanceMachinePoolSpec{Shards: []string{"a", "b"}, Shape: infrav1.Shape{InstanceType: "m7g.large"}}}
	with(p)
	return p
}

func poolTemplate(with func(*infrav1.NstanceMachinePoolTemplate)) *infrav1.NstanceMachinePoolTemplate {
	t := &infrav1.NstanceMachinePoolTemplate{}
	t.Spec.Template.Spec = pool(func(*infrav1.NstanceMachinePool) {}).Spec
	with(t)
	return t
}

func clusterTemplate(with func(*infrav1.NstanceClusterTemplate)) *infrav1.NstanceClusterTemplate {
	t := &infrav1.NstanceClusterTemplate{}
	t.Spec.Template.Spec = infrav1.NstanceClusterSpec{
		Shards:       []infrav1.Shard{{Name: "a", Address: "a.example.com:8993"}},
		Registration: infrav1.RegistrationReference{SecretName: "nstance"},
	}
	with(t)
	return t
}

func shardGroup(with func(*infrav1.NstanceShardGroup)) *infrav1.NstanceShardGroup {
	size := int32(1)
	g := &infrav1.NstanceShardGroup{Spec: infrav1.NstanceShardGroupSpec{Group: "web", Shard: "a", Size: &size}}
	with(g)
	return g
}

// requireRefused: the API server names the field, and what to do.
func requireRefused(t *testing.T, err error, field, remedy string) {
	t.Helper()
	require.Error(t, err)
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	status, ok := errors.AsType[*apierrors.StatusError](err)
	require.True(t, ok)
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == field {
			require.Contains(t, cause.Message, remedy)
			return
		}
	}
	require.Fail(t, "no cause names the field", "%s: %v", field, err)
}

var (
	controlPlane = map[string]string{clusterv1.MachineControlPlaneLabel: ""}
	spot         = &infrav1.SpotOptions{MaxPrice: "0.05"}
)

// TestKubeCreate: of each rule, an object that keeps it, and one that does not.
func TestKubeCreate(t *testing.T) {
	namespace := world(t)
	nothing := func(p *infrav1.NstanceMachinePool) {}
	fromTemplate := func(p *infrav1.NstanceMachinePool) {
		p.Spec.Template, p.Spec.SubnetPool, p.Spec.LoadBalancers = "worker", "private", []string{"web"}
		p.Spec.DrainTimeout, p.Spec.Spot = &metav1.Duration{Duration: time.Minute}, spot
	}
	for _, tt := range []struct {
		rule          string
		good, bad     client.Object
		field, remedy string
	}{
		{
			"machines of a control plane are on demand, by label",
			machine(func(m *infrav1.NstanceMachine) { m.Labels = controlPlane }),
			machine(func(m *infrav1.NstanceMachine) { m.Labels, m.Spec.Spot = controlPlane, spot }),
			"spec.spot", "remove it",
		}, {
			"machines of a control plane are on demand, by owner",
			machine(func(m *infrav1.NstanceMachine) { m.Spec.Spot = spot }),
			machine(func(m *infrav1.NstanceMachine) {
				m.Spec.Spot = spot
				m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "controlplane.cluster.x-k8s.io/v1beta2", Kind: "KubeadmControlPlane", Name: "cp", UID: "1"}}
			}),
			"spec.spot", "remove it",
		}, {
			"templates for a control plane are on demand",
			machineTemplate(func(t *infrav1.NstanceMachineTemplate) { t.Spec.Template.Spec.Spot = spot }),
			machineTemplate(func(t *infrav1.NstanceMachineTemplate) {
				t.Spec.Template.ObjectMeta.Labels, t.Spec.Template.Spec.Spot = controlPlane, spot
			}),
			"spec.template.spec.spot", "remove it",
		}, {
			"templates name no instance",
			machineTemplate(func(t *infrav1.NstanceMachineTemplate) { t.Spec.Template.Spec.Shard = "a" }),
			machineTemplate(func(t *infrav1.NstanceMachineTemplate) {
				t.Spec.Template.Spec.InstanceID = "web06dx9xy919t3v9kzd2xdsyzb3g"
			}),
			"spec.template.spec.instanceID", "remove it",
		}, {
			"templates name no machine",
			machineTemplate(func(t *infrav1.NstanceMachineTemplate) { t.Spec.Template.Spec.Vars = map[string]string{"a": "b"} }),
			machineTemplate(func(t *infrav1.NstanceMachineTemplate) { t.Spec.Template.Spec.ProviderID = "aws:///a/i-1" }),
			"spec.template.spec.providerID", "remove it",
		}, {
			"subnet pool of a configured group", pool(fromTemplate),
			pool(func(p *infrav1.NstanceMachinePool) { p.Spec.SubnetPool = "private" }), "spec.subnetPool", "name a template",
		}, {
			"load balancers of a configured group", pool(fromTemplate),
			pool(func(p *infrav1.NstanceMachinePool) { p.Spec.LoadBalancers = []string{"web"} }), "spec.loadBalancers", "name a template",
		}, {
			"drain timeout of a configured group", pool(fromTemplate),
			pool(func(p *infrav1.NstanceMachinePool) { p.Spec.DrainTimeout = &metav1.Duration{Duration: time.Minute} }), "spec.drainTimeout", "name a template",
		}, {
			"end of drains of a configured group", pool(fromTemplate),
			pool(func(p *infrav1.NstanceMachinePool) { p.Spec.OnDrainTimeout = infrav1.DrainTimeoutWait }), "spec.onDrainTimeout", "name a template",
		}, {
			"market of a configured group", pool(func(p *infrav1.NstanceMachinePool) { p.Spec.Vars = map[string]string{"a": "b"} }),
			pool(func(p *infrav1.NstanceMachinePool) { p.Spec.Spot = spot }), "spec.spot", "change it there",
		}, {
			"a drain takes no negative time", pool(fromTemplate),
			pool(func(p *infrav1.NstanceMachinePool) {
				p.Spec.Template, p.Spec.DrainTimeout = "worker", &metav1.Duration{Duration: -time.Second}
			}), "spec.drainTimeout", "use 0s",
		}, {
			"variables have names", pool(nothing),
			pool(func(p *infrav1.NstanceMachinePool) { p.Spec.Vars = map[string]string{"": "b"} }), "spec.vars", "name it",
		}, {
			"the pool's name is the group's",
			pool(func(p *infrav1.NstanceMachinePool) {
				p.Name, p.Spec.Group = "pool.with.a.name.that.no.group.may.have", "web"
			}),
			pool(func(p *infrav1.NstanceMachinePool) { p.Name = "pool.with.dots" }), "metadata.name", "spec.group",
		}, {
			"a group and its shard are told apart",
			pool(func(p *infrav1.NstanceMachinePool) { p.Spec.Group = "a-b" }),
			pool(func(p *infrav1.NstanceMachinePool) { p.Spec.Group = "a--b" }), "spec.group", "single hyphens",
		}, {
			"shards have names", pool(nothing),
			pool(func(p *infrav1.NstanceMachinePool) { p.Spec.Shards = []string{"a", "Zone_B"} }), "spec.shards[1]", "use at most 32",
		}, {
			"templates of pools keep the same rules",
			poolTemplate(func(t *infrav1.NstanceMachinePoolTemplate) {
				t.Spec.Template.Spec.Template, t.Spec.Template.Spec.Spot = "worker", spot
			}),
			poolTemplate(func(t *infrav1.NstanceMachinePoolTemplate) { t.Spec.Template.Spec.Spot = spot }),
			"spec.template.spec.spot", "name a template",
		}, {
			"templates of pools name no machines",
			poolTemplate(func(t *infrav1.NstanceMachinePoolTemplate) { t.Spec.Template.Spec.Group = "web" }),
			poolTemplate(func(t *infrav1.NstanceMachinePoolTemplate) {
				t.Spec.Template.Spec.ProviderIDList = []string{"aws:///a/i-1"}
			}),
			"spec.template.spec.providerIDList", "remove it",
		}, {
			"groups of one shard keep the same rules",
			shardGroup(func(g *infrav1.NstanceShardGroup) { g.Spec.Template, g.Spec.Spot = "worker", spot }),
			shardGroup(func(g *infrav1.NstanceShardGroup) { g.Spec.Spot = spot }),
			"spec.spot", "name a template",
		}, {
			"groups of one shard name a shard",
			shardGroup(func(*infrav1.NstanceShardGroup) {}),
			shardGroup(func(g *infrav1.NstanceShardGroup) { g.Spec.Shard = "a--b" }),
			"spec.shard", "single hyphens",
		},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			for _, obj := range []client.Object{tt.good, tt.bad} {
				obj.SetNamespace(namespace)
				if obj.GetName() == "" {
					obj.SetGenerateName("o-")
				}
			}
			require.NoError(t, api.Create(t.Context(), tt.good.DeepCopyObject().(client.Object)))
			requireRefused(t, api.Create(t.Context(), tt.bad), tt.field, tt.remedy)
		})
	}
}

// change returns a change of an object of one kind.
func change[T client.Object](do func(T)) func(client.Object) {
	return func(obj client.Object) { do(obj.(T)) }
}

// TestKubeUpdate: of each rule, a change that keeps it, and one that does not.
func TestKubeUpdate(t *testing.T) {
	namespace := world(t)
	label := func(obj client.Object) { obj.SetLabels(map[string]string{"team": "a"}) }
	const owner = "delete its Machine"
	type M = infrav1.NstanceMachine
	made := func(m *M) {
		m.Spec.Shard, m.Spec.InstanceID, m.Spec.ProviderID = "a", "web06dx9xy919t3v9kzd2xdsyzb3g", "aws:///a/i-1"
	}
	bare := machine(func(*M) {})
	for _, tt := range []struct {
		rule          string
		from          client.Object
		good, bad     func(client.Object)
		field, remedy string
	}{
		{"the group of a machine", bare, label, change(func(m *M) { m.Spec.Group = "db" }), "spec.group", owner},
		{"the type of a machine", bare, label, change(func(m *M) { m.Spec.InstanceType = "m7g.xlarge" }), "spec.instanceType", owner},
		{"the market of a machine", bare, label, change(func(m *M) { m.Spec.Spot = spot }), "spec.spot", owner},
		{"the shard, once it is known", bare, change(made), change(func(m *M) { m.Spec.Shard = "b" }), "spec.shard", owner},
		{"the shard of an instance that is chosen", machine(func(m *M) { m.Spec.Shard = "b" }), change(made), change(func(m *M) { m.Spec.Shard = "b" }), "spec.shard", owner},
		{
			"an instance without machine is not exchanged", machine(func(m *M) { m.Spec.Shard, m.Spec.InstanceID = "a", "web06dx9xy919t3v9kzd2xdsyzb3g" }), label,
			change(func(m *M) { m.Spec.InstanceID = "web06dx9xy919t3v9kzd2xdsyzb3h" }), "spec.instanceID", owner,
		},
		{"an instance with a machine is not given up", bare, change(made), change(func(m *M) { m.Spec.InstanceID = "" }), "spec.instanceID", owner},
		{"the instance, once it is chosen", bare, change(made), change(func(m *M) { m.Spec.InstanceID = "web06dx9xy919t3v9kzd2xdsyzb3h" }), "spec.instanceID", owner},
		{"the provider's ID, once it is known", bare, change(made), change(func(m *M) { m.Spec.ProviderID = "" }), "spec.providerID", owner},
		{
			"a spot machine does not join a control plane", machine(func(m *M) { m.Spec.Spot = spot }), label,
			func(obj client.Object) { obj.SetLabels(controlPlane) }, "spec.spot", "remove it",
		},
		{
			"the group of a pool", pool(func(p *infrav1.NstanceMachinePool) { p.Spec.Group = "web" }), change(func(p *infrav1.NstanceMachinePool) { p.Spec.InstanceType = "m7g.xlarge" }),
			change(func(p *infrav1.NstanceMachinePool) { p.Spec.Group = "db" }), "spec.group", "make another",
		},
		{
			"the market of a configured group", pool(func(*infrav1.NstanceMachinePool) {}), change(func(p *infrav1.NstanceMachinePool) { p.Spec.Vars = map[string]string{"a": "b"} }),
			change(func(p *infrav1.NstanceMachinePool) { p.Spec.Spot = spot }), "spec.spot", "name a template",
		},
		{
			"a template of machines", machineTemplate(func(*infrav1.NstanceMachineTemplate) {}), label,
			change(func(t *infrav1.NstanceMachineTemplate) { t.Spec.Template.Spec.InstanceType = "m7g.xlarge" }), "spec.template.spec", "make another",
		},
		{
			"a template of pools", poolTemplate(func(*infrav1.NstanceMachinePoolTemplate) {}), label,
			change(func(t *infrav1.NstanceMachinePoolTemplate) { t.Spec.Template.Spec.InstanceType = "m7g.xlarge" }), "spec.template.spec", "make another",
		},
		{
			"a template of clusters", clusterTemplate(func(*infrav1.NstanceClusterTemplate) {}), label,
			change(func(t *infrav1.NstanceClusterTemplate) { t.Spec.Template.Spec.Tenant = "other" }), "spec.template.spec", "make another",
		},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			obj := tt.from.DeepCopyObject().(client.Object)
			obj.SetNamespace(namespace)
			obj.SetGenerateName("o-")
			require.NoError(t, api.Create(t.Context(), obj))
			tt.good(obj)
			require.NoError(t, api.Update(t.Context(), obj))
			tt.bad(obj)
			requireRefused(t, api.Update(t.Context(), obj), tt.field, tt.remedy)
		})
	}
}

// TestKubeGivenUp: the operator chooses another instance, in any shard, for one that never
// had a machine.
func TestKubeGivenUp(t *testing.T) {
	namespace := world(t)
	m := machine(func(m *infrav1.NstanceMachine) {
		m.Namespace, m.Name, m.Spec.Shard, m.Spec.InstanceID = namespace, "m", "a", "web06dx9xy919t3v9kzd2xdsyzb3g"
	})
	require.NoError(t, api.Create(t.Context(), m))
	m.Spec.InstanceID = ""
	require.NoError(t, api.Update(t.Context(), m))
	m.Spec.Shard, m.Spec.InstanceID = "b", "web06dx9xy919t3v9kzd2xdsyzb3h"
	require.NoError(t, api.Update(t.Context(), m))
}

// TestKubeRefusedLate: a cloud accepts a machine and then does not start it. Another one is
// made for the instance, and if there is none in time the operator chooses another instance.
// One that was ready is kept.
func TestKubeRefusedLate(t *testing.T) {
	namespace := world(t)
	m := machine(func(m *infrav1.NstanceMachine) {
		m.Namespace, m.Name, m.Spec.Shard, m.Spec.InstanceID, m.Spec.ProviderID = namespace, "m", "a", "web06dx9xy919t3v9kzd2xdsyzb3g", "aws:///a/i-1"
	})
	require.NoError(t, api.Create(t.Context(), m))
	in := func(state nstance.State) {
		t.Helper()
		m.Status.State = string(state)
		require.NoError(t, api.Status().Update(t.Context(), m))
	}
	in(nstance.Booting)
	m.Spec.ProviderID = "aws:///a/i-2"
	require.NoError(t, api.Update(t.Context(), m))
	in(nstance.Ready)
	m.Spec.ProviderID = "aws:///a/i-3"
	requireRefused(t, api.Update(t.Context(), m), "spec.providerID", "delete its Machine")
	m.Spec.ProviderID = "aws:///a/i-2"
	in(nstance.Failed)
	m.Spec.InstanceID, m.Spec.ProviderID = "", ""
	require.NoError(t, api.Update(t.Context(), m))
}

// TestKubeTopologyDryRun: Cluster API asks by a dry run whether a template must be
// replaced, and is not told that templates cannot be changed.
func TestKubeTopologyDryRun(t *testing.T) {
	namespace := world(t)
	template := machineTemplate(func(t *infrav1.NstanceMachineTemplate) { t.Namespace, t.Name = namespace, "worker" })
	require.NoError(t, api.Create(t.Context(), template))
	template.Spec.Template.Spec.InstanceType = "m7g.xlarge"
	requireRefused(t, api.Update(t.Context(), template.DeepCopy(), client.DryRunAll), "spec.template.spec", "make another")
	template.Annotations = map[string]string{clusterv1.TopologyDryRunAnnotation: ""}
	require.NoError(t, api.Update(t.Context(), template.DeepCopy(), client.DryRunAll))
	requireRefused(t, api.Update(t.Context(), template.DeepCopy()), "spec.template.spec", "make another")
}

// TestKubeOlderObjects: what was stored before a rule can be labelled and repaired, but
// not made worse, and it can go.
func TestKubeOlderObjects(t *testing.T) {
	world(t)
	older := olderThanWebhooks()
	require.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(older), older))
	older.Labels, older.Finalizers = map[string]string{"team": "a"}, []string{infrav1.Finalizer}
	require.NoError(t, api.Update(t.Context(), older))
	worse := older.DeepCopy()
	worse.Spec.SubnetPool = "private"
	requireRefused(t, api.Update(t.Context(), worse), "spec.subnetPool", "name a template")
	require.NoError(t, api.Delete(t.Context(), older))
	require.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(older), older))
	older.Finalizers = nil
	require.NoError(t, api.Update(t.Context(), older))
}

// TestKubeShardRemoval: a shard leaves an NstanceCluster only when nothing of the cluster needs
// it, or when it is given up.
func TestKubeShardRemoval(t *testing.T) {
	namespace := world(t)
	of := map[string]string{clusterv1.ClusterNameLabel: "c"}
	nc := &infrav1.NstanceCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c", Labels: of},
		Spec: infrav1.NstanceClusterSpec{
			Shards:       []infrav1.Shard{{Name: "a", Address: "a.example.com:8993"}, {Name: "b", Address: "b.example.com:8993"}, {Name: "c", Address: "c.example.com:8993"}},
			Registration: infrav1.RegistrationReference{SecretName: "nstance"},
		},
	}
	require.NoError(t, api.Create(t.Context(), nc))
	g := shardGroup(func(g *infrav1.NstanceShardGroup) { g.Spec.Shard = "b" })
	g.Namespace, g.Name, g.Labels = namespace, "web--b", of
	require.NoError(t, api.Create(t.Context(), g))
	others := shardGroup(func(g *infrav1.NstanceShardGroup) { g.Spec.Shard = "c" })
	others.Namespace, others.Name, others.Labels = namespace, "web--c", map[string]string{clusterv1.ClusterNameLabel: "d"}
	require.NoError(t, api.Create(t.Context(), others))
	keep := func(annotation string, names ...string) error {
		require.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(nc), nc))
		base := nc.DeepCopy()
		nc.Annotations = map[string]string{infrav1.AnnotationAbandonedShards: annotation}
		nc.Spec.Shards = slices.DeleteFunc(nc.Spec.Shards, func(s infrav1.Shard) bool { return !slices.Contains(names, s.Name) })
		return api.Patch(t.Context(), nc, client.MergeFrom(base))
	}
	require.NoError(t, keep("", "a", "b"), "nothing of this cluster is in c")
	requireRefused(t, keep("", "a"), "spec.shards", "shard b has 1 NstanceShardGroups and 0 NstanceMachines")
	requireRefused(t, keep("c", "a"), "spec.shards", infrav1.AnnotationAbandonedShards)
	require.NoError(t, keep("c, b", "a"))
}
