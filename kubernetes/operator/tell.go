package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// fieldOwner owns what the operator writes on objects of others.
const fieldOwner = client.FieldOwner("nstance-operator")

// PreDrainHook is the annotation that keeps Cluster API from draining the node of a Machine
// while a drain of ours runs.
const PreDrainHook = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/nstance"

// tell has Machine and Node say what happens to an instance; nil: there is none. First the
// Machine's hook, then the condition that a MachineHealthCheck acts on: no node is drained
// twice.
func (c *machineController) tell(ctx context.Context, s *machineState, i *apiv1.Instance) error {
	if s.machine == nil {
		return nil
	}
	if err := c.annotate(ctx, s, i); err != nil {
		return err
	}
	var err error
	if shown := shownConditions(s.m, s.machine); shown != nil {
		err = client.IgnoreNotFound(c.setConditions(ctx, s.machine, shown))
	}
	return errors.Join(err, c.setNodeCondition(ctx, s, i))
}

// annotate sets and takes away the hook, and says at the end of a drain of ours that there
// is nothing left to drain. An operator that finds a hook without a drain takes it away.
func (c *machineController) annotate(ctx context.Context, s *machineState, i *apiv1.Instance) error {
	// One that is being deleted is past the hook.
	draining := s.m.DeletionTimestamp.IsZero() && i.GetDrain() != nil && nstance.State(i.GetState()) == nstance.Draining && time.Now().Before(i.GetDrain().GetDeadline().AsTime())
	drained := !draining && (i == nil && s.m.Status.State == string(nstance.Deleted) || i.GetDrain() != nil || nstance.State(i.GetState()) == nstance.Deleting)
	changed := s.machine.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	if draining {
		changed.Annotations[PreDrainHook] = ""
	} else {
		delete(changed.Annotations, PreDrainHook)
	}
	if drained {
		changed.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = ""
		changed.Annotations[clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation] = ""
	}
	before := s.machine.Annotations
	if len(before) == len(changed.Annotations) && metav1.HasAnnotation(s.machine.ObjectMeta, PreDrainHook) == draining {
		return nil
	}
	return client.IgnoreNotFound(c.Patch(ctx, changed, client.MergeFrom(s.machine)))
}

// release takes the hook away for good, whatever the cache has of the Machine: nothing looks
// after it once the NstanceMachine is gone.
func (c *machineController) release(ctx context.Context, machine *clusterv1.Machine) error {
	if machine == nil {
		return nil
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, PreDrainHook)
	return client.IgnoreNotFound(c.Patch(ctx, machine.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
}

// shownConditions returns the conditions of a Machine that are not as those of its
// NstanceMachine, with all that it then has of ours; nil: they are the same.
func shownConditions(m *infrav1.NstanceMachine, machine *clusterv1.Machine) (out []metav1.Condition) {
	differs := false
	for _, name := range []string{infrav1.ConditionInterrupted, infrav1.ConditionCreateFailed, infrav1.ConditionDraining} {
		want := conditions.Get(m, name)
		if want == nil {
			continue
		}
		out = append(out, *want)
		has := conditions.Get(machine, name)
		differs = differs || has == nil || has.Status != want.Status || has.Message != want.Message || has.Reason != want.Reason
	}
	if !differs {
		return nil
	}
	return out
}

// setConditions sets conditions of ours on a Machine. Cluster API leaves them alone.
func (c *machineController) setConditions(ctx context.Context, machine *clusterv1.Machine, shown []metav1.Condition) error {
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&struct {
		Conditions []metav1.Condition `json:"conditions"`
	}{shown})
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	u.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Machine"))
	u.SetNamespace(machine.Namespace)
	u.SetName(machine.Name)
	return c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), fieldOwner, client.ForceOwnership)
}

// setNodeCondition has the Node of a machine say that the cloud takes it back. The Machine's
// name of the Node is none to go by: another machine may have it by now.
func (c *machineController) setNodeCondition(ctx context.Context, s *machineState, i *apiv1.Instance) error {
	want := conditions.Get(s.m, infrav1.ConditionInterrupted)
	nodes := c.fleets.nodesOf(s.cluster)
	if want == nil || nodes == nil { // nil: the cluster is not reached
		return nil
	}
	return nodes.setCondition(ctx, nstance.InstanceID(s.m.Spec.InstanceID), cmp.Or(s.m.Spec.ProviderID, i.GetNodeProviderId()), corev1.NodeCondition{
		Type: infrav1.ConditionInterrupted, Status: corev1.ConditionStatus(want.Status), Reason: want.Reason, Message: want.Message,
		LastTransitionTime: want.LastTransitionTime, LastHeartbeatTime: want.LastTransitionTime,
	})
}
