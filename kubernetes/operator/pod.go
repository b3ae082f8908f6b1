package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/validate"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

const podPrefix = "on-demand.nstance.dev/"

// What a pod in a workload cluster asks for a machine of its own with.
const (
	// PodGroup is the label that asks for a machine of the group that it names. An
	// annotation of the same name is stronger: label values are limited.
	PodGroup = podPrefix + "group"

	// PodInstanceType is an annotation: the type of machine. Absent: the group's.
	PodInstanceType = podPrefix + "instance-type"

	// PodClaim is an annotation: the value of the node's label ClaimLabel. Absent: the
	// group's name.
	PodClaim = podPrefix + "claim"

	// ClaimLabel is the label of nodes that pods select their machine by. Cluster API
	// copies it from the Machine.
	ClaimLabel = "on-demand.node.cluster.x-k8s.io/claim"

	// PodLabel is the label of Machines and NstanceMachines for pods: the pod's UID. The
	// annotation of the same name has its namespace and name.
	PodLabel = podPrefix + "pod"
)

// Reasons of events on pods.
const (
	eventRefused      = "OnDemandMachineRefused"
	eventCreateFailed = "OnDemandMachineNotCreated"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=create

// A podController keeps a Machine for each pod that asks for one, for as long as the pod
// lives. It reconciles by the name of the Machine.
type podController struct {
	client.Client
	uncached client.Reader
	fleets   *fleets
	options  Options

	counting sync.Mutex // held from the count of a cluster's machines for pods until there is one more
}

func (c *podController) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("pod").
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(ofPod)).
		Watches(&infrav1.NstanceMachine{}, handler.EnqueueRequestsFromMapFunc(ofPod)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, cluster client.Object) []reconcile.Request {
			return c.ofCluster(ctx, client.ObjectKeyFromObject(cluster))
		})).
		Watches(&infrav1.NstanceCluster{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, nc client.Object) []reconcile.Request {
			return c.ofCluster(ctx, client.ObjectKey{Namespace: nc.GetNamespace(), Name: nc.GetLabels()[clusterv1.ClusterNameLabel]})
		})).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			c.fleets.onPodChanged(func(cluster client.ObjectKey, machine string) {
				if machine != "" {
					queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{Namespace: cluster.Namespace, Name: machine}})
					return
				}
				for _, req := range c.ofCluster(c.fleets.lead(), cluster) {
					queue.Add(req)
				}
			})
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.options.Concurrency}).
		Complete(c)
}

// ofPod returns a Machine or NstanceMachine that is for a pod.
func ofPod(_ context.Context, obj client.Object) []reconcile.Request {
	if _, ok := obj.GetLabels()[PodLabel]; !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(obj)}}
}

// ofCluster returns the Machines for pods of a Cluster: those that exist, and those of
// living pods.
func (c *podController) ofCluster(ctx context.Context, cluster client.ObjectKey) (out []reconcile.Request) {
	var machines clusterv1.MachineList
	if err := c.List(ctx, &machines, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}, client.HasLabels{PodLabel}); err != nil {
		return nil // a cache that has started does not fail
	}
	for i := range machines.Items {
		out = append(out, ofPod(ctx, &machines.Items[i])...)
	}
	if nodes := c.fleets.nodesOfCluster(cluster); nodes != nil {
		for _, name := range nodes.pods.machines() {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: cluster.Namespace, Name: name}})
		}
	}
	return out
}

// A podState is what one pass over the Machine of a pod works with.
type podState struct {
	key     client.ObjectKey
	cluster *clusterv1.Cluster
	nodes   *nodeDrainer
	pod     *metav1.PartialObjectMetadata // nil: it does not live
	machine *clusterv1.Machine            // nil: there is none
	infra   *infrav1.NstanceMachine       // nil: there is none
}

// Reconcile implements reconcile.Reconciler.
func (c *podController) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s, err := c.load(ctx, req.NamespacedName)
	if err != nil || s == nil {
		return ctrl.Result{}, err
	}
	switch {
	case annotations.IsPaused(s.cluster, s.object()):
		return ctrl.Result{}, nil // its end brings it back
	case !s.cluster.DeletionTimestamp.IsZero():
		return ctrl.Result{}, c.release(ctx, s)
	case s.nodes == nil || !s.nodes.pods.synced():
		return ctrl.Result{}, nil // it brings back all of the cluster
	}
	s.pod = s.nodes.pods.pod(s.key.Name)
	if s.pod == nil {
		return ctrl.Result{}, c.release(ctx, s)
	}
	return c.keep(ctx, s)
}

