//go:build kube

package operator_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// podsHandedOff has the pods of a Deployment say that they are to be handed off.
func podsHandedOff(d *appsv1.Deployment) {
	d.Spec.Template.Annotations = map[string]string{infrav1.AnnotationHandOff: "true"}
}

// moved reports whether a pod was evicted, or deleted past its budget, by a drain.
func (p *protectedWorld) moved() bool {
	p.Helper()
	var events corev1.EventList
	require.NoError(p, p.nodes.List(p.Context(), &events, client.InNamespace(p.space)))
	return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "EvictedByDrain" || e.Reason == "pdb_overridden" })
}

// TestKubeSurge: the only pod of a workload, whose budget permits no disruption, runs elsewhere
// before a drain with time enough ends it, be it for a notice or a rollout, also when the
// operator is replaced in the middle. Nothing is evicted, and nothing is left of it.
func TestKubeSurge(t *testing.T) {
	for name, c := range map[string]struct {
		cause nstance.CauseKind
		long  time.Duration
	}{
		"notice":  {nstance.CauseNotice, 2 * time.Minute},
		"rollout": {nstance.CauseRollout, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProtectedWorld(t)
			old, instance := p.machine("old", false, 0)
			d := p.deploy("web", 1, podsHandedOff)
			p.budget("web", 0)
			p.untilReady("web", 1)
			p.drain(instance, c.cause, c.long)
			p.untilNode(old, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
			p.untilReplicas(d, 2)
			require.Equal(t, 1, p.on("web", old), "it stays until there is another")
			p.restart()
			lasting, _ := p.machine("lasting", false, 0)
			p.untilOn("web", lasting, 1)
			p.settledHandOff(d, 1)
			require.Empty(t, d.Labels["nstance.dev/hand-off-surge"])
			require.Eventually(t, func() bool { return slices.Contains(p.acknowledged(), instance.GetId()+": drained") }, eventually, poll, "the shard knows")
			require.False(t, p.moved())
		})
	}
}

// TestKubeSurgeRefused: without time enough, where others would take a surge back, and without
// the annotation, pods are evicted and no replicas are changed.
func TestKubeSurgeRefused(t *testing.T) {
	for name, c := range map[string]struct {
		long   time.Duration
		change func(*appsv1.Deployment)
	}{
		"30 seconds": {30 * time.Second, podsHandedOff},
		"GitOps": {10 * time.Minute, func(d *appsv1.Deployment) {
			podsHandedOff(d)
			d.Annotations["argocd.argoproj.io/tracking-id"] = "x"
		}},
		"not asked for": {10 * time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProtectedWorld(t)
			_, instance := p.machine("old", false, 0)
			lasting, _ := p.machine("lasting", false, 0)
			d := p.deploy("web", 2, func(d *appsv1.Deployment) {
				d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: d.Spec.Selector,
				}}
				if c.change != nil {
					c.change(d)
				}
			})
			p.budget("web", 2)
			p.untilReady("web", 2)
			p.drain(instance, nstance.CauseNotice, c.long)
			p.untilOn("web", lasting, 2)
			require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(d), d))
			require.EqualValues(t, 2, *d.Spec.Replicas)
			require.EqualValues(t, 1, d.Generation, "nothing has changed them")
		})
	}
}
