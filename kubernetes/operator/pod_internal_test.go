package operator

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/memkube"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// TestRequestOfPod: an annotation names a group whose name is too long for a label. What is wrong is
// refused with the annotation's name.
func TestRequestOfPod(t *testing.T) {
	for name, c := range map[string]struct {
		label       string
		annotations map[string]string
		want        podRequest
		wrong       string // annotation
	}{
		"a label":           {"web", nil, podRequest{group: "web", claim: "web"}, ""},
		"an annotation too": {"web", map[string]string{PodGroup: "gpu", PodInstanceType: "large", PodClaim: "mine"}, podRequest{"gpu", "large", "mine"}, ""},
		"no name":           {"", map[string]string{PodGroup: "No Group"}, podRequest{}, PodGroup},
		"a long type":       {"web", map[string]string{PodInstanceType: strings.Repeat("x", 129)}, podRequest{}, PodInstanceType},
		"no label's value":  {"web", map[string]string{PodClaim: "no value"}, podRequest{}, PodClaim},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{PodGroup: c.label}, Annotations: c.annotations}}
			got, err := requestOf(pod)
			if c.wrong != "" {
				require.ErrorIs(t, err, nstance.Invalid)
				require.ErrorContains(t, err, c.wrong)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// TestPermitsPods: a cluster makes the machines for pods that it lists, and no others.
func TestPermitsPods(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*infrav1.NstanceCluster)
		namespace string
		request   podRequest
		denied    string // field
	}{
		"permitted":             {nil, "jobs", podRequest{group: "web", instanceType: "large"}, ""},
		"the type of the group": {nil, "jobs", podRequest{group: "web"}, ""},
		"none":                  {func(nc *infrav1.NstanceCluster) { nc.Spec.MachinesForPods = nil }, "jobs", podRequest{group: "web"}, "spec.machinesForPods"},
		"another namespace":     {nil, "others", podRequest{group: "web"}, "spec.machinesForPods.namespaces"},
		"another group":         {nil, "jobs", podRequest{group: "gpu"}, "spec.machinesForPods.groups"},
		"another type":          {nil, "jobs", podRequest{group: "web", instanceType: "huge"}, "spec.machinesForPods.instanceTypes"},
	} {
		t.Run(name, func(t *testing.T) {
			nc := &infrav1.NstanceCluster{}
			nc.Spec.MachinesForPods = &infrav1.MachinesForPods{Namespaces: []string{"jobs"}, Groups: []string{"web"}, InstanceTypes: []string{"large"}, Max: 1}
			if c.change != nil {
				c.change(nc)
			}
			err := permit(nc, c.namespace, c.request)
			if c.denied == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, nstance.Denied)
			denied, _ := errors.AsType[*nstance.Error](err)
			require.Equal(t, c.denied, denied.Field)
		})
	}
}

// A podManagement is a management cluster with an NstanceCluster that makes one machine for pods.
type podManagement struct {
	client.Client
	others int // machines for pods
	exists bool
	made   []client.Object
	gone   []string
}

func (p *podManagement) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if nc, ok := obj.(*infrav1.NstanceCluster); ok {
		nc.Labels = map[string]string{clusterv1.WatchLabel: "blue"}
		nc.Spec.MachinesForPods = &infrav1.MachinesForPods{Namespaces: []string{"jobs"}, Groups: []string{"web"}, Max: 1}
	}
	return nil
}

func (p *podManagement) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if l, ok := list.(*infrav1.NstanceMachineList); ok {
		l.Items = make([]infrav1.NstanceMachine, p.others)
	}
	return nil
}

func (p *podManagement) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	if p.made = append(p.made, obj); p.exists && len(p.made) == 1 {
		return apierrors.NewAlreadyExists(schema.GroupResource{}, obj.GetName())
	}
	return nil
}

func (p *podManagement) Delete(_ context.Context, obj client.Object, _ ...client.DeleteOption) error {
	p.gone = append(p.gone, obj.GetName())
	return nil
}

// A podPass is one pass over the Machine m of a pod that lives.
type podPass struct {
	*podState
	podManagement
	uncached podManagement
	kube     *memkube.Server // with the pod
}

