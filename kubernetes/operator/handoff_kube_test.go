//go:build kube

package operator_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/never"
	"github.com/nstance-go/nstance/internal/wire"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

// settled is how long ago a bridge was woken whose pods are to leave.
const settled = protection.Interval + time.Second

// machine makes a node of the shard, whose instance is a member of group standby, or one of
// its stand-by machines that was woken so long ago.
func (p *protectedWorld) machine(name string, standby bool, awake time.Duration) (*corev1.Node, *apiv1.Instance) {
	p.Helper()
	id := p.space + "-" + name
	i := &apiv1.Instance{Id: id, Group: "standby", ProviderId: id, NodeProviderId: "nstance:///" + id, State: string(nstance.Ready), Standby: standby}
	if standby {
		i.WokenAt = timestamppb.New(time.Now().Add(-awake))
	}
	p.put(i, nstance.EventReady)
	return p.addNode(name, "nstance:///"+id, nil), i
}

// wakeAgo changes how long ago a stand-by machine was woken.
func (p *protectedWorld) wakeAgo(i *apiv1.Instance, awake time.Duration) {
	i.WokenAt = timestamppb.New(time.Now().Add(-awake))
	p.put(i, nstance.EventWoken)
}

// drain has the shard drain an instance, voluntarily and by the operator.
func (p *protectedWorld) drain(i *apiv1.Instance, cause nstance.CauseKind, long time.Duration) {
	now := time.Now()
	i.State, i.Drain = string(nstance.Draining), wire.Drain(&nstance.Drain{
		Instance: nstance.InstanceID(i.GetId()), Group: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "standby"}, ProviderID: i.GetProviderId(), Generation: 1,
		StartedAt: now, Deadline: now.Add(long), Causes: []nstance.Cause{{Kind: cause}}, Voluntary: cause != nstance.CauseNotice, Executor: nstance.ExecutorOperator,
	})
	p.put(i, nstance.EventDrainStarted)
}

func (p *protectedWorld) acknowledged() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, a := range p.acks {
		out = append(out, a.GetId()+": "+a.GetOutcome())
	}
	return out
}

func (p *protectedWorld) untilReplicas(d *appsv1.Deployment, want int32) {
	p.Helper()
	p.await(d, func() bool { return *d.Spec.Replicas == want }, "replicas")
}

// untilOn waits until so many pods of an app run on a node, and no other.
func (p *protectedWorld) untilOn(app string, node *corev1.Node, want int) {
	p.Helper()
	require.Eventually(p, func() bool { return p.on(app, node) == want && len(p.podsOf(app)) == want }, eventually, poll,
		"%s", lazy(func() string { return mustYAML(p.podsOf(app)) + p.protections() }))
}

// settledHandOff: nothing is left of a hand-off on a Deployment and its pods.
func (p *protectedWorld) settledHandOff(d *appsv1.Deployment, replicas int32) {
	p.Helper()
	p.await(d, func() bool { return *d.Spec.Replicas == replicas && d.Annotations[protection.AnnotationSurge] == "" }, "it is as it was")
	priced := func(pod corev1.Pod) bool { return pod.Annotations[corev1.PodDeletionCost] != "" }
	require.Eventually(p, func() bool { return !slices.ContainsFunc(p.podsOf(d.Name), priced) }, eventually, poll,
		"%s", lazy(func() string { return mustYAML(p.podsOf(d.Name)) + p.protections() }))
}

// TestKubeHandOff has pods on a bridge go first when their workload shrinks, cordons the bridge
// five minutes after its waking, and moves the pods by surging: replicas are raised, and
// lowered once the new pods are ready elsewhere. An operator that starts in the middle ends
// it the same way. The next waking uncordons.
func TestKubeHandOff(t *testing.T) {
	p := newProtectedWorld(t)
	bridge, instance := p.machine("bridge", true, 0)
	d := p.deploy("web", 3, handedOff)
	p.budget("web", 1)
	p.untilReady("web", 3)
	sp := p.protect(nil)
	p.untilWorkload(sp, "web", func(w infrav1.ProtectedWorkload) bool { return w.HandOff == infrav1.HandOffSurge })
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(p.podsOf("web"), func(pod corev1.Pod) bool { return pod.Annotations[corev1.PodDeletionCost] != protection.DeletionCost })
	}, eventually, poll, "they are cheap")
	require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(bridge), bridge))
	require.False(t, bridge.Spec.Unschedulable, "not yet")

	p.wakeAgo(instance, settled)
	p.untilNode(bridge, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
	p.untilReplicas(d, 6)
	require.Contains(t, d.Annotations[protection.AnnotationSurge], bridge.Name)
	require.Equal(t, 3, p.on("web", bridge), "nothing ends before there are others")
	p.untilWorkload(sp, "web", func(w infrav1.ProtectedWorkload) bool { return ptr.Deref(w.Surged, 0) == 3 })

	p.restart()
	lasting, _ := p.machine("lasting", false, 0)
	p.untilOn("web", lasting, 3)
	p.settledHandOff(d, 3)

	p.wakeAgo(instance, 0)
	p.untilNode(bridge, func(n *corev1.Node) bool { return !n.Spec.Unschedulable && len(n.Annotations) < 5 }, "it may have pods again")
	require.NotContains(t, bridge.Annotations, "nstance.dev/hand-off-cordoned")
}

