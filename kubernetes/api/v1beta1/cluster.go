package v1beta1

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// AnnotationOwner on an NstanceCluster says whose its groups are at shards: two clusters never
// change the same group. The operator sets it, to the UID that the NstanceCluster has at first.
const AnnotationOwner = "nstance.dev/owner"

// NstanceClusterSpec says where the shards of a cluster are.
type NstanceClusterSpec struct {
	// controlPlaneEndpoint is where the API server of the workload cluster
	// answers. Cluster API copies it into its Cluster.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`

	// tenant owns the groups. Empty: default.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Tenant string `json:"tenant,omitempty"`

	// shards are the failure domains. A pool that names none uses all of them,
	// in this order.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Shards []Shard `json:"shards,omitempty"`

	// registration names the Secret with what the operator registers itself
	// with, in the namespace of the NstanceCluster.
	// +required
	Registration RegistrationReference `json:"registration,omitempty,omitzero"`

	// machinesForPods permits pods of the workload cluster to have machines of their
	// own. Absent: none has, whoever may create pods.
	// +optional
	MachinesForPods *MachinesForPods `json:"machinesForPods,omitempty"`
}

// MachinesForPods says which pods may have machines of their own, and how many. Machines
// that exist stay when it changes, for as long as their pods live.
type MachinesForPods struct {
	// namespaces of the workload cluster whose pods may ask.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`

	// groups that pods may name.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=32
	Groups []string `json:"groups,omitempty"`

	// instanceTypes that pods may name. A pod that names none gets the group's, which
	// need not be here.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	InstanceTypes []string `json:"instanceTypes,omitempty"`

	// max is how many machines for pods the cluster may have at the same time.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Max int32 `json:"max,omitempty"`
}

// AnnotationAbandonedShards of an NstanceCluster names shards, separated by commas, that are
// lost for good. They may be removed from spec.shards while they have groups and machines,
// which are then let go without being deleted, as they are when the cluster is deleted.
const AnnotationAbandonedShards = "nstance.dev/abandoned-shards"

// Abandons reports whether a shard is given up, with its groups and machines.
func (c *NstanceCluster) Abandons(shard string) bool {
	kept := c.DeletionTimestamp.IsZero() && slices.ContainsFunc(c.Spec.Shards, func(s Shard) bool { return s.Name == shard })
	return !kept && slices.Contains(strings.Split(strings.ReplaceAll(c.Annotations[AnnotationAbandonedShards], " ", ""), ","), shard)
}

// A Shard is one group of servers, of which one leads.
type Shard struct {
	// name of the shard.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// address of the operators' service, host:port. With several servers: a
	// name that resolves to all of them, or the address that moves with the leader.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:Pattern=`^.+:[0-9]{1,5}$`
	Address string `json:"address,omitempty"`

	// registrationAddress is host:port of the registration service. One of the
	// shards needs it.
	// +optional
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:Pattern=`^.+:[0-9]{1,5}$`
	RegistrationAddress string `json:"registrationAddress,omitempty"`

	// controlPlane says whether machines of the control plane may be in this shard.
	// +optional
	// +kubebuilder:default=true
	ControlPlane *bool `json:"controlPlane,omitempty"`
}

// RegistrationReference names a Secret with the keys nonce and ca.crt.
type RegistrationReference struct {
	// secretName is the name of the Secret. Its key nonce holds what
	// nstance-admin cluster nonce printed, its key ca.crt the authority that the
	// servers' certificates are checked with. The nonce is used once.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretName string `json:"secretName,omitempty"`
}

// NstanceClusterStatus is what is known of a cluster.
// +kubebuilder:validation:MinProperties=1
type NstanceClusterStatus struct {
	// conditions: Ready once the cluster was provisioned, ShardsConnected, Registered
	// and NodesReached as they are. Ready does not turn false when a shard is away,
	// because Cluster API then evaluates no health check any more.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is read by Cluster API.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`

	// failureDomains are the shards.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []clusterv1.FailureDomain `json:"failureDomains,omitempty"`

	// shards as the operator finds them.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Shards []ShardStatus `json:"shards,omitempty"`

	// observedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Initialization says what Cluster API waits for when an object is new.
// +kubebuilder:validation:MinProperties=1
type Initialization struct {
	// provisioned is true once the infrastructure exists, and stays so.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// ShardStatus is one shard as the operator finds it.
type ShardStatus struct {
	// name of the shard.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Name string `json:"name,omitempty"`

	// connected says whether its leader answers.
	// +optional
	Connected *bool `json:"connected,omitempty"`

	// message says why not.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// lastChange is when connected changed last.
	// +optional
	LastChange metav1.Time `json:"lastChange,omitempty,omitzero"`
}

// NstanceCluster is the infrastructure of a cluster: its shards.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstanceclusters,scope=Namespaced,categories=cluster-api,shortName=nc
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`
// +kubebuilder:printcolumn:name="Provisioned",type=boolean,JSONPath=`.status.initialization.provisioned`
// +kubebuilder:printcolumn:name="Connected",type=string,JSONPath=`.status.conditions[?(@.type=="ShardsConnected")].status`
// +kubebuilder:printcolumn:name="Lost",type=string,JSONPath=`.status.conditions[?(@.type=="ShardsConnected")].message`
// +kubebuilder:printcolumn:name="Endpoint",type=string,priority=1,JSONPath=`.spec.controlPlaneEndpoint.host`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says where the shards are.
	// +required
	Spec NstanceClusterSpec `json:"spec,omitempty,omitzero"`
	// status is what is known of the cluster.
	// +optional
	Status NstanceClusterStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions.
func (c *NstanceCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions.
func (c *NstanceCluster) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}

// NstanceClusterList is a list of NstanceCluster.
//
// +kubebuilder:object:root=true
type NstanceClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceCluster `json:"items"`
}

// NstanceClusterTemplateSpec holds what clusters of a ClusterClass are made from.
type NstanceClusterTemplateSpec struct {
	// template of the clusters.
	// +required
	Template NstanceClusterTemplateResource `json:"template,omitempty,omitzero"`
}

// NstanceClusterTemplateResource is an NstanceCluster to be.
type NstanceClusterTemplateResource struct {
	// metadata of the clusters.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec of the clusters.
	// +required
	Spec NstanceClusterSpec `json:"spec,omitempty,omitzero"`
}

// NstanceClusterTemplate is what a ClusterClass makes clusters from.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nstanceclustertemplates,scope=Namespaced,categories=cluster-api,shortName=nct
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceClusterTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec of the template.
	// +required
	Spec NstanceClusterTemplateSpec `json:"spec,omitempty,omitzero"`
}

// NstanceClusterTemplateList is a list of NstanceClusterTemplate.
//
// +kubebuilder:object:root=true
type NstanceClusterTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceClusterTemplate `json:"items"`
}
