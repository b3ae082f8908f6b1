package operator

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/memkube"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// TestSurgeStep: a Deployment is surged while a drain waits for that. Where others have it, or it does
// not ask for that any more, drains evict its pods, and what a surge did is taken back.
func TestSurgeStep(t *testing.T) {
	begun := func(o *oneDeployment) {
		o.deployment.Annotations[protection.AnnotationSurge] = `{"added":2,"replicas":4,"since":"2026-01-02T03:04:05Z"}`
		o.deployment.Spec.Replicas = ptr.To[int32](4)
	}
	for name, c := range map[string]struct {
		change func(*oneDeployment)
		wanted bool
		want   int32
		evicts bool
	}{
		"a drain waits":                 {func(*oneDeployment) {}, true, 3, false},
		"none does":                     {func(*oneDeployment) {}, false, 2, false},
		"it is surged":                  {begun, true, 4, false},
		"none waits any more":           {begun, false, 4, false},
		"it asks for that no more":      {func(o *oneDeployment) { begun(o); delete(o.deployment.Annotations, infrav1.AnnotationHandOff) }, true, 2, true},
		"a GitOps controller has it":    {func(o *oneDeployment) { begun(o); o.deployment.Annotations["argocd.argoproj.io/tracking-id"] = "x" }, true, 2, true},
		"a SpotProtection hands it off": {func(o *oneDeployment) { _, sp := surged(); o.protections = []infrav1.SpotProtection{*sp} }, true, 2, false},
		"one of another cluster does": {func(o *oneDeployment) {
			_, sp := surged()
			sp.Spec.ClusterName = "d"
			o.protections = []infrav1.SpotProtection{*sp}
		}, true, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, _ := surged()
			d, pod := cluster.deployment, &cluster.pods[0]
			d.Annotations, d.Spec.Replicas = map[string]string{infrav1.AnnotationHandOff: "true"}, ptr.To[int32](2)
			pod.Spec.NodeName, pod.Annotations[infrav1.AnnotationHandOff] = "n", "true"
			c.change(cluster)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Unschedulable: true}}
			drained := &apiv1.Instance{Drain: &apiv1.Drain{Executor: string(nstance.ExecutorOperator)}}
			s := &survey{
				fleet: &fleet{key: client.ObjectKey{Namespace: "ns", Name: "c"}}, objects: cluster, now: time.Now(), drains: true,
				nodes: map[string]*surveyedNode{"n": {Node: node, instance: drained}},
			}
			nodes := &nodeDrainer{pods: &podWatch{cluster: "c"}, surges: newSurges(func() {})}
			waits := func() bool {
				return nodes.surges.waits(nstance.Drain{StartedAt: s.now, Deadline: s.now.Add(10 * time.Minute)}, pod, s.now)
			}
			require.True(t, waits())
			require.NoError(t, (&surgeController{Client: cluster}).step(t.Context(), s, nodes, d, c.wanted))
			require.Equal(t, c.want, *cluster.deployment.Spec.Replicas)
			require.Equal(t, c.want == 3 || c.want == 4, protection.Surged(ptr.To(protection.DeploymentWorkload(cluster.deployment))) > 0)
			require.Equal(t, c.evicts, !waits())
		})
	}
}

