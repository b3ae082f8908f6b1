package protection_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

func scaler(maximum int32, change ...func(*autoscalingv2.HorizontalPodAutoscaler)) autoscalingv2.HorizontalPodAutoscaler {
	s := autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "scaler", Labels: map[string]string{}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "web"}, MinReplicas: ptr.To[int32](1), MaxReplicas: maximum,
		},
	}
	for _, f := range change {
		f(&s)
	}
	return s
}

func neverLowers(s *autoscalingv2.HorizontalPodAutoscaler) {
	s.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{SelectPolicy: ptr.To(autoscalingv2.DisabledPolicySelect)}}
}

func TestChooseHandOff(t *testing.T) {
	labelled := func(key, value string) func(*autoscalingv2.HorizontalPodAutoscaler) {
		return func(s *autoscalingv2.HorizontalPodAutoscaler) { s.Labels[key] = value }
	}
	annotated := func(key string) *protection.Workload {
		return deployment(2, func(d *appsv1.Deployment) { d.Annotations[key] = "x" })
	}
	type scalers = []autoscalingv2.HorizontalPodAutoscaler
	of := func(s ...autoscalingv2.HorizontalPodAutoscaler) scalers { return s }
	other := scaler(2)
	other.Spec.ScaleTargetRef.Name = "other"
	elsewhere := scaler(2)
	elsewhere.Namespace = "other"
	surged := deployment(5, func(d *appsv1.Deployment) {
		d.Annotations[protection.AnnotationSurge] = `{"added":2,"replicas":5,"scaler":"scaler","floor":5}`
	})
	for name, c := range map[string]struct {
		w       *protection.Workload
		scalers scalers
		want    infrav1.HandOffMethod
	}{
		"a Deployment":                  {deployment(2), nil, infrav1.HandOffSurge},
		"a StatefulSet":                 {statefulSet(2), nil, infrav1.HandOffEviction},
		"an autoscaler with room":       {deployment(2), of(scaler(3)), infrav1.HandOffSurge},
		"an autoscaler without room":    {deployment(2), of(scaler(2)), infrav1.HandOffEviction},
		"two autoscalers":               {deployment(2), of(scaler(3), scaler(4)), infrav1.HandOffEviction},
		"the autoscaler of another":     {deployment(2), of(other), infrav1.HandOffSurge},
		"the one of another namespace":  {deployment(2), of(elsewhere), infrav1.HandOffSurge},
		"a surge took all the room":     {surged, of(scaler(5)), infrav1.HandOffSurge},
		"KEDA, by its managed-by label": {deployment(2), of(scaler(9, labelled("app.kubernetes.io/managed-by", "keda-operator"))), infrav1.HandOffEviction},
		"KEDA, by its name label":       {deployment(2), of(scaler(9, labelled("scaledobject.keda.sh/name", "web"))), infrav1.HandOffEviction},
		"KEDA, by its owner": {deployment(2), of(scaler(9, func(s *autoscalingv2.HorizontalPodAutoscaler) {
			s.OwnerReferences = []metav1.OwnerReference{{Kind: "ScaledObject", Name: "web"}}
		})), infrav1.HandOffEviction},
		"an autoscaler that never lowers replicas": {deployment(2), of(scaler(9, neverLowers)), infrav1.HandOffEviction},
		"an autoscaler of Flux":                    {deployment(2), of(scaler(9, labelled("kustomize.toolkit.fluxcd.io/name", "apps"))), infrav1.HandOffEviction},
		"Argo CD, by annotation":                   {annotated("argocd.argoproj.io/tracking-id"), nil, infrav1.HandOffEviction},
		"Argo CD, by label":                        {deployment(2, func(d *appsv1.Deployment) { d.Labels["argocd.argoproj.io/instance"] = "x" }), nil, infrav1.HandOffEviction},
		"Flux's kustomizations":                    {deployment(2, func(d *appsv1.Deployment) { d.Labels["kustomize.toolkit.fluxcd.io/name"] = "x" }), nil, infrav1.HandOffEviction},
		"Flux's Helm releases":                     {deployment(2, func(d *appsv1.Deployment) { d.Labels["helm.toolkit.fluxcd.io/name"] = "x" }), nil, infrav1.HandOffEviction},
		"a volume": {deployment(2, func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		}), nil, infrav1.HandOffEviction},
	} {
		t.Run(name, func(t *testing.T) {
			h := protection.ChooseHandOff(c.w, c.scalers)
			require.Equal(t, c.want, h.Method, h.Why)
			require.Equal(t, c.want == infrav1.HandOffEviction, h.Why != "")
		})
	}
}

// A story is a Deployment, perhaps with an autoscaler, and the steps that were made.
type story struct {
	*testing.T
	w      *protection.Workload
	scaler *autoscalingv2.HorizontalPodAutoscaler
}

