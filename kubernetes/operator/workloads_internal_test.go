package operator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestMeaningOfNode: what may announce the end of a node, or says whether pods may come there, has a
// meaning. What a kubelet says every few minutes has none.
func TestMeaningOfNode(t *testing.T) {
	node := func() *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionFalse}, {Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue},
		}}}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		means  bool
	}{
		"it is cordoned":           {func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		"it is deleted":            {func(n *corev1.Node) { deleting(n) }, true},
		"another of its name":      {func(n *corev1.Node) { n.UID = "2" }, true},
		"a taint":                  {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}} }, true},
		"not known to be ready":    {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, true},
		"nothing of its readiness": {func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[1:] }, true},
		"a condition that is over": {func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse }, true},
		"a heartbeat":              {func(n *corev1.Node) { n.Status.Conditions[0].Message = "a minute later" }, false},
		"a condition that is false": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse})
		}, false},
		"a label": {func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := node()
			c.change(n)
			require.Equal(t, c.means, meaning(node()) != meaning(n))
			kept, err := trimProtectedNode(n)
			require.NoError(t, err)
			require.Equal(t, meaning(n), meaning(kept), "it is kept")
		})
	}
}

// TestMeaningOfClaim: a NodeClaim means something by its node, and once it is deleted.
func TestMeaningOfClaim(t *testing.T) {
	claim := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"x": "y"}, "status": map[string]any{}}}
	before := meaning(claim)
	require.NoError(t, unstructured.SetNestedField(claim.Object, "n", "status", "nodeName"))
	named := meaning(claim)
	require.NotEqual(t, before, named)
	deleting(claim)
	require.NotEqual(t, named, meaning(claim))
	deleted := meaning(claim)
	_, err := trimClaim(claim)
	require.NoError(t, err)
	require.Equal(t, deleted, meaning(claim), "it is kept")
	require.NotContains(t, claim.Object, "spec")
}

// TestTrimsEvents: of an event that announces nothing only the name is kept.
func TestTrimsEvents(t *testing.T) {
	for reason, known := range map[string]bool{"SpotInterrupted": true, "Starting": false} {
		kept, err := trimEvent(&corev1.Event{Reason: reason, Message: strings.Repeat("x", 1000), InvolvedObject: corev1.ObjectReference{Name: "n"}})
		require.NoError(t, err)
		require.Equal(t, known, meaning(kept) == reason)
		require.Equal(t, known, kept.(*corev1.Event).InvolvedObject.Name == "n")
		require.LessOrEqual(t, len(kept.(*corev1.Event).Message), 256)
	}
}

// A karpenterCache is of a cluster with Karpenter, whose NodeClaims may not be listed.
type karpenterCache struct {
	cache.Cache
	claims *informerOf
}

// An informerOf is of one kind.
type informerOf struct {
	cache.Informer
	synced bool
}

func (i *informerOf) HasSynced() bool { return i.synced }

func (*informerOf) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, nil //nolint:nilnil // it is not used
}

func (karpenterCache) WaitForCacheSync(context.Context) bool { return true }

func (k karpenterCache) GetInformer(ctx context.Context, kind client.Object, how ...cache.InformerGetOption) (cache.Informer, error) {
	if _, claims := kind.(*unstructured.Unstructured); !claims {
		return &informerOf{synced: true}, nil
	}
	var o cache.InformerGetOptions
	for _, set := range how {
		set(&o)
	}
	if !k.claims.synced && (o.BlockUntilSynced == nil || *o.BlockUntilSynced) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return k.claims, nil
}

func (k karpenterCache) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *corev1.NodeList:
		l.Items = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
	case *unstructured.UnstructuredList:
		if !k.claims.synced {
			<-ctx.Done()
			return ctx.Err()
		}
		l.Items = []unstructured.Unstructured{{Object: map[string]any{"status": map[string]any{"nodeName": "n"}}}}
	}
	return nil
}

// TestNodesWithoutClaims: while NodeClaims cannot be listed, the nodes are known, and the first pass
// alone waits for them. Once they can be listed they are known too.
func TestNodesWithoutClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := karpenterCache{claims: &informerOf{}}
		w := &workloadCluster{watched: k, changed: func() {}, start: func() {}}
		ctx, cancel := context.WithTimeout(t.Context(), protectionLimit)
		defer cancel()
		for pass := range 3 {
			began := time.Now()
			unread, err := w.follow(ctx)
			require.NoError(t, err)
			require.ErrorContains(t, unread, "NodeClaims cannot be listed")
			require.Equal(t, pass == 0, time.Since(began) >= claimsWait)
			nodes, claims, _, err := w.nodes(ctx)
			require.NoError(t, err)
			require.Len(t, nodes, 1)
			require.Empty(t, claims)
		}
		k.claims.synced = true
		unread, err := w.follow(ctx)
		require.NoError(t, errors.Join(unread, err))
		_, claims, _, err := w.nodes(ctx)
		require.NoError(t, err)
		require.Contains(t, claims, "n")
	})
}
