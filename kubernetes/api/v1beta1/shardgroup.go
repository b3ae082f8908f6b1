package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NstanceShardGroupSpec is a group as one shard shall have it.
type NstanceShardGroupSpec struct {
	// group at the shard.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is what the object stands for: make another one"
	Group string `json:"group,omitempty"`

	// shard that has it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is what the object stands for: make another one"
	Shard string `json:"shard,omitempty"`

	// size is how many machines the shard keeps.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	Size *int32 `json:"size,omitempty"`

	// removeFirst names instances that go before others when the size shrinks.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=128
	RemoveFirst []string `json:"removeFirst,omitempty"`

	// bootstrapSecretName is the Secret whose key value has the bootstrap data that
	// the template's user data uses. Empty: there is none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	BootstrapSecretName string `json:"bootstrapSecretName,omitempty"`

	// template at the shard that a group which is not in the shard's own
	// configuration is made from. Empty: the group is in the configuration.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Template string `json:"template,omitempty"`

	// subnetPool of the shard. Empty: the template's.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	SubnetPool string `json:"subnetPool,omitempty"`

	// drainTimeout is the longest a machine that is asked to go is waited for.
	// +optional
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`

	// onDrainTimeout says what becomes of a machine that is not empty when drainTimeout has
	// passed, although it could stay longer. Empty: it is deleted, unless the group was told
	// otherwise before.
	// +optional
	OnDrainTimeout DrainTimeoutAction `json:"onDrainTimeout,omitempty"`

	Shape `json:",inline"`
}

// NstanceShardGroupStatus is a group as the shard has it.
// +kubebuilder:validation:MinProperties=1
type NstanceShardGroupStatus struct {
	// conditions: Synced and Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// size that the shard has taken over.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Size *int32 `json:"size,omitempty"`

	// ready machines.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Ready *int32 `json:"ready,omitempty"`

	// booting machines.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Booting *int32 `json:"booting,omitempty"`

	// leaving machines, that are being emptied or deleted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Leaving *int32 `json:"leaving,omitempty"`

	// holds say what the group waits for.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Holds []Hold `json:"holds,omitempty"`

	// bootstrapDigest is the SHA-256 of the bootstrap data that the shard was given.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BootstrapDigest string `json:"bootstrapDigest,omitempty"`

	// observedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// A Hold says what a group waits for.
type Hold struct {
	// kind such as capacity or backoff.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Kind string `json:"kind,omitempty"`

	// message for people.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// NstanceShardGroup is the part of a pool that one shard has, named
// {group}--{shard}. It is made by the pool's controller.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstanceshardgroups,scope=Namespaced,categories=cluster-api,shortName=nsg
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move="
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.spec.shard`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Booting",type=integer,JSONPath=`.status.booting`
// +kubebuilder:printcolumn:name="Leaving",type=integer,JSONPath=`.status.leaving`
// +kubebuilder:printcolumn:name="Hold",type=string,JSONPath=`.status.holds[0].kind`
// +kubebuilder:printcolumn:name="Synced",type=string,JSONPath=`.status.conditions[?(@.type=="Synced")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceShardGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the group as the shard shall have it.
	// +required
	Spec NstanceShardGroupSpec `json:"spec,omitempty,omitzero"`
	// status is the group as the shard has it.
	// +optional
	Status NstanceShardGroupStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions.
func (g *NstanceShardGroup) GetConditions() []metav1.Condition { return g.Status.Conditions }

// SetConditions replaces the conditions.
func (g *NstanceShardGroup) SetConditions(conditions []metav1.Condition) {
	g.Status.Conditions = conditions
}

// NstanceShardGroupList is a list of NstanceShardGroup.
//
// +kubebuilder:object:root=true
type NstanceShardGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceShardGroup `json:"items"`
}