// step makes the next step as the operator does, and reports whether there was one.
func (s *story) step(p protection.Progress) bool {
	step := protection.NextStep(s.w, s.scaler, p)
	if step == nil {
		return false
	}
	d := s.w.Object.(*appsv1.Deployment).DeepCopy()
	delete(d.Annotations, protection.AnnotationSurge)
	if step.Surge != nil {
		record, err := json.Marshal(step.Surge)
		require.NoError(s, err)
		d.Annotations[protection.AnnotationSurge] = string(record)
	}
	if step.Replicas != nil {
		d.Spec.Replicas = step.Replicas
	}
	if step.Floor != nil {
		require.Equal(s, s.scaler.Spec.MinReplicas, step.FloorWas)
		s.scaler.Spec.MinReplicas = step.Floor
	}
	require.Equal(s, step.Forget, step.Surge == nil)
	w := protection.DeploymentWorkload(d)
	s.w = &w
	return true
}

// scaleTo has another one than the operator set the replicas.
func (s *story) scaleTo(replicas int32) {
	d := s.w.Object.(*appsv1.Deployment)
	d.Spec.Replicas = &replicas
	s.w = ptr.To(protection.DeploymentWorkload(d))
}

func (s *story) replicas(want int32) {
	s.Helper()
	require.Equal(s, want, s.w.Replicas)
}

func at(after time.Duration, leaving, settled, unready int) protection.Progress {
	return protection.Progress{Now: now.Add(after), Leaving: leaving, Settled: settled, Unready: unready, Wanted: true}
}

func TestSurge(t *testing.T) {
	s := &story{T: t, w: deployment(4)}
	require.False(t, s.step(at(0, 0, 4, 0)), "none leaves")
	require.True(t, s.step(at(0, 2, 2, 0)))
	s.replicas(6)
	require.False(t, s.step(at(time.Second, 2, 2, 2)), "those that were added are not ready")
	require.False(t, s.step(at(time.Second, 2, 3, 1)), "not all of them")
	require.False(t, s.step(at(time.Minute, 2, 4, 1)), "the ReplicaSet would delete the one that is not ready")
	require.True(t, s.step(at(time.Minute, 2, 4, 0)))
	s.replicas(4)
	require.False(t, s.step(at(time.Minute, 2, 4, 0)), "the cheap ones are on their way")
	require.True(t, s.step(at(2*time.Minute, 0, 4, 0)), "the record goes")
	require.Zero(t, protection.Surged(s.w))
	require.NotContains(t, s.w.Object.GetAnnotations(), protection.AnnotationSurge)
	require.False(t, s.step(at(2*time.Minute, 0, 4, 0)))
}

// TestSurgeAgain surges again after the interval, if pods are still there.
func TestSurgeAgain(t *testing.T) {
	s := &story{T: t, w: deployment(4)}
	require.True(t, s.step(at(0, 2, 2, 0)))
	require.True(t, s.step(at(time.Minute, 2, 4, 0)))
	s.replicas(4)
	require.False(t, s.step(at(5*time.Minute, 1, 3, 0)))
	require.True(t, s.step(at(6*time.Minute, 1, 3, 0)))
	require.True(t, s.step(at(6*time.Minute, 1, 3, 0)))
	s.replicas(5)

	s = &story{T: t, w: deployment(4)}
	require.True(t, s.step(at(0, 2, 2, 0)))
	require.True(t, s.step(at(time.Minute, 2, 4, 0)))
	over := at(2*time.Minute, 1, 3, 0)
	over.Finished = true
	require.True(t, s.step(over), "no other one is wanted: the record goes at once")
	require.NotContains(t, s.w.Object.GetAnnotations(), protection.AnnotationSurge)
}

// TestSurgeGrows: more leave than were added.
func TestSurgeGrows(t *testing.T) {
	t.Run("others have scaled", func(t *testing.T) {
		s := &story{T: t, w: deployment(4)}
		require.True(t, s.step(at(0, 1, 3, 0)))
		s.scaleTo(10)
		require.False(t, s.step(at(5*time.Minute, 3, 1, 6)))
		s.replicas(10)
	})
	t.Run("an autoscaler", func(t *testing.T) {
		auto := scaler(6)
		s := &story{T: t, w: deployment(4), scaler: &auto}
		require.True(t, s.step(at(0, 1, 3, 0)))
		require.False(t, s.step(at(5*time.Minute, 3, 1, 1)), "its floor is what was raised")
		s.replicas(5)
	})
	s := &story{T: t, w: deployment(4)}
	require.True(t, s.step(at(0, 1, 3, 0)))
	s.replicas(5)
	require.False(t, s.step(at(time.Minute, 3, 1, 1)))
	require.True(t, s.step(at(5*time.Minute, 3, 1, 1)))
	s.replicas(7)
	require.True(t, s.step(at(6*time.Minute, 3, 4, 0)))
	s.replicas(4)
}

