//go:build kube

package operator_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// TestKubeTemplateScale shows the capacity of machines of a template, and its corrections.
func TestKubeTemplateScale(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	template := &infrav1.NstanceMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web"}}
	template.Spec.Template.Spec.Group = "web"
	template.Spec.Scale = infrav1.Scale{
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi")},
		NodeInfo: infrav1.NodeInfo{Architecture: "amd64", OperatingSystem: "linux"},
	}
	require.NoError(t, w.Create(t.Context(), template))
	shown := func(cpu string) func(*infrav1.NstanceMachineTemplate) bool {
		return func(t *infrav1.NstanceMachineTemplate) bool {
			return t.Status.Capacity.Cpu().String() == cpu && t.Status.Capacity.Memory().String() == "8Gi" && t.Status.NodeInfo.Architecture == "amd64"
		}
	}
	until(w, template, shown("2"), "shown")
	base := template.DeepCopy()
	template.Spec.Capacity[corev1.ResourceCPU] = resource.MustParse("4")
	require.NoError(t, w.Patch(t.Context(), template, client.MergeFrom(base)))
	until(w, template, shown("4"), "corrected")
}
