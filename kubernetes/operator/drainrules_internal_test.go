package operator

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/memkube"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// ruledMachines are Machines with a MachineDrainRule that leaves pods of some namespaces.
type ruledMachines struct{ client.Reader }

func (ruledMachines) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *infrav1.NstanceMachineList:
		l.Items = []infrav1.NstanceMachine{{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Machine", Name: "m"}}}}}
	case *clusterv1.MachineDrainRuleList:
		rule := clusterv1.MachineDrainRule{Spec: clusterv1.MachineDrainRuleSpec{
			Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip},
			Pods:  []clusterv1.MachineDrainRulePodSelector{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"left": "true"}}}},
		}}
		l.Items = []clusterv1.MachineDrainRule{rule}
	}
	return nil
}

func (ruledMachines) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// TestNamespacesHang: an API server that does not answer for its namespaces holds up the passes of
// drains for one listing, and not for one of each pod. Once it answers, the rules are known.
func TestNamespacesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := memkube.New()
		kube.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"left": "true"}}})
		kube.Refuse(func(q *http.Request) error {
			<-q.Context().Done()
			return q.Context().Err()
		})
		nodes, err := kubernetes.NewForConfig(kube.Config())
		require.NoError(t, err)
		n := newManagedNodes(ruledMachines{}, &clusterv1.Cluster{}, nodes, newSurges(func() {}))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
		rule := func() (nodedrain.Rule, error) { return n.Rule(t.Context(), nstance.Drain{Instance: "web-1"}, nil, pod) }
		began := time.Now()
		var drains sync.WaitGroup
		for range 10 {
			drains.Go(func() {
				for range 50 {
					if _, err := rule(); err == nil {
						t.Error("it is not known what the namespace is like")
					}
				}
			})
		}
		drains.Wait()
		require.Less(t, time.Since(began), 10*time.Second)
		kube.Refuse(nil)
		<-time.After(2 * time.Second)
		known, err := rule()
		require.NoError(t, err)
		require.Equal(t, nodedrain.Skip, known.Behavior)
	})
}

// machinesWithRules are Machines of instances, with MachineDrainRules.
type machinesWithRules struct {
	client.Reader
	rules   []clusterv1.MachineDrainRule
	machine *clusterv1.Machine
	err     error // of Machines
}

func (m machinesWithRules) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *infrav1.NstanceMachineList:
		l.Items = []infrav1.NstanceMachine{{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "NstanceMachinePool", Name: "p"}, {Kind: "Machine", Name: "m"}}}}}
	case *clusterv1.MachineDrainRuleList:
		l.Items = append(l.Items, m.rules...)
	}
	return nil
}

func (m machinesWithRules) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if m.err != nil {
		return m.err
	}
	if key.Name != "m" {
		return apierrors.NewNotFound(corev1.Resource("machines"), key.Name)
	}
	m.machine.DeepCopyInto(obj.(*clusterv1.Machine))
	return nil
}