// TestKubeHandOffCosts gives pods back the deletion cost that they had before they were to leave.
func TestKubeHandOffCosts(t *testing.T) {
	p := newProtectedWorld(t)
	p.machine("bridge", true, 0)
	d := p.deploy("web", 2, func(d *appsv1.Deployment) {
		handedOff(d)
		d.Spec.Template.Annotations = map[string]string{corev1.PodDeletionCost: "7"}
	})
	p.budget("web", 1)
	p.untilReady("web", 2)
	sp := p.protect(nil)
	untilCost := func(want string, annotations int) {
		t.Helper()
		require.Eventually(t, func() bool {
			return !slices.ContainsFunc(p.podsOf("web"), func(pod corev1.Pod) bool {
				return pod.Annotations[corev1.PodDeletionCost] != want || len(pod.Annotations) != annotations
			})
		}, eventually, poll, "%s", lazy(func() string { return mustYAML(p.podsOf("web")) + p.protections() }))
	}
	untilCost(protection.DeletionCost, 2)
	p.patch(d, `{"metadata":{"annotations":{%q:null}}}`, infrav1.AnnotationHandOff)
	p.touch(sp)
	untilCost("7", 1)
}

// scaler makes an autoscaler of Deployment web.
func (p *protectedWorld) scaler(least, most int32) *autoscalingv2.HorizontalPodAutoscaler {
	p.Helper()
	scaler := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.space, Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MinReplicas: &least, MaxReplicas: most,
		},
	}
	p.create(scaler)
	return scaler
}