// TestSurgePasses: there are passes for as long as a drain asks for a Deployment, or one is surged: what
// no drain asks for is forgotten by a pass. One that both know of is one, and one that is deleted is none.
func TestSurgePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, _ := surged()
		drainer, err := nodedrain.New(memkube.New().Config(), drain.New(nil), nil)
		require.NoError(t, err)
		told := 0
		nodes := &nodeDrainer{
			Drainer: drainer, access: &nodeAccess{}, pods: &podWatch{cluster: "c"}, surges: newSurges(func() { told++ }), workloads: &workloadCluster{objects: cluster},
		}
		fl := &fleet{key: client.ObjectKey{Namespace: "ns", Name: "infra"}, nodes: nodes}
		f := newFleets(nil, slog.New(slog.DiscardHandler))
		f.byCluster[fl.key], fl.fleets = fl, f
		c := &surgeController{Client: cluster, fleets: f}
		reconcile := func() time.Duration {
			result, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: fl.key})
			require.NoError(t, err)
			return result.RequeueAfter
		}
		require.Zero(t, reconcile())

		pod := &cluster.pods[0]
		pod.Annotations[infrav1.AnnotationHandOff] = "true"
		asked := func() {
			require.True(t, nodes.surges.waits(nstance.Drain{StartedAt: time.Now(), Deadline: time.Now().Add(time.Hour)}, pod, time.Now()))
		}
		deployment := cluster.deployment
		cluster.deployment = nil
		asked()
		require.Equal(t, surgePass, reconcile(), "it may come back")
		pass(wantedFor + time.Second)
		require.Zero(t, reconcile())
		asked()
		require.Equal(t, 2, told, "it was forgotten")

		cluster.deployment = deployment
		deployment.Labels = map[string]string{labelSurge: "true"}
		all, err := c.deployments(t.Context(), &survey{objects: cluster}, map[client.ObjectKey]bool{{Namespace: "ns", Name: "web"}: true})
		require.NoError(t, err)
		require.Len(t, all, 1)
		pass(wantedFor + time.Second)
		require.Equal(t, surgePass, reconcile(), "it is surged")

		other, _ := surged()
		cluster.deployment, cluster.refuse = other.deployment, errors.New("a webhook refuses")
		cluster.deployment.Labels = map[string]string{labelSurge: "true"}
		for range 12 {
			require.Equal(t, surgePass, reconcile(), "others wait no longer for that")
		}
	})
}

// oneHangs is a cluster whose API server does not answer a patch of one Deployment.
type oneHangs struct {
	*oneDeployment
	name string
}

func (o oneHangs) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if obj.GetName() == o.name {
		<-ctx.Done()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return o.oneDeployment.Patch(ctx, obj, patch, opts...)
}

// TestSurgesApart: a Deployment whose requests hang, or fail, keeps no other from its step.
func TestSurgesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, _ := surged()
		hangs, web := cluster.deployment.DeepCopy(), cluster.deployment.DeepCopy()
		hangs.Name = "hangs"
		s := &survey{fleet: &fleet{key: client.ObjectKey{Namespace: "ns", Name: "c"}}, objects: oneHangs{cluster, "hangs"}, now: time.Now(), drains: true}
		nodes := &nodeDrainer{pods: &podWatch{cluster: "c"}, surges: newSurges(func() {})}
		err := (&surgeController{Client: cluster}).steps(t.Context(), s, nodes, []appsv1.Deployment{*hangs, *web}, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "ns/hangs")
		require.Equal(t, "web", cluster.deployment.Name)
		require.EqualValues(t, 2, *cluster.deployment.Spec.Replicas, "its surge is taken back")
	})
}

// TestSurgesCannotBeListed: while a drain waits there is another pass soon, and else one after a
// backoff. The log says why once.
func TestSurgesCannotBeListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cluster, _ := surged()
		drainer, err := nodedrain.New(memkube.New().Config(), drain.New(nil), nil)
		require.NoError(t, err)
		nodes := &nodeDrainer{
			Drainer: drainer, access: &nodeAccess{}, pods: &podWatch{cluster: "c"}, surges: newSurges(func() {}), workloads: &workloadCluster{objects: unlistable{cluster}},
		}
		fl := &fleet{key: client.ObjectKey{Namespace: "ns", Name: "infra"}, nodes: nodes}
		f := newFleets(nil, slog.New(slog.NewTextHandler(&log, nil)))
		f.byCluster[fl.key], fl.fleets = fl, f
		pass := func() (ctrl.Result, error) {
			return (&surgeController{Client: cluster, fleets: f}).Reconcile(t.Context(), ctrl.Request{NamespacedName: fl.key})
		}
		_, err = pass()
		require.ErrorContains(t, err, "forbidden")
		pod := &cluster.pods[0]
		pod.Annotations[infrav1.AnnotationHandOff] = "true"
		require.True(t, nodes.surges.waits(nstance.Drain{StartedAt: time.Now(), Deadline: time.Now().Add(time.Hour)}, pod, time.Now()))
		for range 3 {
			result, err := pass()
			require.NoError(t, err)
			require.Equal(t, surgePass, result.RequeueAfter)
		}
		require.Equal(t, 1, strings.Count(log.String(), "forbidden"))
	})
}

// An unlistable cluster lists nothing.
type unlistable struct{ client.Client }

func (unlistable) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("forbidden")
}