// load reads what there is of a Machine and its pod; nil: nothing, or another operator's.
func (c *podController) load(ctx context.Context, key client.ObjectKey) (*podState, error) {
	s := &podState{key: key, machine: &clusterv1.Machine{}, infra: &infrav1.NstanceMachine{}}
	if err := c.Get(ctx, key, s.machine); apierrors.IsNotFound(err) {
		s.machine = nil
	} else if err != nil {
		return nil, err
	}
	if err := c.Get(ctx, key, s.infra); apierrors.IsNotFound(err) {
		s.infra = nil
	} else if err != nil {
		return nil, err
	}
	var name string
	switch {
	case s.machine != nil:
		name = s.machine.Spec.ClusterName
	case s.infra != nil:
		name = s.infra.Labels[clusterv1.ClusterNameLabel]
	default:
		name = c.fleets.clusterOfPod(key)
	}
	if obj := s.object(); name == "" || obj.GetName() != "" && (c.options.ignores(obj) || len(ofPod(ctx, obj)) == 0) {
		return nil, nil //nolint:nilnil // nothing to do
	}
	var err error
	if s.cluster, err = util.GetClusterByName(ctx, c.Client, key.Namespace, name); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	s.nodes = c.fleets.nodesOf(s.cluster)
	return s, nil
}

// object is the Machine, or what else there is of it.
func (s *podState) object() client.Object {
	switch {
	case s.machine != nil:
		return s.machine
	case s.infra != nil:
		return s.infra
	}
	return &clusterv1.Machine{}
}

// release has the Machine of a pod go that does not live any more.
func (c *podController) release(ctx context.Context, s *podState) error {
	obj := s.object()
	if obj.GetName() == "" || !obj.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return client.IgnoreNotFound(c.Delete(ctx, obj))
}

// keep has the pod have a Machine.
func (c *podController) keep(ctx context.Context, s *podState) (ctrl.Result, error) {
	leaving := func(obj client.Object) bool { return !obj.GetDeletionTimestamp().IsZero() }
	switch {
	case s.machine != nil && leaving(s.machine), s.infra != nil && leaving(s.infra):
		return ctrl.Result{}, nil // its end brings it back
	case s.machine != nil && (isUnhealthy(s.machine) || s.infra == nil && ptr.Deref(s.machine.Status.Initialization.InfrastructureProvisioned, false)):
		return ctrl.Result{}, c.release(ctx, s) // whose end brings it back, for another
	case s.machine != nil && s.infra != nil:
		return ctrl.Result{}, c.reportFailure(ctx, s)
	case leaving(s.pod):
		return ctrl.Result{}, nil // too late for another
	}
	request, err := requestOf(s.pod)
	if err == nil {
		err = c.checkGroup(s, request)
	}
	if err == nil {
		err = c.create(ctx, s, request)
	}
	switch {
	case errors.Is(err, nstance.Unavailable):
		return ctrl.Result{RequeueAfter: retryKubeconfig}, nil
	case errors.Is(err, nstance.Invalid), errors.Is(err, nstance.Denied):
		return ctrl.Result{RequeueAfter: retryRefused}, s.publish(ctx, eventRefused, err.Error())
	}
	return ctrl.Result{}, err
}

// isUnhealthy reports whether a MachineHealthCheck wants a Machine replaced. Cluster API
// leaves that to the owner of the Machine.
func isUnhealthy(machine *clusterv1.Machine) bool {
	return meta.IsStatusConditionFalse(machine.Status.Conditions, clusterv1.MachineHealthCheckSucceededCondition) &&
		meta.IsStatusConditionFalse(machine.Status.Conditions, clusterv1.MachineOwnerRemediatedCondition)
}

// A podRequest is what a pod asks for.
type podRequest struct {
	group        nstance.GroupID
	instanceType string
	claim        string
}

// requestOf reads what a pod asks for. Fails with Invalid, naming the annotation.
func requestOf(pod *metav1.PartialObjectMetadata) (podRequest, error) {
	field := func(name string) string { return "metadata.annotations[" + name + "]" }
	r := podRequest{
		group:        nstance.GroupID(cmp.Or(pod.Annotations[PodGroup], pod.Labels[PodGroup])),
		instanceType: pod.Annotations[PodInstanceType],
	}
	r.claim = cmp.Or(pod.Annotations[PodClaim], string(r.group))
	if err := validate.Name(field(PodGroup), r.group); err != nil {
		return r, err
	}
	if len(r.instanceType) > 128 {
		return r, nstance.FieldError(field(PodInstanceType), "name a type of the provider's", "has %d characters", len(r.instanceType))
	}
	if wrong := validation.IsValidLabelValue(r.claim); len(wrong) > 0 {
		return r, nstance.FieldError(field(PodClaim), "give what can be the value of a label", "%.64q: %s", r.claim, strings.Join(wrong, "; "))
	}
	return r, nil
}

// checkGroup looks for the group. Fails with Unavailable while a shard that may have it is
// not connected, with Invalid when none has it.
func (c *podController) checkGroup(s *podState, r podRequest) error {
	fl := c.fleets.of(s.cluster)
	if fl == nil {
		return nstance.Errorf(nstance.Unavailable, "no shard is connected")
	}
	if c.fleets.shardWith(s.cluster, r.group) != "" {
		return nil
	}
	if err := fl.checkSynced(); err != nil {
		return err
	}
	return nstance.FieldError("metadata.annotations["+PodGroup+"]", "name a group that a shard has, in another pod, or add the group to a shard's configuration",
		"no shard of NstanceCluster %s has group %s", fl.key.Name, r.group)
}