// TestDrainRules: the first rule by name that selects cluster, Machine and pod decides. One that makes
// no sense selects nothing. A rule is asked for before surges.
func TestDrainRules(t *testing.T) {
	rule := func(name string, behavior clusterv1.MachineDrainRuleDrainBehavior, change func(*clusterv1.MachineDrainRule)) clusterv1.MachineDrainRule {
		r := clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1.MachineDrainRuleSpec{Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: behavior}}}
		if change != nil {
			change(&r)
		}
		return r
	}
	const skip, waits, drains = clusterv1.MachineDrainRuleDrainBehaviorSkip, clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted, clusterv1.MachineDrainRuleDrainBehaviorDrain
	ordered := func(r *clusterv1.MachineDrainRule) { r.Spec.Drain.Order = ptr.To[int32](7) }
	selecting := func(machine, cluster *metav1.LabelSelector) func(*clusterv1.MachineDrainRule) {
		return func(r *clusterv1.MachineDrainRule) {
			r.Spec.Machines = []clusterv1.MachineDrainRuleMachineSelector{{Selector: machine, ClusterSelector: cluster}}
		}
	}
	label := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"x": value}}
	}
	wrong := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Sounds"}}}
	for name, c := range map[string]struct {
		rules []clusterv1.MachineDrainRule
		want  nodedrain.Rule
	}{
		"none":                       {nil, nodedrain.Rule{}},
		"the first by name":          {[]clusterv1.MachineDrainRule{rule("b", waits, nil), rule("a", skip, nil)}, nodedrain.Rule{Behavior: nodedrain.Skip}},
		"completion":                 {[]clusterv1.MachineDrainRule{rule("b", waits, nil)}, nodedrain.Rule{Behavior: nodedrain.WaitCompleted}},
		"an order":                   {[]clusterv1.MachineDrainRule{rule("b", drains, ordered)}, nodedrain.Rule{Order: 7}},
		"Machine and cluster":        {[]clusterv1.MachineDrainRule{rule("a", skip, selecting(label("machine"), label("cluster")))}, nodedrain.Rule{Behavior: nodedrain.Skip}},
		"another cluster":            {[]clusterv1.MachineDrainRule{rule("a", skip, selecting(label("machine"), label("other")))}, nodedrain.Rule{}},
		"another Machine":            {[]clusterv1.MachineDrainRule{rule("a", skip, selecting(label("other"), label("cluster")))}, nodedrain.Rule{}},
		"a selector without sense":   {[]clusterv1.MachineDrainRule{rule("a", skip, selecting(wrong, nil))}, nodedrain.Rule{}},
		"the first one that selects": {[]clusterv1.MachineDrainRule{rule("a", skip, selecting(label("other"), nil)), rule("b", drains, ordered)}, nodedrain.Rule{Order: 7}},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, err := kubernetes.NewForConfig(memkube.New().Config())
			require.NoError(t, err)
			objects := machinesWithRules{rules: c.rules, machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"x": "machine"}}}}
			told := 0
			n := newManagedNodes(objects, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"x": "cluster"}}}, nodes, newSurges(func() { told++ }))
			cluster, _ := surged()
			pod := &cluster.pods[0]
			d := nstance.Drain{Instance: "i", StartedAt: time.Now(), Deadline: time.Now().Add(time.Hour)}
			got, err := n.Rule(t.Context(), d, nil, pod)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			pod.Annotations[infrav1.AnnotationHandOff] = "true"
			got, err = n.Rule(t.Context(), d, nil, pod)
			require.NoError(t, err)
			left := c.want.Behavior == nodedrain.Evict
			require.Equal(t, left, told == 1)
			if left {
				c.want.Behavior = nodedrain.WaitCompleted
			}
			require.Equal(t, c.want, got)
		})
	}
}

// TestUncordonOfDeleted: a node whose Machine is being deleted stays cordoned, and one of which that
// cannot be told.
func TestUncordonOfDeleted(t *testing.T) {
	gone := &clusterv1.Machine{}
	deleting(gone)
	for name, c := range map[string]struct {
		objects machinesWithRules
		may     bool
		failed  bool
	}{
		"it stays":        {machinesWithRules{machine: &clusterv1.Machine{}}, true, false},
		"it is deleted":   {machinesWithRules{machine: gone}, false, false},
		"there is none":   {machinesWithRules{err: apierrors.NewNotFound(corev1.Resource("machines"), "m")}, true, false},
		"it is not known": {machinesWithRules{err: errors.New("no answer")}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := &managedNodes{objects: c.objects, cluster: &clusterv1.Cluster{}}
			may, err := n.MayUncordon(t.Context(), nstance.Drain{Instance: "i"}, nil)
			require.Equal(t, c.failed, err != nil)
			require.Equal(t, c.may, may || c.failed)
		})
	}
}
