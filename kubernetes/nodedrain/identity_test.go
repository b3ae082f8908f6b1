//go:build kube

package nodedrain_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/never"
)

// replaceBefore has another machine's node of the same name, with a pod "new", in the place of
// a node right before a Drainer's next request that is selected.
func (r *rig) replaceBefore(node string, selected func(request) bool) {
	once := sync.OnceFunc(func() {
		if err := servers.Client.CoreV1().Nodes().Delete(background, node, remove); err != nil {
			r.Error(err)
		}
		other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"test": r.namespace}}, Spec: corev1.NodeSpec{ProviderID: "aws:///zone-a/i-other-" + node}}
		if _, err := servers.Client.CoreV1().Nodes().Create(background, other, create); err != nil {
			r.Error(err)
		}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "new", Namespace: r.namespace, Labels: map[string]string{"app": "web"}}, Spec: podSpec()}
		p.Spec.NodeName = node
		if _, err := servers.Client.CoreV1().Pods(r.namespace).Create(background, p, create); err != nil {
			r.Error(err)
		}
		r.await(func() bool { return podReady(r.getPod("new")) }, "the new machine's pod is not ready")
	})
	r.requests.before = func(q request) {
		if selected(q) {
			once()
		}
	}
}

func taints(q request) bool {
	return q.method == http.MethodPatch && strings.Contains(q.body, "out-of-service")
}

func deletions(q request) bool {
	return q.method == http.MethodDelete && strings.Contains(q.path, "/pods/")
}

// untouched requires that the new machine's node and pod are as they were made.
func (r *rig) untouched(node string) {
	r.Helper()
	now := r.get(node)
	require.Equal(r, "aws:///zone-a/i-other-"+node, now.Spec.ProviderID)
	require.False(r, now.Spec.Unschedulable)
	require.False(r, annotated(now) || excluded(now))
	for _, taint := range now.Spec.Taints {
		require.NotEqual(r, corev1.TaintNodeOutOfService, taint.Key)
	}
	require.True(r, podReady(r.getPod("new")))
}

// TestKubeGoneNameReused: the node of a machine that is gone makes way for that of a new
// machine of the same name, at whatever moment. The new one and its pods are left alone.
func TestKubeGoneNameReused(t *testing.T) {
	for name, selected := range map[string]func(request) bool{
		"before the taint": taints, "before the pods are listed": listings, "before the node is deleted": func(q request) bool {
			return q.path == "/apis/storage.k8s.io/v1/volumeattachments"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.node("a")
			r.replaceBefore(a, selected)
			d, _ := r.run(nil)
			r.eventually(func() bool { return d.Gone(t.Context(), "", "i-"+a) == nil }, "not gone")
			r.untouched(a)
			require.Empty(t, r.requests.matching(deletions))
		})
	}
}

// TestKubeGoneTakenOver: the kubelet of a new machine takes over the node of its name as it
// is, with the provider ID of the machine that is gone. It is known by its system UUID.
func TestKubeGoneTakenOver(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.setSystem(a, "first")
	d, _ := r.run(nil)
	r.eventually(func() bool {
		node, err := d.Find("", "i-"+a)
		return err == nil && node.Status.NodeInfo.SystemUUID == "first"
	}, "not known")
	r.setSystem(a, "second")
	r.pod("new", a, nil)
	require.ErrorIs(t, d.Gone(t.Context(), "", "i-"+a), nstance.Conflict)
	require.True(t, podReady(r.getPod("new")))
	require.False(t, r.get(a).Spec.Unschedulable)
	r.setSystem(a, "first")
	require.NoError(t, d.Gone(t.Context(), "", "i-"+a), "it is the machine that is gone after all")
}

// setSystem has a kubelet report the machine on which it runs.
func (r *rig) setSystem(node, id string) {
	r.Helper()
	_, err := servers.Client.CoreV1().Nodes().PatchStatus(r.Context(), node, []byte(`{"status":{"nodeInfo":{"systemUUID":"`+id+`"}}}`))
	require.NoError(r, err)
}

// TestKubeDrainNameReused: a drain evicts no pods of a new machine that has the name of the
// drained one, and writes nothing to its node.
func TestKubeDrainNameReused(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.node("spare") // load balancers need a target
	r.pod("old", a, func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
	var begun atomic.Bool
	r.replaceBefore(a, func(q request) bool { return begun.Load() && listings(q) })
	r.run(nil)
	d := r.drain(a, time.Minute, nil)
	r.eventually(func() bool { return excluded(r.get(a)) }, "not begun")
	begun.Store(true)
	r.eventually(func() bool { return podReady(r.getPod("new")) }, "not replaced")
	never.True(t, func() bool { return len(r.requests.matching(evictions)) > 0 }, 3*time.Second, 50*time.Millisecond)
	r.untouched(a)
	require.False(t, acks(r, d))
}