func newPodPass(t *testing.T) *podPass {
	p := &podPass{kube: memkube.New(), podState: &podState{key: client.ObjectKey{Namespace: "ns", Name: "m"}, cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}}}
	kube, err := kubernetes.NewForConfig(p.kube.Config())
	require.NoError(t, err)
	p.nodes = &nodeDrainer{client: kube}
	p.pod = &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "jobs", Name: "job", UID: "1", Labels: map[string]string{PodGroup: "web"}}}
	return p
}

func (p *podPass) controller() *podController {
	return &podController{Client: &p.podManagement, uncached: &p.uncached, fleets: newFleets(nil, slog.New(slog.DiscardHandler))}
}

// events are the reasons of those on pods.
func (p *podPass) events() (out []string) {
	for _, e := range p.kube.Objects("/api/v1/namespaces/jobs/events") {
		out = append(out, e["reason"].(string)) //nolint:forcetypeassert // the test fails
	}
	return out
}

func (p *podPass) withMachine() *clusterv1.Machine {
	p.machine = &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	return p.machine
}

func (p *podPass) withInfra() *infrav1.NstanceMachine {
	p.infra = &infrav1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	return p.infra
}

// TestKeepsMachineOfPod: a pod has one Machine. One that a MachineHealthCheck finds unhealthy, or whose
// NstanceMachine is gone, ends first, and comes again.
func TestKeepsMachineOfPod(t *testing.T) {
	unhealthy := func(m *clusterv1.Machine) {
		for _, name := range []string{clusterv1.MachineHealthCheckSucceededCondition, clusterv1.MachineOwnerRemediatedCondition} {
			conditions.Set(m, metav1.Condition{Type: name, Status: metav1.ConditionFalse, Reason: "X"})
		}
	}
	for name, c := range map[string]struct {
		change func(*podPass)
		gone   []string
		asks   bool // for a group
		events []string
	}{
		"none yet":                              {func(*podPass) {}, nil, true, nil},
		"one half of it":                        {func(p *podPass) { p.withInfra() }, nil, true, nil},
		"the other half":                        {func(p *podPass) { p.withMachine() }, nil, true, nil},
		"complete":                              {func(p *podPass) { p.withMachine(); p.withInfra() }, nil, false, nil},
		"the rest of its Machine leaves":        {func(p *podPass) { deleting(p.withMachine()) }, nil, false, nil},
		"the rest of its NstanceMachine leaves": {func(p *podPass) { deleting(p.withInfra()) }, nil, false, nil},
		"its Machine leaves":                    {func(p *podPass) { m := p.withMachine(); unhealthy(m); deleting(m) }, nil, false, nil},
		"its NstanceMachine leaves":             {func(p *podPass) { p.withMachine(); deleting(p.withInfra()) }, nil, false, nil},
		"it is unhealthy":                       {func(p *podPass) { unhealthy(p.withMachine()); p.withInfra() }, []string{"m"}, false, nil},
		"its machine has ended":                 {func(p *podPass) { p.withMachine().Status.Initialization.InfrastructureProvisioned = ptr.To(true) }, []string{"m"}, false, nil},
		"the pod leaves":                        {func(p *podPass) { deleting(p.pod) }, nil, false, nil},
		"it was not created":                    {func(p *podPass) { p.withMachine(); createFailed(p.withInfra()) }, nil, false, []string{eventCreateFailed}},
		"it was created later": {func(p *podPass) {
			p.withMachine()
			conditions.Set(p.withInfra(), metav1.Condition{Type: infrav1.ConditionCreateFailed, Status: metav1.ConditionFalse, Reason: reasonCreated})
		}, nil, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPodPass(t)
			c.change(p)
			for range 2 {
				result, err := p.controller().keep(t.Context(), p.podState) // no shard is connected
				require.NoError(t, err)
				require.Equal(t, c.asks, result.RequeueAfter == retryKubeconfig)
			}
			require.Equal(t, c.gone, p.gone[:len(p.gone)/2])
			require.Equal(t, c.events, p.events(), "each once")
		})
	}
}

