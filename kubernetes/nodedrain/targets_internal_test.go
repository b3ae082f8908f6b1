package nodedrain

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// readyIs sets the node's condition Ready.
func readyIs(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	}
}

func outOfBalancers(n *corev1.Node) {
	n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
}

// TestOtherTargets: load balancers leave a node out when another one can serve in its place.
func TestOtherTargets(t *testing.T) {
	asIs := func(*corev1.Node) {}
	for name, c := range map[string]struct {
		drained, other func(*corev1.Node)
		left           bool
	}{
		"the other is ready":                     {asIs, asIs, true},
		"the other is not ready":                 {asIs, readyIs(corev1.ConditionFalse), false},
		"the kubelet of the other is silent":     {asIs, readyIs(corev1.ConditionUnknown), false},
		"the other is cordoned":                  {asIs, func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		"the other is left out":                  {asIs, outOfBalancers, false},
		"the drained one is not ready":           {readyIs(corev1.ConditionFalse), asIs, true},
		"neither is ready":                       {readyIs(corev1.ConditionFalse), readyIs(corev1.ConditionFalse), false},
		"the kubelet of the drained one is away": {readyIs(corev1.ConditionUnknown), asIs, true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("a")
				r.node("b")
				r.change("a", c.drained)
				r.change("b", c.other)
				r.pod("job", "a", waits)
				r.drain("a", time.Hour, nil)
				pass(10 * time.Second)
				n := r.get("a")
				require.Equal(r, c.left, excluded(&n))
			})
		})
	}
}

// TestLeftOutLater: a node is left out once another one can serve, which makes its drain no
// tighter.
func TestLeftOutLater(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("a")
		r.pod("job", "a", waits)
		r.drain("a", time.Hour, nil)
		pass(time.Minute)
		n := r.get("a")
		require.False(r, excluded(&n))
		r.node("b")
		pass(10 * time.Second)
		n = r.get("a")
		require.True(r, excluded(&n))
		require.Empty(r, r.said(reasonTightened))
	})
}

// TestLeftOutTogether: nodes of one event are left out once all of them are cordoned: it is known then
// which others can serve.
func TestLeftOutTogether(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		var once sync.Once
		r.kube.Refuse(func(q *http.Request) error {
			if q.Method == http.MethodPatch && q.URL.Path == "/api/v1/nodes/c" {
				once.Do(func() { <-time.After(2 * time.Second) })
			}
			return nil
		})
		for _, node := range []string{"a", "b", "c"} {
			r.node(node)
			r.pod("of-"+node, node, waits)
		}
		r.node("spare")
		for _, node := range []string{"a", "b", "c"} {
			r.drain(node, time.Hour, nil)
		}
		pass(1500 * time.Millisecond)
		n := r.get("b")
		require.True(r, n.Spec.Unschedulable)
		require.False(r, excluded(&n))
		pass(10 * time.Second)
		n = r.get("b")
		require.True(r, excluded(&n))
	})
}

// TestLeftOutByOthers: a node that others have load balancers leave out stays so after a drain that
// is cancelled.
func TestLeftOutByOthers(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("a")
		r.node("b")
		r.change("a", outOfBalancers)
		r.pod("job", "a", waits)
		d := r.drain("a", time.Hour, nil)
		pass(10 * time.Second)
		require.NoError(r, r.drains.Cancel(r.ctx, d.Instance, d.Generation))
		pass(10 * time.Second)
		n := r.get("a")
		require.False(r, n.Spec.Unschedulable)
		require.True(r, excluded(&n))
	})
}