// changeAgainAndAgain has others change objects of the workload cluster until stop is called.
func (p *protectedWorld) changeAgainAndAgain(objects ...client.Object) (stop func()) {
	ctx, cancel := context.WithCancel(p.Context())
	var others sync.WaitGroup
	for _, obj := range objects {
		others.Go(func() {
			for i := 0; sleep.For(ctx, time.Millisecond); i++ {
				_ = p.nodes.Patch(ctx, obj, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"count":"%d"}}}`, i))) // fails when ctx ends
			}
		})
	}
	return func() {
		cancel()
		others.Wait()
	}
}

// deleteAmidChanges deletes a SpotProtection while others change objects of the workload
// cluster for a few seconds, and waits until it is gone.
func (p *protectedWorld) deleteAmidChanges(sp *infrav1.SpotProtection, objects ...client.Object) {
	p.Helper()
	stop := p.changeAgainAndAgain(objects...)
	defer stop()
	require.NoError(p, p.Delete(p.Context(), sp))
	began := time.Now()
	require.Eventually(p, func() bool {
		return p.Get(p.Context(), client.ObjectKeyFromObject(sp), sp) != nil || time.Since(began) > 3*time.Second
	}, eventually, poll)
	stop()
	p.untilGone(sp)
}

// TestKubeHandOffAutoscaler raises replicas as far as the autoscaler permits, holds them there
// by its floor, and leaves it to the autoscaler to lower them.
func TestKubeHandOffAutoscaler(t *testing.T) {
	p := newProtectedWorld(t)
	bridge, _ := p.machine("bridge", true, settled)
	d := p.deploy("web", 3, handedOff)
	p.budget("web", 1)
	p.untilReady("web", 3)
	scaler := p.scaler(2, 4)
	p.protect(nil)
	p.untilReplicas(d, 4)
	p.await(scaler, func() bool { return *scaler.Spec.MinReplicas == 4 }, "the autoscaler keeps them")
	lasting, _ := p.machine("lasting", false, 0)
	require.Eventually(t, func() bool { return p.on("web", lasting) == 1 }, eventually, poll)
	// Two more pods move: by then as many as before are ready elsewhere.
	for range 2 {
		for _, pod := range p.podsOf("web") {
			if pod.Spec.NodeName == bridge.Name {
				require.NoError(t, p.nodes.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
				break
			}
		}
	}
	p.await(scaler, func() bool { return *scaler.Spec.MinReplicas == 2 }, "its floor is as before")
	require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(d), d))
	require.EqualValues(t, 4, *d.Spec.Replicas, "the autoscaler lowers them")
}

// TestKubeHandOffEviction moves pods by eviction within the disruption budget, and changes no
// replicas, where a surge would be fought or cannot work.
func TestKubeHandOffEviction(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*appsv1.Deployment)
		keda   bool
		set    bool
	}{
		"StatefulSet": {set: true},
		"KEDA":        {keda: true},
		"GitOps":      {change: func(d *appsv1.Deployment) { d.Annotations["argocd.argoproj.io/tracking-id"] = "x" }},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProtectedWorld(t)
			bridge, _ := p.machine("bridge", true, settled)
			replicas := func() int32 { return 2 }
			if c.set {
				s := &appsv1.StatefulSet{
					ObjectMeta: metav1.ObjectMeta{Namespace: p.space, Name: "web", Annotations: map[string]string{infrav1.AnnotationHandOff: "true"}},
					Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: p.template("web")},
				}
				p.create(s)
			} else {
				d := p.deploy("web", 2, func(d *appsv1.Deployment) {
					handedOff(d)
					if c.change != nil {
						c.change(d)
					}
				})
				replicas = func() int32 {
					require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(d), d))
					return *d.Spec.Replicas
				}
			}
			if c.keda {
				p.create(&autoscalingv2.HorizontalPodAutoscaler{
					ObjectMeta: metav1.ObjectMeta{Namespace: p.space, Name: "keda-hpa-web", Labels: map[string]string{"app.kubernetes.io/managed-by": "keda-operator"}},
					Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
						ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MaxReplicas: 9,
					},
				})
			}
			p.budget("web", 1)
			p.untilReady("web", 2)
			sp := p.protect(nil)
			w := p.untilWorkload(sp, "web", func(w infrav1.ProtectedWorkload) bool { return w.HandOff != "" })
			require.Equal(t, infrav1.HandOffEviction, w.HandOff)
			require.NotEmpty(t, w.HandOffMessage)
			require.Eventually(t, func() bool { return p.on("web", bridge) == 1 }, eventually, poll, "%s", lazy(p.protections))
			p.touch(sp)
			never.True(t, func() bool { return p.on("web", bridge) < 1 }, 2*time.Second, 50*time.Millisecond, "the budget allows no more")
			require.EqualValues(t, 2, replicas())
			lasting, _ := p.machine("lasting", false, 0)
			p.untilOn("web", lasting, 2)
			require.EqualValues(t, 2, replicas())
		})
	}
}

// TestKubeHandOffRefused never scales a workload that does not ask for it, or is not admitted,
// or a pod that is not to be disrupted.
func TestKubeHandOffRefused(t *testing.T) {
	p := newProtectedWorld(t)
	bridge, _ := p.machine("bridge", true, settled)
	p.deploy("silent", 1, nil)
	p.budget("silent", 1)
	p.deploy("unadmitted", 1, handedOff)
	p.deploy("precious", 1, func(d *appsv1.Deployment) {
		handedOff(d)
		d.Spec.Template.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
	})
	p.budget("precious", 1)
	apps := []string{"silent", "unadmitted", "precious"}
	for _, app := range apps {
		p.untilReady(app, 1)
	}
	sp := p.protect(nil)
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return len(sp.Status.Workloads) == 3 }, "it is at work")
	p.touch(sp)
	never.True(t, func() bool {
		for _, app := range apps {
			d := &appsv1.Deployment{}
			if p.nodes.Get(t.Context(), client.ObjectKey{Namespace: p.space, Name: app}, d) == nil && *d.Spec.Replicas != 1 || p.on(app, bridge) != 1 {
				return true
			}
		}
		return false
	}, 2*time.Second, 100*time.Millisecond)
	require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(bridge), bridge))
	require.False(t, bridge.Spec.Unschedulable)
}

// TestKubeHandOffDrain hands pods off before a voluntary drain that has time enough evicts
// them. One that has not evicts them within their budget.
func TestKubeHandOffDrain(t *testing.T) {
	for name, c := range map[string]struct {
		long    time.Duration
		handOff bool
	}{
		"long":  {time.Hour, true},
		"short": {5 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProtectedWorld(t)
			old, instance := p.machine("old", false, 0)
			d := p.deploy("web", 2, handedOff)
			p.budget("web", 1)
			p.untilReady("web", 2)
			sp := p.protect(nil)
			p.untilWorkload(sp, "web", func(w infrav1.ProtectedWorkload) bool { return w.HandOff == infrav1.HandOffSurge })
			pause := func(paused string) { // else the surge is often faster than the drain
				patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, clusterv1.PausedAnnotation, paused)
				require.NoError(t, p.Patch(t.Context(), sp.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
			}
			pause(`""`)
			until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return conditions.IsTrue(sp, clusterv1.PausedCondition) }, "it is paused")
			p.drain(instance, nstance.CauseRollout, c.long)
			p.untilNode(old, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
			if c.handOff {
				never.True(t, func() bool { return p.on("web", old) < 2 }, 2*time.Second, 50*time.Millisecond, "the drain leaves them to the hand-off")
				pause("null")
				p.untilReplicas(d, 4)
				require.Equal(t, 2, p.on("web", old))
			} else {
				require.Eventually(t, func() bool { return p.on("web", old) == 1 }, eventually, poll, "as the budget permits")
			}
			lasting, _ := p.machine("lasting", false, 0)
			p.untilOn("web", lasting, 2)
			p.settledHandOff(d, 2)
			require.Eventually(t, func() bool { return slices.Contains(p.acknowledged(), instance.GetId()+": drained") }, eventually, poll, "the shard knows")
			var events corev1.EventList
			require.NoError(t, p.nodes.List(t.Context(), &events, client.InNamespace(p.space)))
			evicted := slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "EvictedByDrain" })
			require.Equal(t, !c.handOff, evicted)
		})
	}
}

// TestKubeHandOffInterrupted ends as it would have, when the bridge is lost in the middle, or
// the SpotProtection is deleted.
func TestKubeHandOffInterrupted(t *testing.T) {
	begun := func(t *testing.T) (*protectedWorld, *infrav1.SpotProtection, *appsv1.Deployment, *corev1.Node, *apiv1.Instance) {
		p := newProtectedWorld(t)
		bridge, instance := p.machine("bridge", true, settled)
		d := p.deploy("web", 2, handedOff)
		p.budget("web", 1)
		p.untilReady("web", 2)
		sp := p.protect(nil)
		p.untilReplicas(d, 4)
		return p, sp, d, bridge, instance
	}
	t.Run("the bridge is drained at once", func(t *testing.T) {
		p, _, d, _, instance := begun(t)
		p.drain(instance, nstance.CauseStandby, time.Minute)
		lasting, _ := p.machine("lasting", false, 0)
		p.untilOn("web", lasting, 2)
		p.settledHandOff(d, 2)
	})
	t.Run("the SpotProtection is deleted", func(t *testing.T) {
		p, sp, d, bridge, _ := begun(t)
		require.NoError(t, p.Delete(t.Context(), sp))
		p.untilGone(sp)
		require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(d), d))
		p.untilOn("web", bridge, 2)
		p.settledHandOff(d, 2)
		require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(bridge), bridge))
		require.False(t, bridge.Spec.Unschedulable)
	})
	t.Run("the SpotProtection is deleted while the bridge sleeps", func(t *testing.T) {
		p, sp, d, bridge, instance := begun(t)
		p.untilNode(bridge, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "the hand-off has cordoned it")
		lasting, _ := p.machine("lasting", false, 0)
		p.untilOn("web", lasting, 2)
		p.settledHandOff(d, 2)
		p.drain(instance, nstance.CauseStandby, time.Minute)
		require.Eventually(t, func() bool { return slices.Contains(p.acknowledged(), instance.GetId()+": drained") }, eventually, poll)
		instance.State, instance.WokenAt = string(nstance.Parked), nil
		p.put(instance, nstance.EventParked)

		require.NoError(t, p.Delete(t.Context(), sp))
		p.untilGone(sp)
		require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(bridge), bridge))
		require.True(t, bridge.Spec.Unschedulable, "it sleeps")

		instance.State, instance.Drain, instance.WokenAt = string(nstance.Waking), nil, timestamppb.Now()
		p.put(instance, nstance.EventDrainCancelled)
		p.untilNode(bridge, func(n *corev1.Node) bool { return !n.Spec.Unschedulable }, "it may have pods again")
		require.NotContains(t, bridge.Annotations, "nstance.dev/hand-off-cordoned")
	})
	t.Run("the SpotProtection is deleted while others change what it has changed", func(t *testing.T) {
		p, sp, d, bridge, _ := begun(t)
		p.untilNode(bridge, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
		p.deleteAmidChanges(sp, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: bridge.Name}})
		p.settledHandOff(d, 2)
		p.untilNode(bridge, func(n *corev1.Node) bool { return !n.Spec.Unschedulable }, "it is uncordoned")
	})
	t.Run("the SpotProtection is deleted while others change its autoscaler", func(t *testing.T) {
		p := newProtectedWorld(t)
		p.machine("bridge", true, settled)
		d := p.deploy("web", 3, handedOff)
		p.budget("web", 1)
		p.untilReady("web", 3)
		scaler := p.scaler(2, 4)
		sp := p.protect(nil)
		p.untilReplicas(d, 4)
		p.await(scaler, func() bool { return *scaler.Spec.MinReplicas == 4 }, "the autoscaler keeps them")
		p.deleteAmidChanges(sp, scaler.DeepCopy(), scaler.DeepCopy(), scaler.DeepCopy(), scaler.DeepCopy()) // it is written soon after it was read
		p.await(scaler, func() bool { return *scaler.Spec.MinReplicas == 2 }, "its floor is as before")
	})
	t.Run("it is not selected any more, while others change it", func(t *testing.T) {
		p, sp, d, _, _ := begun(t)
		changed := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}}
		stop := p.changeAgainAndAgain(changed, changed.DeepCopy(), changed.DeepCopy())
		defer stop()
		require.NoError(t, p.Patch(t.Context(), sp.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":{"matchLabels":{"app":"other"}}}}`))))
		until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return sp.Status.ObservedGeneration == sp.Generation }, "a pass has tried")
		stop()
		until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return len(sp.Status.Workloads) == 0 }, "it is forgotten")
		p.settledHandOff(d, 2)
	})
	t.Run("it is not asked for any more", func(t *testing.T) {
		p, sp, d, _, _ := begun(t)
		p.patch(d, `{"metadata":{"annotations":{%q:null}}}`, infrav1.AnnotationHandOff)
		p.touch(sp)
		p.settledHandOff(d, 2)
	})
}

