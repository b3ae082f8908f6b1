package operator

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
