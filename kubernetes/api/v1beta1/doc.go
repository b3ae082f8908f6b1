// Package v1beta1 holds the Kubernetes resources of the operator, group
// infrastructure.cluster.x-k8s.io: an infrastructure provider of Cluster API
// whose machines are made by shards. The types are values, not for concurrent
// use while one changes, and follow the
// contract v1beta2 of Cluster API.
//
// A program that reads or writes them adds them to its scheme with AddToScheme.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the resources.
var GroupVersion = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1"}

// AddToScheme adds the resources to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&NstanceCluster{}, &NstanceClusterList{},
		&NstanceClusterTemplate{}, &NstanceClusterTemplateList{},
		&NstanceMachine{}, &NstanceMachineList{},
		&NstanceMachineTemplate{}, &NstanceMachineTemplateList{},
		&NstanceMachinePool{}, &NstanceMachinePoolList{},
		&NstanceMachinePoolTemplate{}, &NstanceMachinePoolTemplateList{},
		&NstanceShardGroup{}, &NstanceShardGroupList{},
		&SpotProtection{}, &SpotProtectionList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
