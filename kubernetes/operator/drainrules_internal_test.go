package operator

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
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
