//go:build kube

package nodedrain_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	lifecyclev1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedlifecycle "k8s.io/client-go/kubernetes/typed/lifecycle/v1alpha1"
	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// requesting has the Drainer of a rig ask with EvictionRequests.
func (r *rig) requesting() *nodedrain.Options {
	r.Helper()
	cfg := rest.CopyConfig(servers.Config)
	cfg.Wrap(r.requests.wrap)
	e, err := nodedrain.NewEvictionRequests(cfg, nil)
	require.NoError(r, err)
	return &nodedrain.Options{Evictor: e}
}

// lifecycle is the API in JSON: the resource is defined by a CRD, which has no protobuf.
func (r *rig) lifecycle() typedlifecycle.LifecycleV1alpha1Interface {
	r.Helper()
	cfg := rest.CopyConfig(servers.Config)
	cfg.ContentType, cfg.AcceptContentTypes = "application/json", "application/json"
	client, err := typedlifecycle.NewForConfig(cfg)
	require.NoError(r, err)
	return client
}

// evictionRequests returns those of the test.
func (r *rig) evictionRequests() []lifecyclev1.EvictionRequest {
	r.Helper()
	list, err := r.lifecycle().EvictionRequests(r.namespace).List(background, metav1.ListOptions{})
	require.NoError(r, err)
	return list.Items
}

// conclude has the controller of EvictionRequests say something of a request.
func (r *rig) conclude(e lifecyclev1.EvictionRequest, failed metav1.ConditionStatus, message string) {
	r.Helper()
	meta.SetStatusCondition(&e.Status.Conditions, metav1.Condition{Type: "Failed", Status: failed, Reason: "Test", Message: message})
	_, err := r.lifecycle().EvictionRequests(r.namespace).UpdateStatus(r.Context(), &e, metav1.UpdateOptions{})
	require.NoError(r, err)
}

// TestKubeEvictionRequests: with EvictionRequests a pod is left to its responders until its
// grace period must begin, one whose request has failed is evicted, and a cancelled drain
// takes its requests back. A cluster that does not serve them has evictions.
func TestKubeEvictionRequests(t *testing.T) {
	t.Run("not served", func(t *testing.T) {
		r := newSerialRig(t)
		a := r.node("a")
		r.pod("web", a, nil)
		r.run(r.requesting())
		require.Equal(t, nstance.OutcomeDrained, r.ack(r.drain(a, time.Minute, nil)).Outcome)
		require.Len(t, r.requests.matching(evictions), 1)
	})
	require.NoError(t, servers.InstallCRDs("testdata"))
	t.Run("a responder moves it", func(t *testing.T) {
		r := newRig(t)
		a := r.node("a")
		r.pod("web", a, nil)
		r.run(r.requesting())
		d := r.drain(a, 10*time.Minute, nil)
		r.eventually(func() bool { return len(r.evictionRequests()) == 1 }, "it is asked for")
		e, pod := r.evictionRequests()[0], r.getPod("web")
		require.Equal(t, lifecyclev1.EvictionRequestSpec{
			Target:    lifecyclev1.EvictionRequestTarget{Pod: &lifecyclev1.EvictionRequestPodReference{Name: "web", UID: pod.UID}},
			Requester: "nstance.dev/drain", Intent: lifecyclev1.EvictionRequestIntentEviction,
		}, e.Spec)
		r.conclude(e, metav1.ConditionFalse, "moving its state")
		require.Contains(t, r.event(r.namespace, "web", "DrainBlocked"), "moving its state")
		require.Empty(t, r.requests.matching(evictions), "nothing else asks")
		r.killPod("web")
		require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
		r.eventually(func() bool { return len(r.evictionRequests()) == 0 }, "it ends with its pod")
	})
	t.Run("no responder managed", func(t *testing.T) {
		r := newRig(t)
		a := r.node("a")
		r.pod("web", a, nil)
		r.run(r.requesting())
		d := r.drain(a, 10*time.Minute, nil)
		r.eventually(func() bool { return len(r.evictionRequests()) == 1 }, "it is asked for")
		r.conclude(r.evictionRequests()[0], metav1.ConditionTrue, "none is left")
		require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.NotEmpty(t, r.requests.matching(evictions))
	})
	t.Run("no time is left", func(t *testing.T) {
		r := newRig(t)
		a := r.node("a")
		r.pod("web", a, nil)
		r.run(r.requesting())
		require.Equal(t, nstance.OutcomeDrained, r.ack(r.drain(a, 8*time.Second, nil)).Outcome)
		require.Empty(t, r.requests.matching(evictions))
		require.Contains(t, r.event(r.namespace, "web", "pdb_overridden"), "has not moved it yet")
	})
	t.Run("cancelled", func(t *testing.T) {
		r := newRig(t)
		a := r.node("a")
		r.pod("web", a, nil)
		r.run(r.requesting())
		d := r.drain(a, 10*time.Minute, nil)
		r.eventually(func() bool { return len(r.evictionRequests()) == 1 }, "it is asked for")
		require.NoError(t, r.drains.Cancel(context.Background(), d.Instance, d.Generation))
		r.eventually(func() bool { return len(r.evictionRequests()) == 0 }, "it is taken back")
		require.True(t, podReady(r.getPod("web")))
	})
}