// permit says whether the cluster makes machines for such a pod. Fails with Denied where it
// does not, naming the field that would.
func permit(nc *infrav1.NstanceCluster, namespace string, r podRequest) error {
	denied := func(field, remedy, format string, args ...any) error {
		return &nstance.Error{Code: nstance.Denied, Field: "spec.machinesForPods" + field, Msg: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	p := nc.Spec.MachinesForPods
	switch {
	case p == nil:
		return denied("", "set namespaces, groups and max there", "NstanceCluster %s makes no machines for pods", nc.Name)
	case !slices.Contains(p.Namespaces, namespace):
		return denied(".namespaces", "add it there", "NstanceCluster %s makes no machines for pods of namespace %s", nc.Name, namespace)
	case !slices.Contains(p.Groups, string(r.group)):
		return denied(".groups", "add it there", "NstanceCluster %s makes no machines for pods in group %s", nc.Name, r.group)
	case r.instanceType != "" && !slices.Contains(p.InstanceTypes, r.instanceType):
		return denied(".instanceTypes", "add it there", "NstanceCluster %s makes no machines for pods of type %s", nc.Name, r.instanceType)
	}
	return nil
}

// checkCount fails with Denied when the cluster may have no further machine for a pod.
func (c *podController) checkCount(ctx context.Context, reader client.Reader, s *podState, nc *infrav1.NstanceCluster) error {
	var list infrav1.NstanceMachineList
	if err := reader.List(ctx, &list, client.InNamespace(s.key.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}, client.HasLabels{PodLabel}); err != nil {
		return err
	}
	others := 0
	for i := range list.Items {
		if list.Items[i].Name != s.key.Name {
			others++
		}
	}
	if limit := nc.Spec.MachinesForPods.Max; others >= int(limit) {
		return &nstance.Error{
			Code: nstance.Denied, Field: "spec.machinesForPods.max", Msg: fmt.Sprintf("NstanceCluster %s has the %d machines for pods that it may have", nc.Name, limit),
			Remedy: "wait until other pods have ended, or raise it",
		}
	}
	return nil
}

// create makes what is missing of Machine and NstanceMachine. Their names make sure that
// there is one. Fails with Denied where the cluster permits none.
func (c *podController) create(ctx context.Context, s *podState, r podRequest) error {
	var nc infrav1.NstanceCluster
	if err := c.Get(ctx, infrastructureOf(s.cluster), &nc); err != nil {
		return err
	}
	if err := permit(&nc, s.pod.Namespace, r); err != nil {
		return err
	}
	if err := c.checkCount(ctx, c.Client, s, &nc); err != nil { // which spares the API server
		return err
	}
	c.counting.Lock()
	defer c.counting.Unlock()
	if err := c.checkCount(ctx, c.uncached, s, &nc); err != nil {
		return err
	}
	about := metav1.ObjectMeta{
		Namespace: s.key.Namespace, Name: s.key.Name,
		Labels:      map[string]string{clusterv1.ClusterNameLabel: s.cluster.Name, PodLabel: string(s.pod.UID)},
		Annotations: map[string]string{PodLabel: s.pod.Namespace + "/" + s.pod.Name},
	}
	infra := &infrav1.NstanceMachine{ObjectMeta: *about.DeepCopy()}
	infra.Spec.Group, infra.Spec.InstanceType = string(r.group), r.instanceType
	machine := &clusterv1.Machine{ObjectMeta: about, Spec: clusterv1.MachineSpec{
		ClusterName: s.cluster.Name, Bootstrap: clusterv1.Bootstrap{DataSecretName: new(string)},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceMachine", Name: s.key.Name},
	}}
	machine.Labels = maps.Clone(machine.Labels)
	machine.Labels[ClaimLabel] = r.claim
	for _, obj := range []client.Object{infra, machine} {
		inheritFilter(obj, &nc)
		if err := c.Create(ctx, obj); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// reportFailure has the pod say why its machine cannot be created.
func (c *podController) reportFailure(ctx context.Context, s *podState) error {
	failed := conditions.Get(s.infra, infrav1.ConditionCreateFailed)
	if failed == nil || failed.Status != metav1.ConditionTrue {
		return nil
	}
	return s.publish(ctx, eventCreateFailed, failed.Message)
}

// publish makes an event on the pod, once for each message.
func (s *podState) publish(ctx context.Context, reason, message string) error {
	sum := sha256.Sum256([]byte(reason + "\x00" + message))
	now := metav1.NewTime(time.Now())
	_, err := s.nodes.client.CoreV1().Events(s.pod.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.pod.Namespace, Name: s.key.Name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: s.pod.Namespace, Name: s.pod.Name, UID: s.pod.UID,
		},
		Type: corev1.EventTypeWarning, Reason: reason, Message: clip.Text(message, 1024),
		Source: corev1.EventSource{Component: "nstance-operator"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) { // it is said, or the namespace is gone
		return nil
	}
	return err
}
