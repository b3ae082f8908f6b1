package webhooks

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// controlPlaneGroup is the API group of the providers of control planes.
const controlPlaneGroup = "controlplane.cluster.x-k8s.io"

const (
	onDemandRemedy = "remove it: a control plane keeps its quorum on machines that the cloud does not take back"
	makeAnother    = "make another object, and name it in what refers to this one"
)

func machineRules(m *infrav1.NstanceMachine) field.ErrorList {
	if m.Spec.Spot != nil && (isControlPlane(m.Labels) || ownedByControlPlane(m.OwnerReferences)) {
		return field.ErrorList{field.Forbidden(field.NewPath("spec", "spot"), onDemandRemedy)}
	}
	return nil
}

func isControlPlane(labels map[string]string) bool {
	_, ok := labels[clusterv1.MachineControlPlaneLabel]
	return ok
}

func ownedByControlPlane(owners []metav1.OwnerReference) bool {
	for _, o := range owners {
		if group, _, _ := strings.Cut(o.APIVersion, "/"); group == controlPlaneGroup {
			return true
		}
	}
	return false
}

// machineUpdate keeps what an instance was made from. What the operator sets is kept
// from then on, but an instance that never had a machine is given up for another one. So is
// one whose machine did not start, and it may have another machine until then.
func machineUpdate(old, changed *infrav1.NstanceMachine) (broken field.ErrorList) {
	spec, was, is := field.NewPath("spec"), old.Spec, changed.Spec
	const remedy = "delete its Machine, whose owner makes another one"
	broken = append(broken, unchanged(spec.Child("group"), was.Group, is.Group, remedy)...)
	broken = append(broken, unchanged(spec.Child("instanceType"), was.InstanceType, is.InstanceType, remedy)...)
	broken = append(broken, unchanged(spec.Child("spot"), was.Spot, is.Spot, remedy)...)
	if was.InstanceID != "" {
		broken = append(broken, unchanged(spec.Child("shard"), was.Shard, is.Shard, remedy)...)
	}
	started := was.ProviderID != "" && !starting(old.Status.State)
	if givenUp := is.InstanceID == "" && !started; was.InstanceID != "" && !givenUp {
		broken = append(broken, unchanged(spec.Child("instanceID"), was.InstanceID, is.InstanceID, remedy)...)
	}
	if started {
		broken = append(broken, unchanged(spec.Child("providerID"), was.ProviderID, is.ProviderID, remedy)...)
	}
	return broken
}

// starting reports whether an instance in this state has not been ready: the cloud may have
// accepted its machine and not start it.
func starting(state string) bool {
	switch nstance.State(state) {
	case nstance.Pending, nstance.Provisioning, nstance.Booting, nstance.Failed:
		return true
	}
	return false
}

func machineTemplateRules(t *infrav1.NstanceMachineTemplate) (broken field.ErrorList) {
	template := field.NewPath("spec", "template")
	if t.Spec.Template.Spec.Spot != nil && isControlPlane(t.Spec.Template.ObjectMeta.Labels) {
		broken = append(broken, field.Forbidden(template.Child("spec", "spot"), onDemandRemedy))
	}
	for _, own := range []struct{ name, value string }{
		{"instanceID", t.Spec.Template.Spec.InstanceID}, {"providerID", t.Spec.Template.Spec.ProviderID},
	} {
		if own.value != "" {
			broken = append(broken, field.Forbidden(template.Child("spec", own.name), "belongs to one machine, and the operator sets it: remove it"))
		}
	}
	return broken
}

func machineTemplateUpdate(old, changed *infrav1.NstanceMachineTemplate) field.ErrorList {
	return unchanged(field.NewPath("spec", "template", "spec"), old.Spec.Template.Spec, changed.Spec.Template.Spec, makeAnother)
}

func clusterTemplateUpdate(old, changed *infrav1.NstanceClusterTemplate) field.ErrorList {
	return unchanged(field.NewPath("spec", "template", "spec"), old.Spec.Template.Spec, changed.Spec.Template.Spec, makeAnother)
}
