package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// DrainTimeoutAction says what becomes of a machine that is not empty in time, in a rollout,
// when its pool shrinks, or on request. A machine that the cloud takes waits for nothing.
// +kubebuilder:validation:Enum=delete;wait
type DrainTimeoutAction string

// Values of DrainTimeoutAction.
const (
	// DrainTimeoutDelete stops what disruption budgets protect on it in time, and deletes it.
	DrainTimeoutDelete DrainTimeoutAction = "delete"

	// DrainTimeoutWait waits for disruption budgets without limit. The group's condition
	// says for which.
	DrainTimeoutWait DrainTimeoutAction = "wait"
)

// Distribution says how the machines of a pool are spread over its shards.
// +kubebuilder:validation:Enum=even;failover
type Distribution string

// Values of Distribution.
const (
	// DistributionEven splits the replicas evenly, the rest to the earlier
	// shards.
	DistributionEven Distribution = "even"

	// DistributionFailover splits evenly, but what a shard cannot get for lack of
	// capacity goes to the others. Every ten minutes the even split is tried again.
	// What has returned is drained elsewhere only after it is ready.
	DistributionFailover Distribution = "failover"
)

// NstanceMachinePoolSpec describes a pool of like machines.
type NstanceMachinePoolSpec struct {
	// providerIDList has the provider ID of each machine of the pool, those that
	// are being emptied included. The operator sets it.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MaxLength=512
	ProviderIDList []string `json:"providerIDList,omitempty"`

	// group is the name of the group at each shard. Empty: the pool's name.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Group string `json:"group,omitempty"`

	// shards among which the replicas are split, in this order. None: those of
	// the NstanceCluster, or those of the MachinePool's failureDomains.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=32
	Shards []string `json:"shards,omitempty"`

	// distribution over the shards.
	// +optional
	// +kubebuilder:default=even
	Distribution Distribution `json:"distribution,omitempty"`

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
	// Absent: the shard's default.
	// +optional
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`

	// onDrainTimeout says what becomes of a machine that is not empty when drainTimeout has
	// passed, although it could stay longer. Empty: it is deleted, unless the group was told
	// otherwise before.
	// +optional
	OnDrainTimeout DrainTimeoutAction `json:"onDrainTimeout,omitempty"`

	Shape `json:",inline"`
	Scale `json:",inline"`
}

// NstanceMachinePoolStatus is what is known of a pool.
// +kubebuilder:validation:MinProperties=1
type NstanceMachinePoolStatus struct {
	// conditions: Ready, Synced and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ready is read by Cluster API v1.13.
	// +optional
	Ready bool `json:"ready,omitempty"`

	// initialization is read by later versions of Cluster API.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`

	// replicas is the number of machines that are not being emptied.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	// infrastructureMachineKind is NstanceMachine: one for each machine of the pool.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	InfrastructureMachineKind string `json:"infrastructureMachineKind,omitempty"`

	// shards says what each shard has of the pool.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Shards []PoolShard `json:"shards,omitempty"`

	Scale `json:",inline"`

	// observedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// PoolShard is what one shard has of a pool.
type PoolShard struct {
	// name of the shard.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Name string `json:"name,omitempty"`

	// size that is asked for.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Size *int32 `json:"size,omitempty"`

	// ready machines.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Ready *int32 `json:"ready,omitempty"`

	// limit is how many machines the shard had when it had no capacity for more. Until
	// retryAt it is asked for no more, and other shards have the rest. Absent: it is
	// asked for its even part.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Limit *int32 `json:"limit,omitempty"`

	// retryAt is when the even split is tried again.
	// +optional
	RetryAt *metav1.Time `json:"retryAt,omitempty"`

	// message says what the group waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// NstanceMachinePool is a pool of like machines, spread over shards. What is
// taken back by the cloud is replaced by the shards, before the loss where
// there is notice of it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstancemachinepools,scope=Namespaced,categories=cluster-api,shortName=nmp
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Distribution",type=string,JSONPath=`.spec.distribution`
// +kubebuilder:printcolumn:name="Synced",type=string,JSONPath=`.status.conditions[?(@.type=="Synced")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachinePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the pool.
	// +optional
	Spec NstanceMachinePoolSpec `json:"spec,omitempty,omitzero"`
	// status is what is known of it.
	// +optional
	Status NstanceMachinePoolStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions.
func (p *NstanceMachinePool) GetConditions() []metav1.Condition { return p.Status.Conditions }

// SetConditions replaces the conditions.
func (p *NstanceMachinePool) SetConditions(conditions []metav1.Condition) {
	p.Status.Conditions = conditions
}

// NstanceMachinePoolList is a list of NstanceMachinePool.
//
// +kubebuilder:object:root=true
type NstanceMachinePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachinePool `json:"items"`
}

// NstanceMachinePoolTemplateSpec holds what pools of a ClusterClass are made from.
type NstanceMachinePoolTemplateSpec struct {
	// template of the pools.
	// +required
	Template NstanceMachinePoolTemplateResource `json:"template,omitempty,omitzero"`
}

// NstanceMachinePoolTemplateResource is an NstanceMachinePool to be.
type NstanceMachinePoolTemplateResource struct {
	// metadata of the pools.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec of the pools.
	// +optional
	Spec NstanceMachinePoolSpec `json:"spec,omitempty,omitzero"`
}

// NstanceMachinePoolTemplate is what a ClusterClass makes pools from.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nstancemachinepooltemplates,scope=Namespaced,categories=cluster-api,shortName=nmpt
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachinePoolTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec of the template.
	// +required
	Spec NstanceMachinePoolTemplateSpec `json:"spec,omitempty,omitzero"`
}

// NstanceMachinePoolTemplateList is a list of NstanceMachinePoolTemplate.
//
// +kubebuilder:object:root=true
type NstanceMachinePoolTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachinePoolTemplate `json:"items"`
}
