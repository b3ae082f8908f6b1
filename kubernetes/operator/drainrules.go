package operator

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/snapshot"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// namespacesFor is for how long the labels of the workload cluster's namespaces are
// remembered.
const namespacesFor = 30 * time.Second

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinedrainrules,verbs=get;list;watch

// managedNodes tell a drain what Cluster API knows of the nodes of one cluster: the rules
// for their Machines, and whether these are being deleted. It is safe for concurrent use.
type managedNodes struct {
	objects    client.Reader // of the management cluster
	cluster    *clusterv1.Cluster
	surges     *surges
	namespaces *snapshot.Snapshot[map[string]map[string]string] // labels, by name, in the workload cluster
}

func newManagedNodes(objects client.Reader, cluster *clusterv1.Cluster, nodes kubernetes.Interface, surges *surges) *managedNodes {
	namespaces := snapshot.New(func(ctx context.Context) (map[string]map[string]string, error) {
		list, err := nodes.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		byName := map[string]map[string]string{}
		for _, ns := range list.Items {
			byName[ns.Name] = ns.Labels
		}
		return byName, nil
	})
	return &managedNodes{objects: objects, cluster: cluster, surges: surges, namespaces: namespaces}
}

// machineOf returns the Machine of an instance; nil: it has none.
func (n *managedNodes) machineOf(ctx context.Context, id nstance.InstanceID) (*clusterv1.Machine, error) {
	var list infrav1.NstanceMachineList
	if err := n.objects.List(ctx, &list, client.InNamespace(n.cluster.Namespace), client.MatchingFields{instanceIDField: string(id)}); err != nil {
		return nil, err
	}
	for _, m := range list.Items {
		i := slices.IndexFunc(m.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.Kind == "Machine" })
		if i < 0 {
			continue
		}
		var machine clusterv1.Machine
		err := n.objects.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: m.OwnerReferences[i].Name}, &machine)
		if err == nil {
			return &machine, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
	}
	return nil, nil //nolint:nilnil // it has none
}

// Rule implements nodedrain.Rules: a pod that is handed off may leave by itself for a while, others
// go by MachineDrainRules.
func (n *managedNodes) Rule(ctx context.Context, d nstance.Drain, _ *corev1.Node, pod *corev1.Pod) (nodedrain.Rule, error) {
	rule, err := n.machineRule(ctx, d, pod)
	if err != nil || rule.Behavior != nodedrain.Evict {
		return rule, err
	}
	handedOff, err := n.handedOff(ctx, d, pod)
	if handedOff || err == nil && n.surges.waits(d, pod, time.Now()) {
		rule.Behavior = nodedrain.WaitCompleted
	}
	return rule, err
}

// machineRule returns the first MachineDrainRule, in the order of names, that selects Machine
// and pod.
func (n *managedNodes) machineRule(ctx context.Context, d nstance.Drain, pod *corev1.Pod) (nodedrain.Rule, error) {
	var rules clusterv1.MachineDrainRuleList
	if err := n.objects.List(ctx, &rules, client.InNamespace(n.cluster.Namespace)); err != nil || len(rules.Items) == 0 {
		return nodedrain.Rule{}, err
	}
	machine, err := n.machineOf(ctx, d.Instance)
	if err != nil || machine == nil {
		return nodedrain.Rule{}, err
	}
	namespaces, err := n.namespaces.Since(ctx, time.Now().Add(-namespacesFor))
	if err != nil {
		return nodedrain.Rule{}, err
	}
	slices.SortFunc(rules.Items, func(a, b clusterv1.MachineDrainRule) int { return cmp.Compare(a.Name, b.Name) })
	for _, rule := range rules.Items {
		if !selectsMachine(rule.Spec.Machines, machine.Labels, n.cluster.Labels) || !selectsPod(rule.Spec.Pods, pod.Labels, namespaces[pod.Namespace]) {
			continue
		}
		switch rule.Spec.Drain.Behavior {
		case clusterv1.MachineDrainRuleDrainBehaviorSkip:
			return nodedrain.Rule{Behavior: nodedrain.Skip}, nil
		case clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted:
			return nodedrain.Rule{Behavior: nodedrain.WaitCompleted}, nil
		}
		return nodedrain.Rule{Order: ptr.Deref(rule.Spec.Drain.Order, 0)}, nil
	}
	return nodedrain.Rule{}, nil
}

func selectsMachine(selectors []clusterv1.MachineDrainRuleMachineSelector, machine, cluster map[string]string) bool {
	return len(selectors) == 0 || slices.ContainsFunc(selectors, func(s clusterv1.MachineDrainRuleMachineSelector) bool {
		return selects(s.Selector, machine) && selects(s.ClusterSelector, cluster)
	})
}

func selectsPod(selectors []clusterv1.MachineDrainRulePodSelector, pod, namespace map[string]string) bool {
	return len(selectors) == 0 || slices.ContainsFunc(selectors, func(s clusterv1.MachineDrainRulePodSelector) bool {
		return selects(s.Selector, pod) && selects(s.NamespaceSelector, namespace)
	})
}

// selects reports whether a selector fits; without one, everything does. One that makes no
// sense, which Cluster API's webhook refuses, fits nothing.
func selects(selector *metav1.LabelSelector, of map[string]string) bool {
	if selector == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(of))
}

// Begin implements nodedrain.Hooks.
func (*managedNodes) Begin(context.Context, nstance.Drain, *corev1.Node) error { return nil }

// End implements nodedrain.Hooks.
func (*managedNodes) End(context.Context, nstance.Drain, *corev1.Node, nodedrain.Result) error {
	return nil
}

// MayUncordon implements nodedrain.Hooks: a node whose Machine is being deleted stays cordoned.
func (n *managedNodes) MayUncordon(ctx context.Context, d nstance.Drain, _ *corev1.Node) (bool, error) {
	machine, err := n.machineOf(ctx, d.Instance)
	return machine == nil || machine.DeletionTimestamp.IsZero(), err
}