// TestKubeStandby keeps stand-by machines out of pools, and their nodes cordoned while they
// are parked: the drain stands. It ends when they are woken, also in an operator that has
// started meanwhile.
func TestKubeStandby(t *testing.T) {
	p := newProtectedWorld(t)
	node, parked := p.machine("parked", true, 0)
	member := &apiv1.Instance{Id: p.space + "-member", Group: "pool", ProviderId: "m", NodeProviderId: "nstance:///" + p.space + "-member", State: string(nstance.Ready)}
	p.put(member, nstance.EventReady)
	spare := &apiv1.Instance{Id: p.space + "-spare", Group: "pool", ProviderId: "s", NodeProviderId: "nstance:///" + p.space + "-spare", State: string(nstance.Parked), Standby: true}
	p.put(spare, nstance.EventParked)
	p.pool(1, func(s *infrav1.NstanceMachinePoolSpec) { s.Group, s.Template = "pool", "vm" })
	pool := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "pool"}}
	until(p.world, pool, func(pool *infrav1.NstanceMachinePool) bool { return len(pool.Spec.ProviderIDList) > 0 }, "it has its member")
	require.Equal(t, []string{member.GetNodeProviderId()}, pool.Spec.ProviderIDList)

	p.drain(parked, nstance.CauseStandby, time.Second)
	p.untilNode(node, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
	require.Eventually(t, func() bool { return slices.Contains(p.acknowledged(), parked.GetId()+": drained") }, eventually, poll)
	parked.State, parked.WokenAt = string(nstance.Parked), nil
	p.put(parked, nstance.EventParked)
	p.stop()
	require.Eventually(t, func() bool { return time.Now().After(parked.GetDrain().GetDeadline().AsTime()) }, eventually, poll)
	p.start()
	never.True(t, func() bool {
		var n corev1.Node
		return p.nodes.Get(t.Context(), client.ObjectKeyFromObject(node), &n) == nil && !n.Spec.Unschedulable
	}, 3*time.Second, 100*time.Millisecond, "it stays cordoned")
	require.Equal(t, []string{parked.GetId() + ": drained"}, p.acknowledged(), "once")
	var machines infrav1.NstanceMachineList
	require.NoError(t, p.List(t.Context(), &machines, client.InNamespace(p.namespace)))
	require.Len(t, machines.Items, 1)

	parked.State, parked.Drain, parked.WokenAt = string(nstance.Waking), nil, timestamppb.Now()
	p.put(parked, nstance.EventDrainCancelled)
	p.untilNode(node, func(n *corev1.Node) bool { return !n.Spec.Unschedulable }, "it may have pods")
}
