//go:build kube

package nodedrain_test

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nstance-go/nstance"
)

// endless has a pod that does not end.
func endless(grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels["test.nstance.dev/stop"] = "never"
		p.Spec.TerminationGracePeriodSeconds = &grace
	}
}

func critical(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" }

// TestKubeTerminatingForever: pods do not wait for one that does not end although its grace
// period is over.
func TestKubeTerminatingForever(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("stuck", a, endless(1))
	r.pod("dns", a, critical)
	r.run(nil)
	d := r.drain(a, 20*time.Minute, nil)
	r.eventually(func() bool { return r.getPod("dns") == nil }, "it waits for the other")
	require.Contains(t, r.event(r.namespace, "stuck", "DrainBlocked"), "its grace period is over, and it has not ended")
	require.False(t, acks(r, d))
	r.killPod("stuck")
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
}

// TestKubeGrantedEviction: what the API server has granted to a client that ended before the pod was deleted is
// done, though the budget permits nothing else meanwhile.
func TestKubeGrantedEviction(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("granted", a, nil)
	r.pod("other", a, nil)
	r.budget(0)
	budgets := servers.Client.PolicyV1().PodDisruptionBudgets(r.namespace)
	b, err := budgets.Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	b.Status.DisruptedPods = map[string]metav1.Time{"granted": metav1.NewTime(r.getPod("granted").CreationTimestamp.Add(time.Second))}
	_, err = budgets.UpdateStatus(t.Context(), b, metav1.UpdateOptions{})
	require.NoError(t, err)
	r.run(nil)
	d := r.drain(a, 20*time.Minute, nil)
	r.eventually(func() bool { return r.getPod("granted") == nil }, "it is not evicted")
	require.Contains(t, r.event(r.namespace, "other", "DrainBlocked"), "The disruption budget web ")
	require.True(t, podReady(r.getPod("other")))
	require.False(t, acks(r, d))
	r.deleteBudget()
	require.Empty(t, r.ack(d).Message, "no disruption budget is overridden")
}

// TestKubeSilentNodeTiers: nor do they wait for one whose kubelet is silent.
func TestKubeSilentNodeTiers(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("slow", a, endless(600))
	r.pod("dns", a, critical)
	r.patch(a, `{"metadata":{"annotations":{"test.nstance.dev/silent":"true"}}}`)
	silent := []byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`)
	_, err := servers.Client.CoreV1().Nodes().Patch(t.Context(), a, types.StrategicMergePatchType, silent, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	r.run(nil)
	r.drain(a, 20*time.Minute, nil)
	r.eventually(func() bool { return r.getPod("dns") == nil }, "it waits for the other")
	require.Contains(t, r.event("default", a, "DrainBlocked"), "the kubelet of its node is silent")
	r.killPod("slow")
}

// TestKubeWebhookTrouble: a pod whose eviction an admission webhook does not let pass is
// stopped before its machine goes, and delays no other pod.
func TestKubeWebhookTrouble(t *testing.T) {
	const left, grace = 14 * time.Second, 3
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or else it is not seen that the client leaves
		<-r.Context().Done()
	}
	const named = `failed calling webhook "evict.test.nstance.dev"`
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		seconds int32 // that it has
		words   string
	}{
		"it fails":           {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, 10, named},
		"it hangs":           {hang, 30, "an admission webhook for evictions may hang"},
		"it has little time": {hang, 1, named},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			other := &rig{T: t, namespace: servers.Namespace(t)}
			a := r.node("a")
			r.pod("p", a, slow(grace))
			other.pod("q", a, slow(grace))
			other.budget(0)
			r.webhook(c.handler, c.seconds)
			r.run(nil)
			d := r.drain(a, left, nil)
			due := d.Deadline.Add(-2*time.Second - grace*time.Second)
			other.eventually(func() bool { p := other.getPod("q"); return p != nil && p.DeletionTimestamp != nil }, "not deleted")
			require.WithinDuration(t, due, time.Now(), 1500*time.Millisecond, "it is delayed")
			r.eventually(func() bool { p := r.getPod("p"); return p != nil && p.DeletionTimestamp != nil }, "not deleted")
			require.WithinDuration(t, due, time.Now(), 3*time.Second)
			require.Contains(t, r.event(r.namespace, "p", "pdb_overridden"), c.words)
			ack := r.ack(d)
			require.Equal(t, nstance.OutcomeDrained, ack.Outcome, ack.Message)
			require.Contains(t, ack.Message, "pdb_overridden for 2 pods")
		})
	}
}

// webhook has a handler admit the evictions in the test's namespace.
func (r *rig) webhook(handler http.HandlerFunc, seconds int32) {
	r.Helper()
	server := httptest.NewTLSServer(handler)
	r.Cleanup(server.Close)
	r.Cleanup(server.CloseClientConnections)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	fail, none := admissionv1.Fail, admissionv1.SideEffectClassNone
	hooks := servers.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := hooks.Create(r.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: r.namespace},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "evict.test.nstance.dev", ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To(server.URL), CABundle: ca},
			FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.namespace}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
			}},
		}},
	}, create)
	require.NoError(r, err)
	r.Cleanup(func() { _ = hooks.Delete(background, r.namespace, remove) })
	r.eventually(func() bool { return r.tryEviction("p") != nil }, "the webhook is not called")
}

// tryEviction asks whether a pod could be evicted.
func (r *rig) tryEviction(name string) error {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	return servers.Client.PolicyV1().Evictions(r.namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: name, Namespace: r.namespace},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	})
}
