package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Finalizer holds an object until what it stands for is gone at the shard.
const Finalizer = "infrastructure.cluster.x-k8s.io/nstance"

// Conditions of the resources, besides Ready and Paused of Cluster API.
const (
	// ConditionShardsConnected of an NstanceCluster is true while the leader of
	// each shard answers.
	ConditionShardsConnected = "ShardsConnected"

	// ConditionRegistered of an NstanceCluster is true while the operator has a
	// certificate that its shards accept.
	ConditionRegistered = "Registered"

	// ConditionNodesReached of an NstanceCluster is true while there is a
	// kubeconfig of the workload cluster, whose nodes are drained.
	ConditionNodesReached = "NodesReached"

	// ConditionInterrupted of an NstanceMachine, its Machine and its Node is true
	// once the cloud takes the machine back, or has taken it. A
	// MachineHealthCheck watches it with timeout 0.
	ConditionInterrupted = "NstanceInterrupted"

	// ConditionCreateFailed of an NstanceMachine and its Machine is true while
	// the machine cannot be created.
	ConditionCreateFailed = "NstanceCreateFailed"

	// ConditionDraining of an NstanceMachine and its Machine is true while the machine is
	// emptied before its end. Its message says why, until when, and what is still there.
	ConditionDraining = "NstanceDraining"

	// ConditionSynced of an NstanceShardGroup is true while the shard has what
	// the spec says.
	ConditionSynced = "Synced"
)

// SpotOptions say that machines are bought on the spot market. Their presence
// is what says it.
type SpotOptions struct {
	// maxPrice is the highest price of one machine for an hour, in the
	// provider's currency, as a decimal number. Empty: the provider's default,
	// which is the price on demand.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?$`
	MaxPrice string `json:"maxPrice,omitempty"`
}

// Shape is what machines are made like. It is laid over the shard's template.
type Shape struct {
	// instanceType is the type of machine. Empty: the group's.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`

	// vars for user data, files and arguments.
	// +optional
	Vars map[string]string `json:"vars,omitempty"`

	// loadBalancers by the names that the shard has for them. None: the group's.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	LoadBalancers []string `json:"loadBalancers,omitempty"`

	// spot has the machines bought on the spot market. Absent: on demand.
	// +optional
	Spot *SpotOptions `json:"spot,omitempty"`
}

// Scale is what an autoscaler must know of a type of machine of which there is none yet.
type Scale struct {
	// capacity of a machine, with cpu and memory.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// nodeInfo says what its node runs.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitempty,omitzero"`
}

// NodeInfo says what a node runs.
// +kubebuilder:validation:MinProperties=1
type NodeInfo struct {
	// architecture, such as amd64.
	// +optional
	// +kubebuilder:validation:Enum=amd64;arm64
	Architecture string `json:"architecture,omitempty"`
	// operatingSystem, such as linux.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// NstanceMachineSpec describes one machine.
type NstanceMachineSpec struct {
	// providerID is that of the machine's Node. The operator sets it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// instanceID is chosen before the machine is asked for, so that asking again
	// makes no second one. The operator sets it.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceID string `json:"instanceID,omitempty"`

	// group at the shard, whose template the machine follows.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Group string `json:"group,omitempty"`

	// shard is where the machine is, if its Machine names no failure domain.
	// Neither: the first shard that is connected; the operator sets it then.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Shard string `json:"shard,omitempty"`

	Shape `json:",inline"`
}

// NstanceMachineStatus is what is known of a machine.
// +kubebuilder:validation:MinProperties=1
type NstanceMachineStatus struct {
	// conditions: Ready, NstanceInterrupted, NstanceCreateFailed, NstanceDraining and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is read by Cluster API.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`

	// addresses of the machine.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Addresses []clusterv1.MachineAddress `json:"addresses,omitempty"`

	// failureDomain is the shard that has the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// interruptible says whether the cloud may take the machine back: whether it
	// really was bought on the spot market.
	// +optional
	Interruptible *bool `json:"interruptible,omitempty"`

	// state of the instance at its shard.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	State string `json:"state,omitempty"`

	// instanceType that it really has.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`

	// leaving says why and until when the machine is being emptied.
	// +optional
	Leaving Leaving `json:"leaving,omitempty,omitzero"`

	// observedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Leaving says why and until when a machine is being emptied.
// +kubebuilder:validation:MinProperties=1
type Leaving struct {
	// cause such as notice or rollout.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Cause string `json:"cause,omitempty"`

	// eventID of the cloud's notice.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	EventID string `json:"eventID,omitempty"`

	// message for people.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// startedAt is when the drain began.
	// +optional
	StartedAt metav1.Time `json:"startedAt,omitempty,omitzero"`

	// deadline is when the machine is deleted at the latest. Absent: it waits until it is empty.
	// +optional
	Deadline metav1.Time `json:"deadline,omitempty,omitzero"`
}

// NstanceMachine is one machine, made by a shard. What is taken back by the
// cloud is not made again.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstancemachines,scope=Namespaced,categories=cluster-api,shortName=nm
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.instanceType`
// +kubebuilder:printcolumn:name="Spot",type=boolean,JSONPath=`.status.interruptible`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.status.failureDomain`
// +kubebuilder:printcolumn:name="Leaving",type=string,JSONPath=`.status.leaving.cause`
// +kubebuilder:printcolumn:name="Deadline",type=string,JSONPath=`.status.leaving.deadline`
// +kubebuilder:printcolumn:name="ProviderID",type=string,priority=1,JSONPath=`.spec.providerID`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the machine.
	// +required
	Spec NstanceMachineSpec `json:"spec,omitempty,omitzero"`
	// status is what is known of it.
	// +optional
	Status NstanceMachineStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions.
func (m *NstanceMachine) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions replaces the conditions.
func (m *NstanceMachine) SetConditions(conditions []metav1.Condition) {
	m.Status.Conditions = conditions
}

// NstanceMachineList is a list of NstanceMachine.
//
// +kubebuilder:object:root=true
type NstanceMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachine `json:"items"`
}

// NstanceMachineTemplateSpec holds what machines are made from.
type NstanceMachineTemplateSpec struct {
	// template of the machines. It cannot be changed: make another one.
	// +required
	Template NstanceMachineTemplateResource `json:"template,omitempty,omitzero"`

	// Scale may be corrected at any time.
	Scale `json:",inline"`
}

// NstanceMachineTemplateResource is an NstanceMachine to be.
type NstanceMachineTemplateResource struct {
	// metadata of the machines.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec of the machines.
	// +required
	Spec NstanceMachineSpec `json:"spec,omitempty,omitzero"`
}

// NstanceMachineTemplateStatus is what an autoscaler reads to scale from zero.
// +kubebuilder:validation:MinProperties=1
type NstanceMachineTemplateStatus struct {
	Scale `json:",inline"`
}

// NstanceMachineTemplate is what a MachineDeployment or a control plane makes
// machines from.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstancemachinetemplates,scope=Namespaced,categories=cluster-api,shortName=nmt
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.template.spec.group`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.template.spec.instanceType`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachineTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec of the template.
	// +required
	Spec NstanceMachineTemplateSpec `json:"spec,omitempty,omitzero"`
	// status of the template.
	// +optional
	Status NstanceMachineTemplateStatus `json:"status,omitempty,omitzero"`
}

// NstanceMachineTemplateList is a list of NstanceMachineTemplate.
//
// +kubebuilder:object:root=true
type NstanceMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachineTemplate `json:"items"`
}
