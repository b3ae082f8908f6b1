package v1beta1

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionAdmitted says whether every selected workload is protected.
const ConditionAdmitted = "Admitted"

// AnnotationHandOff on a Deployment or StatefulSet of a workload cluster, with the value
// true, has its pods handed off: replacements run elsewhere before they end. A SpotProtection
// selects it. On the pods of a Deployment, which have it from its template, it needs none, and
// holds in every drain that has time enough.
const AnnotationHandOff = "nstance.dev/hand-off"

// SpotProtectionSpec selects workloads, and says which stand-by machines run in place of
// nodes that they lose.
type SpotProtectionSpec struct {
	// clusterName is the Cluster that the workloads run in, in the namespace of the
	// SpotProtection.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: create another SpotProtection"
	ClusterName string `json:"clusterName,omitempty"`

	// selector of Deployments and StatefulSets, by their labels. {} selects all.
	// +required
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// namespaces of the workload cluster. Empty: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`

	// standby is what runs in place of interrupted nodes that are not of this cluster's
	// shards. Groups with a warm pool bridge the losses of their own members without it.
	// +optional
	Standby StandbyReference `json:"standby,omitempty,omitzero"`

	// applyPatches applies the patches that the status proposes: to workloads, and to the
	// NodePools that nodePools names.
	// +optional
	ApplyPatches *bool `json:"applyPatches,omitempty"`

	// nodePools are those of Karpenter that applyPatches may change.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	NodePools []string `json:"nodePools,omitempty"`
}

// A StandbyReference names stand-by machines.
type StandbyReference struct {
	// group with a warm pool, of one of the cluster's shards.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Group string `json:"group,omitempty"`

	// duration is how long one interruption may claim a machine, at most 24h. Default: 1h.
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty"`
}