// TestRefusesPod: what a pod asks for in vain is said at the pod, and asked for again after a while.
func TestRefusesPod(t *testing.T) {
	p := newPodPass(t)
	controller := p.controller()
	fl := &fleet{shards: map[string]*connection{}}
	controller.fleets.byCluster[infrastructureOf(p.cluster)] = fl
	result, err := controller.keep(t.Context(), p.podState)
	require.NoError(t, err)
	require.Equal(t, retryRefused, result.RequeueAfter)
	require.Equal(t, []string{eventRefused}, p.events(), "no shard has the group")
	p.kube.Refuse(func(*http.Request) error {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "jobs")
	})
	_, err = controller.keep(t.Context(), p.podState)
	require.NoError(t, err, "the namespace is gone")
	fl.shards["a"] = &connection{Shard: shards.New(shards.Options{Name: "a"})}
	require.ErrorIs(t, controller.checkGroup(p.podState, podRequest{group: "web"}), nstance.Unavailable, "this one may")
}

// TestReleasesPod: what is left of a Machine goes once.
func TestReleasesPod(t *testing.T) {
	p := newPodPass(t)
	require.NoError(t, p.controller().release(t.Context(), p.podState))
	require.Empty(t, p.gone)
	p.withInfra()
	require.NoError(t, p.controller().release(t.Context(), p.podState))
	deleting(p.infra)
	require.NoError(t, p.controller().release(t.Context(), p.podState))
	require.Equal(t, []string{"m"}, p.gone)
}

// TestCreatesMachineOfPod: a cluster has no more machines for pods than it may have, as the API server
// counts them. One whose first half was made before gets the other.
func TestCreatesMachineOfPod(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*podPass)
		made   int
	}{
		"the first":                  {func(*podPass) {}, 2},
		"half of it is there":        {func(p *podPass) { p.exists = true }, 2},
		"too many":                   {func(p *podPass) { p.others = 1 }, 0},
		"too many, unseen till now":  {func(p *podPass) { p.uncached.others = 1 }, 0},
		"it counts itself no second": {func(p *podPass) { p.key.Name, p.others, p.uncached.others = "", 1, 1 }, 2}, // the one that is listed
	} {
		t.Run(name, func(t *testing.T) {
			p := newPodPass(t)
			c.change(p)
			err := p.controller().create(t.Context(), p.podState, podRequest{"web", "", "mine"})
			require.Len(t, p.made, c.made)
			if c.made == 0 {
				require.ErrorIs(t, err, nstance.Denied)
				return
			}
			require.NoError(t, err)
			of := map[string]string{clusterv1.ClusterNameLabel: "c", PodLabel: "1", clusterv1.WatchLabel: "blue"}
			require.Equal(t, of, p.made[0].GetLabels())
			of[ClaimLabel] = "mine"
			require.Equal(t, of, p.made[1].GetLabels())
			for _, obj := range p.made {
				require.Equal(t, map[string]string{PodLabel: "jobs/job"}, obj.GetAnnotations())
			}
		})
	}
}

// TestLoadsOnlyPods: Machines that are for no pod, or of another operator, are left alone.
func TestLoadsOnlyPods(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		want   bool
	}{
		"for a pod":           {map[string]string{PodLabel: "1", clusterv1.WatchLabel: "blue"}, true},
		"for none":            {map[string]string{clusterv1.WatchLabel: "blue"}, false},
		"of another operator": {map[string]string{PodLabel: "1", clusterv1.WatchLabel: "green"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			controller := &podController{Client: labelled{labels: c.labels}, fleets: newFleets(nil, slog.New(slog.DiscardHandler)), options: Options{WatchFilter: "blue"}}
			s, err := controller.load(t.Context(), client.ObjectKey{Namespace: "ns", Name: "m"})
			require.NoError(t, err)
			require.Equal(t, c.want, s != nil)
		})
	}
}

// labelled is a management cluster whose Machine has labels.
type labelled struct {
	client.Client
	labels map[string]string
}

func (l labelled) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if m, ok := obj.(*clusterv1.Machine); ok {
		m.Name, m.Labels, m.Spec.ClusterName = key.Name, l.labels, "c"
	}
	return nil
}