// TestSurgeInterrupted ends a surge the same way whatever happens in between.
func TestSurgeInterrupted(t *testing.T) {
	for name, p := range map[string]protection.Progress{
		"the pods were evicted":       at(time.Minute, 0, 2, 2),
		"it is not wanted any more":   {Now: now.Add(time.Minute), Leaving: 2, Settled: 2, Unready: 2, Finished: true},
		"a new operator, hours later": at(9*time.Hour, 0, 4, 0),
	} {
		t.Run(name, func(t *testing.T) {
			s := &story{T: t, w: deployment(4)}
			require.True(t, s.step(at(0, 2, 2, 0)))
			s.replicas(6)
			require.True(t, s.step(p))
			s.replicas(4)
			require.NotContains(t, s.w.Object.GetAnnotations(), protection.AnnotationSurge)
		})
	}
	t.Run("others have scaled", func(t *testing.T) {
		s := &story{T: t, w: deployment(4)}
		require.True(t, s.step(at(0, 2, 2, 0)))
		s.scaleTo(10)
		require.True(t, s.step(at(time.Minute, 0, 10, 0)))
		s.replicas(10)
	})
	for name, record := range map[string]string{
		"no JSON": `surged`, "added too many": `{"added":501,"replicas":4}`, "added fewer than none": `{"added":-3,"replicas":4}`,
	} {
		t.Run("an unreadable record: "+name, func(t *testing.T) {
			s := &story{T: t, w: deployment(4, func(d *appsv1.Deployment) { d.Annotations[protection.AnnotationSurge] = record })}
			require.Zero(t, protection.Surged(s.w))
			require.True(t, s.step(at(time.Minute, 2, 4, 0)))
			s.replicas(4)
			require.NotContains(t, s.w.Object.GetAnnotations(), protection.AnnotationSurge)
		})
	}
}

func TestNoSurge(t *testing.T) {
	rolling := deployment(4)
	rolling.Settled = false
	for name, c := range map[string]struct {
		w *protection.Workload
		p protection.Progress
	}{
		"a rollout is under way": {rolling, at(0, 2, 2, 0)},
		"no replicas":            {deployment(0), at(0, 1, 0, 0)},
		"not wanted":             {deployment(4), protection.Progress{Now: now, Leaving: 2}},
	} {
		t.Run(name, func(t *testing.T) { require.Nil(t, protection.NextStep(c.w, nil, c.p)) })
	}
}

// TestSurgeWithAutoscaler raises the floor, as far as the maximum permits, and leaves it to
// the autoscaler to lower the replicas.
func TestSurgeWithAutoscaler(t *testing.T) {
	auto := scaler(5)
	s := &story{T: t, w: deployment(4), scaler: &auto}
	require.True(t, s.step(at(0, 3, 1, 0)))
	s.replicas(5)
	require.EqualValues(t, 5, *auto.Spec.MinReplicas)
	require.False(t, s.step(at(time.Second, 3, 1, 1)))

	auto.Spec.MinReplicas = ptr.To[int32](1)
	require.True(t, s.step(at(time.Second, 3, 1, 1)), "an operator ended before it could raise the floor")
	require.EqualValues(t, 5, *auto.Spec.MinReplicas)

	require.True(t, s.step(at(time.Minute, 3, 4, 0)))
	s.replicas(5)
	require.EqualValues(t, 1, *auto.Spec.MinReplicas)

	t.Run("the floor that others set stays", func(t *testing.T) {
		auto := scaler(9)
		s := &story{T: t, w: deployment(4), scaler: &auto}
		require.True(t, s.step(at(0, 2, 2, 0)))
		auto.Spec.MinReplicas = ptr.To[int32](3)
		require.True(t, s.step(at(time.Minute, 0, 4, 0)))
		require.EqualValues(t, 3, *auto.Spec.MinReplicas)
	})
	t.Run("the maximum is lowered below the floor", func(t *testing.T) {
		auto := scaler(9)
		s := &story{T: t, w: deployment(4), scaler: &auto}
		require.True(t, s.step(at(0, 2, 2, 0)))
		auto.Spec.MinReplicas, auto.Spec.MaxReplicas = ptr.To[int32](1), 5
		require.False(t, s.step(at(time.Second, 2, 2, 2)), "the API server refuses a floor above the maximum")
	})
	t.Run("the autoscaler is deleted", func(t *testing.T) {
		auto := scaler(9)
		s := &story{T: t, w: deployment(4), scaler: &auto}
		require.True(t, s.step(at(0, 2, 2, 0)))
		s.replicas(6)
		s.scaler = nil
		require.True(t, s.step(at(time.Minute, 2, 4, 0)))
		s.replicas(4)
	})
	t.Run("the autoscaler does not lower replicas any more", func(t *testing.T) {
		auto := scaler(9)
		s := &story{T: t, w: deployment(4), scaler: &auto}
		require.True(t, s.step(at(0, 2, 2, 0)))
		neverLowers(&auto)
		require.True(t, s.step(at(time.Minute, 2, 4, 0)))
		s.replicas(4)
		require.EqualValues(t, 1, *auto.Spec.MinReplicas)
	})
}
