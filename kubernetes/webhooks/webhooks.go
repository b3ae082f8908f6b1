// Package webhooks refuses what the controllers of package operator could not
// carry out, when it is written: changes of templates, fields that a shard would
// not change, spot machines in a control plane. Every refusal names field and
// remedy.
//
// A program adds the webhooks to its own manager with Add, which is called once
// and not concurrently. They answer in every replica, not only in the leading
// one, and are safe for concurrent use. They read nothing, but for what a shard has that
// is to be taken out of an NstanceCluster: that needs the right to list NstanceShardGroups
// and NstanceMachines. Kubernetes finds them
// through a ValidatingWebhookConfiguration: kubernetes/config/webhook has it.
package webhooks

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/cluster-api/util/topology"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// +kubebuilder:webhookconfiguration:mutating=false,name=nstance-operator
// +kubebuilder:webhook:path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-nstancecluster,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=5,groups=infrastructure.cluster.x-k8s.io,resources=nstanceclusters,verbs=update,versions=v1beta1,name=nstancecluster.infrastructure.cluster.x-k8s.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-nstanceclustertemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=5,groups=infrastructure.cluster.x-k8s.io,resources=nstanceclustertemplates,verbs=create;update,versions=v1beta1,name=nstanceclustertemplate.infrastructure.cluster.x-k8s.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-nstancemachine,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=5,groups=infrastructure.cluster.x-k8s.io,resources=nstancemachines,verbs=create;update,versions=v1beta1,name=nstancemachine.infrastructure.cluster.x-k8s.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-nstancemachinetemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=5,groups=infrastructure.cluster.x-k8s.io,resources=nstancemachinetemplates,verbs=create;update,versions=v1beta1,name=nstancemachinetemplate.infrastructure.cluster.x-k8s.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-nstancemachinepool,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=5,groups=infrastructure.cluster.x-k8s.io,resources=nstancemachinepools,verbs=create;update,versions=v1beta1,name=nstancemachinepool.infrastructure.cluster.x-k8s.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-nstancemachinepooltemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=5,groups=infrastructure.cluster.x-k8s.io,resources=nstancemachinepooltemplates,verbs=create;update,versions=v1beta1,name=nstancemachinepooltemplate.infrastructure.cluster.x-k8s.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-nstanceshardgroup,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=5,groups=infrastructure.cluster.x-k8s.io,resources=nstanceshardgroups,verbs=create;update,versions=v1beta1,name=nstanceshardgroup.infrastructure.cluster.x-k8s.io,admissionReviewVersions=v1

// Add adds the webhooks to a manager, whose scheme must have what the AddToScheme
// of kubernetes/api/v1beta1 adds. It is called once, before the manager starts.
func Add(mgr manager.Manager) error {
	if _, _, err := mgr.GetScheme().ObjectKinds(&infrav1.NstanceMachine{}); err != nil {
		return nstance.FieldError("scheme", "call the AddToScheme of kubernetes/api/v1beta1", "%v", err)
	}
	cluster := clusterRules{rules[*infrav1.NstanceCluster]{kind: "NstanceCluster"}, mgr.GetAPIReader()}
	return errors.Join(
		ctrl.NewWebhookManagedBy(mgr, &infrav1.NstanceCluster{}).WithValidator(cluster).Complete(),
		addValidator(mgr, rules[*infrav1.NstanceClusterTemplate]{
			kind: "NstanceClusterTemplate", object: &infrav1.NstanceClusterTemplate{}, update: clusterTemplateUpdate,
		}),
		addValidator(mgr, rules[*infrav1.NstanceMachine]{
			kind: "NstanceMachine", object: &infrav1.NstanceMachine{}, always: machineRules, update: machineUpdate,
		}),
		addValidator(mgr, rules[*infrav1.NstanceMachineTemplate]{
			kind: "NstanceMachineTemplate", object: &infrav1.NstanceMachineTemplate{}, always: machineTemplateRules, update: machineTemplateUpdate,
		}),
		addValidator(mgr, rules[*infrav1.NstanceMachinePool]{
			kind: "NstanceMachinePool", object: &infrav1.NstanceMachinePool{}, always: poolRules, update: poolUpdate,
		}),
		addValidator(mgr, rules[*infrav1.NstanceMachinePoolTemplate]{
			kind: "NstanceMachinePoolTemplate", object: &infrav1.NstanceMachinePoolTemplate{}, always: poolTemplateRules, update: poolTemplateUpdate,
		}),
		addValidator(mgr, rules[*infrav1.NstanceShardGroup]{
			kind: "NstanceShardGroup", object: &infrav1.NstanceShardGroup{}, always: shardGroupRules,
		}),
	)
}

// rules are what objects of a kind must keep.
type rules[T client.Object] struct {
	kind   string
	object T

	// always holds for every object. An update is refused only for what the old
	// object did not have already: an object from before a rule can still be
	// labelled, finalized and repaired step by step.
	always func(T) field.ErrorList

	// update compares the old with the new object.
	update func(old, changed T) field.ErrorList
}

func addValidator[T client.Object](mgr manager.Manager, r rules[T]) error {
	return ctrl.NewWebhookManagedBy(mgr, r.object).WithValidator(r).Complete()
}

// ValidateCreate implements admission.Validator.
func (r rules[T]) ValidateCreate(_ context.Context, obj T) (admission.Warnings, error) {
	if r.always == nil {
		return nil, nil
	}
	return nil, r.refuse(obj, r.always(obj))
}

// ValidateUpdate implements admission.Validator.
func (r rules[T]) ValidateUpdate(ctx context.Context, old, changed T) (admission.Warnings, error) {
	if !changed.GetDeletionTimestamp().IsZero() {
		return nil, nil // nothing is made from it any more
	}
	var broken field.ErrorList
	if r.always != nil {
		broken = added(r.always(old), r.always(changed))
	}
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, err
	}
	// The topology controller asks in this way whether a template has to be rotated.
	if r.update != nil && !topology.IsDryRunRequest(req, changed) {
		broken = append(broken, r.update(old, changed)...)
	}
	return nil, r.refuse(changed, broken)
}

// ValidateDelete implements admission.Validator. It is not called: the
// configuration names creates and updates only.
func (r rules[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }

func (r rules[T]) refuse(obj T, broken field.ErrorList) error {
	if len(broken) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: infrav1.GroupVersion.Group, Kind: r.kind}, obj.GetName(), broken)
}

// added returns the errors that were not there before.
func added(before, now field.ErrorList) (out field.ErrorList) {
	known := map[string]bool{}
	for _, e := range before {
		known[e.Error()] = true
	}
	for _, e := range now {
		if !known[e.Error()] {
			out = append(out, e)
		}
	}
	return out
}

// unchanged refuses a new value of a field.
func unchanged(path *field.Path, old, changed any, remedy string) field.ErrorList {
	if equality.Semantic.DeepEqual(old, changed) {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, "cannot be changed: "+remedy)}
}

// nameError returns what is wrong with a name, whose error names its remedy.
func nameError(path *field.Path, value string, err error) field.ErrorList {
	if err == nil {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, explain(err))}
}
