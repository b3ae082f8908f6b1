package protection_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

func node(labels map[string]string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.NodeSpec{Taints: taints}}
}

func TestInterruptible(t *testing.T) {
	for label, value := range map[string]string{
		"cluster.x-k8s.io/interruptible": "", "karpenter.sh/capacity-type": "spot", "eks.amazonaws.com/capacityType": "SPOT",
		"cloud.google.com/gke-spot": "true", "kubernetes.azure.com/scalesetpriority": "spot", "node.kubernetes.io/lifecycle": "spot",
	} {
		require.True(t, protection.Interruptible(node(map[string]string{label: value})), label)
	}
	require.False(t, protection.Interruptible(node(nil)))
	require.False(t, protection.Interruptible(node(map[string]string{"karpenter.sh/capacity-type": "on-demand"})))
}

func TestProposePatch(t *testing.T) {
	requiring := func(terms ...corev1.NodeSelectorRequirement) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: terms}},
			}}}
		}
	}
	selecting := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{"karpenter.sh/capacity-type": "on-demand", "disk": "ssd"}
	}
	zone := corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}
	azure := node(map[string]string{"kubernetes.azure.com/scalesetpriority": "spot"},
		corev1.Taint{Key: "kubernetes.azure.com/scalesetpriority", Value: "spot", Effect: corev1.TaintEffectNoSchedule},
		corev1.Taint{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule})
	for name, c := range map[string]struct {
		change func(*appsv1.Deployment)
		nodes  []*corev1.Node
		check  func(*testing.T, corev1.PodSpec) // nil: there is nothing to propose
	}{
		"nothing": {func(*appsv1.Deployment) {}, []*corev1.Node{node(nil)}, nil},
		"node selector": {selecting, nil, func(t *testing.T, s corev1.PodSpec) {
			require.Equal(t, map[string]string{"disk": "ssd"}, s.NodeSelector)
		}},
		"In": {requiring(zone, corev1.NodeSelectorRequirement{Key: "karpenter.sh/capacity-type", Operator: corev1.NodeSelectorOpIn, Values: []string{"on-demand"}}), nil, func(t *testing.T, s corev1.PodSpec) {
			got := s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions
			require.Equal(t, []string{"on-demand", "spot"}, got[1].Values)
			require.Equal(t, zone, got[0])
		}},
		"NotIn, and nothing else": {requiring(corev1.NodeSelectorRequirement{Key: "eks.amazonaws.com/capacityType", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"SPOT"}}), nil, func(t *testing.T, s corev1.PodSpec) {
			require.Nil(t, s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		}},
		"DoesNotExist": {requiring(zone, corev1.NodeSelectorRequirement{Key: "cluster.x-k8s.io/interruptible", Operator: corev1.NodeSelectorOpDoesNotExist}), nil, func(t *testing.T, s corev1.PodSpec) {
			require.Len(t, s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions, 1)
		}},
		"In, with spot": {requiring(corev1.NodeSelectorRequirement{Key: "karpenter.sh/capacity-type", Operator: corev1.NodeSelectorOpIn, Values: []string{"spot"}}), nil, nil},
		"taint": {func(*appsv1.Deployment) {}, []*corev1.Node{azure, azure}, func(t *testing.T, s corev1.PodSpec) {
			require.Equal(t, []corev1.Toleration{{Key: "kubernetes.azure.com/scalesetpriority", Operator: corev1.TolerationOpEqual, Value: "spot", Effect: corev1.TaintEffectNoSchedule}}, s.Tolerations)
		}},
		"taint that is tolerated with another effect": {func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}
		}, []*corev1.Node{azure}, func(t *testing.T, s corev1.PodSpec) {
			require.Len(t, s.Tolerations, 2)
			require.Equal(t, corev1.TaintEffectNoSchedule, s.Tolerations[1].Effect)
		}},
		"taint that keeps no pod away": {func(*appsv1.Deployment) {}, []*corev1.Node{node(nil, corev1.Taint{Key: "cloud.google.com/gke-spot", Value: "true", Effect: corev1.TaintEffectPreferNoSchedule})}, nil},
		"the field of a term": {func(d *appsv1.Deployment) {
			requiring(corev1.NodeSelectorRequirement{Key: "cloud.google.com/gke-spot", Operator: corev1.NodeSelectorOpDoesNotExist})(d)
			terms := d.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			terms[0].MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}
		}, nil, func(t *testing.T, s corev1.PodSpec) {
			term := s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0]
			require.Empty(t, term.MatchExpressions)
			require.Len(t, term.MatchFields, 1)
		}},
		"taint that is tolerated": {func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}, []*corev1.Node{azure}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := deployment(2, c.change)
			patch, err := protection.ProposePatch(w, c.nodes)
			require.NoError(t, err)
			if c.check == nil {
				require.Empty(t, patch)
				return
			}
			before, err := json.Marshal(w.Object)
			require.NoError(t, err)
			after, err := strategicpatch.StrategicMergePatch(before, []byte(patch), appsv1.Deployment{})
			require.NoError(t, err)
			var d appsv1.Deployment
			require.NoError(t, json.Unmarshal(after, &d))
			c.check(t, d.Spec.Template.Spec)
			applied := protection.DeploymentWorkload(&d)
			again, err := protection.ProposePatch(&applied, c.nodes)
			require.NoError(t, err)
			require.Empty(t, again, "once it is applied there is nothing left")
		})
	}
}

func TestProposeNodePools(t *testing.T) {
	pool := func(requirements ...any) unstructured.Unstructured {
		u := unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"requirements": requirements}}}}}
		u.SetName("default")
		return u
	}
	capacity := func(operator string, values ...any) any {
		return map[string]any{"key": "karpenter.sh/capacity-type", "operator": operator, "values": values}
	}
	zone := map[string]any{"key": "zone", "operator": "In", "values": []any{"a"}}
	for name, c := range map[string]struct {
		pools []unstructured.Unstructured
		want  int
	}{
		"on demand":              {[]unstructured.Unstructured{pool(zone, capacity("In", "on-demand"))}, 1},
		"not spot":               {[]unstructured.Unstructured{pool(capacity("NotIn", "spot"))}, 1},
		"no requirement":         {[]unstructured.Unstructured{pool(zone)}, 1},
		"spot":                   {[]unstructured.Unstructured{pool(capacity("In", "spot"))}, 0},
		"not on demand":          {[]unstructured.Unstructured{pool(capacity("NotIn", "on-demand"))}, 0},
		"one of them makes spot": {[]unstructured.Unstructured{pool(capacity("In", "on-demand")), pool(capacity("In", "spot", "on-demand"))}, 0},
		"none":                   {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := protection.ProposeNodePools(c.pools)
			require.NoError(t, err)
			require.Len(t, got, c.want)
			if c.want > 0 {
				var patched unstructured.Unstructured
				require.NoError(t, json.Unmarshal([]byte(got[0].ProposedPatch), &patched.Object))
				again, err := protection.ProposeNodePools([]unstructured.Unstructured{patched})
				require.NoError(t, err)
				require.Empty(t, again)
			}
		})
	}
}
