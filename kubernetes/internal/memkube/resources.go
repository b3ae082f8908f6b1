package memkube

import (
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A resource is one that the server has.
type resource struct {
	group, version, plural, kind string
	cluster                      bool // not in namespaces
	status                       bool // a subresource
}

var resources = []resource{
	{"", "v1", "nodes", "Node", true, true},
	{"", "v1", "pods", "Pod", false, true},
	{"", "v1", "events", "Event", false, false},
	{"", "v1", "secrets", "Secret", false, false},
	{"", "v1", "namespaces", "Namespace", true, true},
	{"", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", false, true},
	{"events.k8s.io", "v1", "events", "Event", false, false},
	{"apps", "v1", "daemonsets", "DaemonSet", false, true},
	{"apps", "v1", "deployments", "Deployment", false, true},
	{"apps", "v1", "statefulsets", "StatefulSet", false, true},
	{"autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", false, true},
	{"policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", false, true},
	{"storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", true, true},
	{"coordination.k8s.io", "v1", "leases", "Lease", false, false},
	{"cluster.x-k8s.io", "v1beta2", "clusters", "Cluster", false, true},
	{"cluster.x-k8s.io", "v1beta2", "machines", "Machine", false, true},
	{"cluster.x-k8s.io", "v1beta2", "machinepools", "MachinePool", false, true},
	{"cluster.x-k8s.io", "v1beta2", "machinedrainrules", "MachineDrainRule", false, false},
	{"infrastructure.cluster.x-k8s.io", "v1beta1", "nstanceclusters", "NstanceCluster", false, true},
	{"infrastructure.cluster.x-k8s.io", "v1beta1", "nstancemachines", "NstanceMachine", false, true},
	{"infrastructure.cluster.x-k8s.io", "v1beta1", "nstancemachinepools", "NstanceMachinePool", false, true},
	{"infrastructure.cluster.x-k8s.io", "v1beta1", "nstancemachinetemplates", "NstanceMachineTemplate", false, true},
	{"infrastructure.cluster.x-k8s.io", "v1beta1", "nstanceshardgroups", "NstanceShardGroup", false, true},
	{"infrastructure.cluster.x-k8s.io", "v1beta1", "spotprotections", "SpotProtection", false, true},
}

func (r resource) apiVersion() string {
	return schema.GroupVersion{Group: r.group, Version: r.version}.String()
}

func (r resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.group, Resource: r.plural}
}

func (r resource) prefix() string {
	if r.group == "" {
		return "/api/" + r.version
	}
	return "/apis/" + r.group + "/" + r.version
}

// resourceOf returns the resource of a typed object, by the name of its type and package.
func resourceOf(obj runtime.Object) resource {
	t := reflect.TypeOf(obj).Elem()
	for _, r := range resources {
		if r.kind == t.Name() && (r.kind != "Event" || r.group == "") {
			return r
		}
	}
	panic(fmt.Sprintf("no resource for %T", obj))
}

// An address is where an object, or a list of them, is.
type address struct {
	resource
	namespace, name, sub string
}

func (a address) path() string {
	out := a.prefix()
	if a.namespace != "" {
		out += "/namespaces/" + a.namespace
	}
	return out + "/" + a.plural + "/" + a.name
}

// parse returns what a path of a request is about.
func parse(path string) (at address, ok bool) {
	for _, r := range resources {
		rest, found := strings.CutPrefix(path, r.prefix()+"/")
		if !found {
			continue
		}
		parts := strings.Split(strings.TrimSuffix(rest, "/"), "/")
		at = address{resource: r}
		if parts[0] == "namespaces" && len(parts) > 2 {
			at.namespace, parts = parts[1], parts[2:]
		}
		if parts[0] != r.plural {
			continue
		}
		parts = append(parts, "", "")
		at.name, at.sub = parts[1], parts[2]
		return at, true
	}
	return at, false
}

// discover answers for what the server has; nil: another path.
func discover(path string) any {
	path = strings.TrimSuffix(path, "/")
	switch path {
	case "/api":
		return &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case "/apis":
		return apiGroups()
	}
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
	for _, r := range resources {
		if r.prefix() == path {
			list.GroupVersion = r.apiVersion()
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: r.plural, Kind: r.kind, Namespaced: !r.cluster, Verbs: []string{"get", "list", "watch"}})
		}
	}
	if list.APIResources == nil {
		return nil
	}
	return list
}

func apiGroups() *metav1.APIGroupList {
	list, known := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}, map[string]bool{"": true}
	for _, r := range resources {
		if known[r.group] {
			continue
		}
		known[r.group] = true
		version := metav1.GroupVersionForDiscovery{GroupVersion: r.apiVersion(), Version: r.version}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: r.group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
	}
	return list
}
