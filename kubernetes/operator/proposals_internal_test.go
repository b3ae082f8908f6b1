package operator

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodePools is a cluster with NodePools of Karpenter's, which make no spot nodes.
type nodePools struct {
	recorder
	pools []unstructured.Unstructured
	err   error // of the list
	fail  error // of patches
}

func (n *nodePools) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*unstructured.UnstructuredList).Items = n.pools //nolint:forcetypeassert // the test fails
	return n.err
}

func (n *nodePools) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return errors.Join(n.recorder.Patch(ctx, obj, patch, opts...), n.fail)
}

// tainted is a node of the spot market with a taint that says so.
func (s *survey) tainted(value string) {
	n := s.with("spot", nil)
	n.interruptible = true
	n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/lifecycle", Value: value, Effect: corev1.TaintEffectNoSchedule}}
}

// TestProposesPatch: a patch is shown, and applied on request, but not where a GitOps controller would take
// it back. The API server takes no status that is too long.
func TestProposesPatch(t *testing.T) {
	refused := errors.New("a policy says so")
	for name, c := range map[string]struct {
		apply   bool
		change  func(*survey, *nodePools)
		shown   bool
		applied bool
		says    string
	}{
		"shown":       {false, nil, true, false, ""},
		"applied":     {true, nil, false, true, ""},
		"not applied": {true, func(_ *survey, n *nodePools) { n.fail = refused }, true, true, ""},
		"a GitOps controller has it": {true, func(s *survey, _ *nodePools) {
			s.workloads[0].Object.SetLabels(map[string]string{"helm.toolkit.fluxcd.io/name": "x"})
		}, true, false, "helm.toolkit.fluxcd.io/name"},
		"too long": {false, func(s *survey, _ *nodePools) { s.tainted(strings.Repeat("x", maxPatch)) }, false, false, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := claiming(), &nodePools{err: &meta.NoKindMatchError{}} // without Karpenter
			s.objects, s.sp.Spec.ApplyPatches = n, &c.apply
			w := s.workload(1)
			s.tainted("spot")
			if c.change != nil {
				c.change(s, n)
			}
			err := (&protectionController{}).propose(t.Context(), s)
			require.Equal(t, n.fail != nil, err != nil)
			require.Equal(t, c.shown, w.status.ProposedPatch != "")
			require.Equal(t, c.applied, len(n.patches) == 1)
			require.Equal(t, c.applied, s.busy)
			require.Contains(t, w.status.Message, c.says)
		})
	}
}

// TestProposesNodePools: of Karpenter's NodePools those that are named are changed, on request, unless a
// GitOps controller has them.
func TestProposesNodePools(t *testing.T) {
	for name, c := range map[string]struct {
		apply   bool
		pools   []string
		mark    string
		long    bool
		shown   bool
		applied bool
	}{
		"shown":                      {false, []string{"p"}, "", false, true, false},
		"applied":                    {true, []string{"p"}, "", false, false, true},
		"not named":                  {true, []string{"q"}, "", false, true, false},
		"a GitOps controller has it": {true, []string{"p"}, "argocd.argoproj.io/tracking-id", false, true, false},
		"too long":                   {false, nil, "", true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := claiming(), &nodePools{}
			pool := unstructured.Unstructured{Object: map[string]any{}}
			pool.SetName("p")
			pool.SetAnnotations(map[string]string{c.mark: "x"})
			requirements := []any{map[string]any{"key": "karpenter.sh/capacity-type", "operator": "In", "values": []any{"on-demand"}}}
			if c.long {
				requirements = append(requirements, map[string]any{"key": "zone", "operator": "In", "values": []any{strings.Repeat("x", maxPatch)}})
			}
			require.NoError(t, unstructured.SetNestedSlice(pool.Object, requirements, "spec", "template", "spec", "requirements"))
			n.pools = []unstructured.Unstructured{pool}
			s.objects, s.sp.Spec.ApplyPatches, s.sp.Spec.NodePools = n, ptr.To(c.apply), c.pools
			require.NoError(t, (&protectionController{}).propose(t.Context(), s))
			require.Equal(t, c.shown, len(s.sp.Status.NodePools) == 1)
			require.Equal(t, c.applied, len(n.patches) == 1)
			require.Equal(t, c.applied, s.busy)
		})
	}
}
