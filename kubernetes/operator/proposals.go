package operator

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

// maxPatch bounds a patch in the status.
const maxPatch = 4096

// propose has the status say what keeps protected workloads from nodes that a cloud may take
// back, and applies that on request. What a GitOps controller has written is not changed.
func (c *protectionController) propose(ctx context.Context, s *survey) error {
	var interruptible []*corev1.Node
	for _, n := range s.nodes {
		if n.interruptible {
			interruptible = append(interruptible, n.Node)
		}
	}
	apply := ptr.Deref(s.sp.Spec.ApplyPatches, false)
	var errs []error
	for _, w := range s.admitted() {
		patch, err := protection.ProposePatch(&w.Workload, interruptible)
		if err != nil || patch == "" {
			errs = append(errs, err)
			continue
		}
		w.status.ProposedPatch = patch
		if len(patch) > maxPatch {
			w.status.ProposedPatch, w.status.Message = "", "the patch that lets it run on spot nodes is too long for the status"
		}
		if mark := protection.ManagedByGit(w.Object); mark != "" {
			w.status.Message = "proposedPatch belongs into its repository: it has the mark " + mark
		} else if apply {
			errs = append(errs, s.apply(ctx, w, patch))
		}
	}
	return errors.Join(append(errs, s.proposeNodePools(ctx, apply))...)
}

// apply patches a workload, once: afterwards there is nothing to propose.
func (s *survey) apply(ctx context.Context, w *surveyedWorkload, patch string) error {
	s.busy = true
	obj, ok := w.Object.DeepCopyObject().(client.Object)
	if !ok {
		return nil
	}
	err := s.objects.Patch(ctx, obj, client.RawPatch(types.StrategicMergePatchType, []byte(patch)), fieldOwner)
	if err == nil {
		w.status.ProposedPatch = ""
	}
	return ignoreGone(err)
}

// proposeNodePools does the same for NodePools of Karpenter, if none makes spot nodes.
func (s *survey) proposeNodePools(ctx context.Context, apply bool) error {
	s.sp.Status.NodePools = nil
	pools := &unstructured.UnstructuredList{}
	pools.SetGroupVersionKind(nodePoolKind.GroupVersion().WithKind(nodePoolKind.Kind + "List"))
	if err := s.objects.List(ctx, pools); meta.IsNoMatchError(err) {
		return nil // a cluster without Karpenter
	} else if err != nil {
		return err
	}
	proposals, err := protection.ProposeNodePools(pools.Items)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range proposals[:min(len(proposals), 64)] {
		mine := apply && slices.Contains(s.sp.Spec.NodePools, p.Name)
		i := slices.IndexFunc(pools.Items, func(u unstructured.Unstructured) bool { return u.GetName() == p.Name })
		if mine && protection.ManagedByGit(&pools.Items[i]) == "" {
			s.busy = true
			err := s.objects.Patch(ctx, pools.Items[i].DeepCopy(), client.RawPatch(types.MergePatchType, []byte(p.ProposedPatch)), fieldOwner)
			errs = append(errs, ignoreGone(err))
			continue
		}
		if len(p.ProposedPatch) <= maxPatch {
			s.sp.Status.NodePools = append(s.sp.Status.NodePools, infrav1.NodePoolProposal{Name: p.Name, ProposedPatch: p.ProposedPatch})
		}
	}
	return errors.Join(errs...)
}