// SpotProtectionStatus is what is protected.
// +kubebuilder:validation:MinProperties=1
type SpotProtectionStatus struct {
	// conditions: Admitted and Synced.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// workloads that are selected, in the order of namespace, kind and name. Those beyond
	// 128 are not protected, which the condition Admitted says. Then those that were selected
	// until now, for as long as something of their hand-off is left.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Workloads []ProtectedWorkload `json:"workloads,omitempty"`

	// nodePools of Karpenter for which there is a proposal.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	NodePools []NodePoolProposal `json:"nodePools,omitempty"`

	// claims on stand-by machines, the latest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Claims []StandbyClaim `json:"claims,omitempty"`

	// selectedWorkloads is how many workloads are selected.
	// +optional
	SelectedWorkloads *int32 `json:"selectedWorkloads,omitempty"`

	// admittedWorkloads is how many of them are protected.
	// +optional
	AdmittedWorkloads *int32 `json:"admittedWorkloads,omitempty"`

	// protectedPods is how many of their pods are on interruptible nodes.
	// +optional
	ProtectedPods *int32 `json:"protectedPods,omitempty"`

	// observedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Kinds of workloads.
const (
	KindDeployment  = "Deployment"
	KindStatefulSet = "StatefulSet"
)

// A HandOffMethod says how pods leave a machine that is about to be emptied.
type HandOffMethod string

// The methods.
const (
	HandOffSurge    HandOffMethod = "Surge"    // more replicas first, then the pods on the machine go
	HandOffEviction HandOffMethod = "Eviction" // within the disruption budget
)

// A ProtectedWorkload is a Deployment or StatefulSet that a SpotProtection selects.
type ProtectedWorkload struct {
	// kind of the workload.
	// +required
	// +kubebuilder:validation:Enum=Deployment;StatefulSet
	Kind string `json:"kind,omitempty"`

	// namespace of the workload.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// name of the workload.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// admitted says whether it is protected.
	// +required
	Admitted *bool `json:"admitted,omitempty"`

	// reason why not, or Admitted.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message says what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// budget is the name of the PodDisruptionBudget that covers its pods.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Budget string `json:"budget,omitempty"`

	// protectedPods is how many of its pods are on interruptible nodes.
	// +optional
	ProtectedPods *int32 `json:"protectedPods,omitempty"`

	// handOff is how its pods are handed off. Absent: it does not ask for it.
	// +optional
	// +kubebuilder:validation:Enum=Surge;Eviction
	HandOff HandOffMethod `json:"handOff,omitempty"`

	// handOffMessage says why they are evicted, and not surged.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	HandOffMessage string `json:"handOffMessage,omitempty"`

	// surged is by how many replicas it is raised at present.
	// +optional
	Surged *int32 `json:"surged,omitempty"`

	// lastInterruption of a node with pods of it.
	// +optional
	LastInterruption Interruption `json:"lastInterruption,omitempty,omitzero"`

	// proposedBudget is a PodDisruptionBudget that would admit it, ready to apply.
	// +optional
	ProposedBudget *ProposedBudget `json:"proposedBudget,omitempty"`

	// proposedPatch is a strategic merge patch that lets it run on spot nodes.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	ProposedPatch string `json:"proposedPatch,omitempty"`
}

// An Interruption is the loss of one node.
type Interruption struct {
	// node that is lost.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// eventID identifies the event.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	EventID string `json:"eventID,omitempty"`

	// reason of the interruption.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// time at which it was seen.
	// +optional
	Time metav1.Time `json:"time,omitempty,omitzero"`
}

// A ProposedBudget is a PodDisruptionBudget that does not exist.
type ProposedBudget struct {
	// apiVersion is policy/v1.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	APIVersion string `json:"apiVersion,omitempty"`

	// kind is PodDisruptionBudget.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Kind string `json:"kind,omitempty"`

	// metadata has namespace and name.
	// +required
	Metadata ProposedMetadata `json:"metadata,omitempty,omitzero"`

	// spec of the budget.
	// +required
	Spec policyv1.PodDisruptionBudgetSpec `json:"spec,omitempty,omitzero"`
}

// ProposedMetadata names a proposed object.
type ProposedMetadata struct {
	// namespace of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// A NodePoolProposal is a change of a NodePool of Karpenter.
type NodePoolProposal struct {
	// name of the NodePool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// proposedPatch is a JSON merge patch that has it make spot nodes too.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	ProposedPatch string `json:"proposedPatch,omitempty"`
}

// A StandbyClaim is a stand-by machine that was asked for in place of a node.
type StandbyClaim struct {
	Interruption `json:",inline"`

	// group of which it is asked for.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Group string `json:"group,omitempty"`

	// shard that is asked for it.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Shard string `json:"shard,omitempty"`

	// workloads that had pods on the node, as kind/namespace/name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=512
	Workloads []string `json:"workloads,omitempty"`

	// until is when it ends at the latest. It is absent while the shard has not granted it.
	// +optional
	Until metav1.Time `json:"until,omitempty,omitzero"`

	// released is when it ended.
	// +optional
	Released metav1.Time `json:"released,omitempty,omitzero"`

	// message says why it is not granted yet, or why it ended.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// SpotProtection has workloads survive the loss of spot nodes: their pods run on stand-by
// machines until there are other nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=spotprotections,scope=Namespaced,categories=cluster-api,shortName=sp
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move="
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterName`
// +kubebuilder:printcolumn:name="Selected",type=integer,JSONPath=`.status.selectedWorkloads`
// +kubebuilder:printcolumn:name="Admitted",type=integer,JSONPath=`.status.admittedWorkloads`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.protectedPods`
// +kubebuilder:printcolumn:name="Standby",type=string,JSONPath=`.spec.standby.group`
// +kubebuilder:printcolumn:name="Synced",type=string,JSONPath=`.status.conditions[?(@.type=="Synced")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SpotProtection struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec selects workloads.
	// +required
	Spec SpotProtectionSpec `json:"spec,omitempty,omitzero"`
	// status is what is protected.
	// +optional
	Status SpotProtectionStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions.
func (p *SpotProtection) GetConditions() []metav1.Condition { return p.Status.Conditions }

// SetConditions replaces the conditions.
func (p *SpotProtection) SetConditions(conditions []metav1.Condition) {
	p.Status.Conditions = conditions
}

// SpotProtectionList is a list of SpotProtection.
//
// +kubebuilder:object:root=true
type SpotProtectionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SpotProtection `json:"items"`
}
