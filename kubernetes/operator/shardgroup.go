package operator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// Reasons of conditions of a group.
const (
	reasonSynced      = "Synced"
	reasonShardLost   = "ShardLost"
	reasonNoGroup     = "NoGroup"
	reasonNotAccepted = "NotAccepted"
	reasonDeleting    = "Deleting"
	reasonIncomplete  = "Incomplete"
	reasonComplete    = "Complete"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstanceshardgroups,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstanceshardgroups/status,verbs=patch

// A shardGroupController keeps a group of one shard as its NstanceShardGroup says.
type shardGroupController struct {
	client.Client
	status  *statusKeeper
	fleets  *fleets
	secrets client.Reader
	options Options
}

// ShardGroupName is the name of the NstanceShardGroup of a group at a shard.
func ShardGroupName(group nstance.GroupID, shard nstance.ShardID) string {
	return fmt.Sprintf("%s--%s", group, shard)
}

// shardGroup is the NstanceShardGroup that a change is about.
func (c change) shardGroup() client.ObjectKey {
	return client.ObjectKey{Namespace: c.cluster.Namespace, Name: ShardGroupName(c.group, c.shard)}
}

func (c *shardGroupController) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&infrav1.NstanceShardGroup{}).
		Watches(&infrav1.NstanceCluster{}, handler.EnqueueRequestsFromMapFunc(c.groupsOf)).
		WatchesRawSource(c.fleets.changes(func(c change) []client.ObjectKey { return []client.ObjectKey{c.shardGroup()} })).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.options.Concurrency}).
		Complete(c)
}

// groupsOf returns the groups of a cluster: one of its shards was reached.
func (c *shardGroupController) groupsOf(ctx context.Context, nc client.Object) (out []reconcile.Request) {
	var groups infrav1.NstanceShardGroupList
	if err := c.List(ctx, &groups, client.InNamespace(nc.GetNamespace()), client.MatchingLabels{
		clusterv1.ClusterNameLabel: nc.GetLabels()[clusterv1.ClusterNameLabel],
	}); err != nil {
		return nil // a cache that has started does not fail
	}
	for _, g := range groups.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&g)})
	}
	return out
}

// Reconcile implements reconcile.Reconciler.
func (c *shardGroupController) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	var sg infrav1.NstanceShardGroup
	if err := c.Get(ctx, req.NamespacedName, &sg); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if c.options.ignores(&sg) {
		return ctrl.Result{}, nil
	}
	cluster, err := clusterOf(ctx, c.Client, &sg)
	if err != nil {
		return ctrl.Result{}, err
	}
	if isPaused, requeue, err := paused.EnsurePausedCondition(ctx, c.Client, cluster, &sg); err != nil || isPaused || requeue {
		return ctrl.Result{}, err
	}
	store, err := c.status.open(&sg, infrav1.ConditionSynced, clusterv1.ReadyCondition)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer func() { err = store(ctx, err) }()
	if sg.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(&sg, infrav1.Finalizer) {
		return ctrl.Result{}, nil // the patch brings it back
	}
	at, err := c.find(ctx, cluster, &sg)
	if err != nil {
		notSynced(&sg, reasonShardLost, err)
		if !sg.DeletionTimestamp.IsZero() && abandoned(ctx, c.Client, cluster, sg.Spec.Shard) {
			controllerutil.RemoveFinalizer(&sg, infrav1.Finalizer)
		}
		return ctrl.Result{}, nil // the shard's return, or the NstanceCluster, brings it back
	}
	if !sg.DeletionTimestamp.IsZero() {
		return c.remove(ctx, &sg, cluster, at)
	}
	return c.follow(ctx, &sg, at)
}

// find returns what is known of the group at its shard.
func (c *shardGroupController) find(ctx context.Context, cluster *clusterv1.Cluster, sg *infrav1.NstanceShardGroup) (at shardCopy, err error) {
	if at.Shard, at.api, err = c.fleets.shardOf(cluster, nstance.ShardID(sg.Spec.Shard)); err != nil {
		return at, err
	}
	at.now, _ = at.Group(nstance.GroupID(sg.Spec.Group))
	at.owner, err = ownerOf(ctx, c.Client, cluster)
	return at, err
}

// follow makes the group at the shard what the spec says, and shows it.
func (c *shardGroupController) follow(ctx context.Context, sg *infrav1.NstanceShardGroup, at shardCopy) (ctrl.Result, error) {
	if otherOwner(at.now, at.owner) {
		notSynced(sg, reasonOtherOwner, otherOwnerError(sg, at.now, at.owner))
		return ctrl.Result{RequeueAfter: retryOwned}, nil
	}
	if at.now == nil && sg.Spec.Template == "" {
		notSynced(sg, reasonNoGroup, nstance.FieldError("spec.template",
			"add the group to the shard's configuration, or name the template that it is made from", "shard %s has no group %s", sg.Spec.Shard, sg.Spec.Group))
		return ctrl.Result{}, nil
	}
	now, err := c.sync(ctx, sg, at)
	if err != nil {
		notSynced(sg, reasonNotAccepted, err)
		return retryAfter(err)
	}
	show(sg, now)
	return ctrl.Result{}, nil
}

// A shardCopy is a shard, its API, the group there as far as it is known, and who the cluster is
// to it.
type shardCopy struct {
	*shards.Shard
	api   apiv1.OperatorServiceClient
	now   *apiv1.Group // nil: there is none
	owner string
}

// retryAfter is when a request that failed is repeated.
func retryAfter(err error) (ctrl.Result, error) {
	switch {
	case errors.Is(err, nstance.Invalid), errors.Is(err, nstance.Denied): // for the user to mend
		return ctrl.Result{RequeueAfter: retryRefused}, nil
	case errors.Is(err, nstance.Conflict):
		return ctrl.Result{RequeueAfter: retryOwned}, nil
	}
	return ctrl.Result{}, err
}

// sync makes the shard's group what the spec says, and this cluster's, and returns it.
func (c *shardGroupController) sync(ctx context.Context, sg *infrav1.NstanceShardGroup, at shardCopy) (*apiv1.Group, error) {
	now := at.now
	data, err := bootstrapData(ctx, c.secrets, sg.Namespace, sg.Spec.BootstrapSecretName)
	if err != nil {
		return now, err
	}
	digest := digestOf(data)
	if now == nil || now.GetRemoving() {
		req := newGroup(sg)
		req.BootstrapData, req.Owner = data, at.owner
		resp, err := at.api.CreateGroup(ctx, req)
		if err == nil {
			sg.Status.BootstrapDigest = digest
		}
		return resp.GetGroup(), err
	}
	req := changes(sg, now)
	changed := data != nil && digest != sg.Status.BootstrapDigest
	if req == nil && !changed && now.GetOwner() == at.owner {
		return now, nil
	}
	if req == nil {
		req = &apiv1.UpdateGroupRequest{Group: sg.Spec.Group}
	}
	if req.Owner = at.owner; changed {
		req.BootstrapData = data
	}
	resp, err := at.api.UpdateGroup(ctx, req)
	if err == nil {
		sg.Status.BootstrapDigest = digest
	}
	return resp.GetGroup(), err
}

// digestOf identifies bootstrap data; empty: there is none.
func digestOf(data []byte) string {
	if data == nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// remove gives up the machines, and lets the object go when there is none left. A group of the
// shard's configuration stays, with size 0 and without owner. That of another owner is not
// touched.
func (c *shardGroupController) remove(ctx context.Context, sg *infrav1.NstanceShardGroup, cluster *clusterv1.Cluster, at shardCopy) (ctrl.Result, error) {
	if at.now != nil && !owns(sg, at.now, at.owner) {
		controllerutil.RemoveFinalizer(sg, infrav1.Finalizer)
		return ctrl.Result{}, nil
	}
	if err := at.giveUp(ctx, sg); err != nil && !errors.Is(err, nstance.NotFound) {
		notSynced(sg, reasonDeleting, err)
		return retryAfter(err)
	}
	group := nstance.GroupID(sg.Spec.Group)
	if !cluster.DeletionTimestamp.IsZero() {
		if err := deleteUndrained(ctx, at.api, at.Instances(group)); err != nil {
			return ctrl.Result{}, err
		}
	}
	if left := len(at.Instances(group)); left > 0 || !at.Synced() {
		notSynced(sg, reasonDeleting, fmt.Errorf("%d machines are left", left))
		return ctrl.Result{}, nil // their end brings it back
	}
	if at.now.GetIsStatic() && at.now.GetOwner() != "" {
		if _, err := at.api.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Group: sg.Spec.Group, Size: new(int32), Owner: at.owner, Release: true}); err != nil {
			notSynced(sg, reasonDeleting, err)
			return retryAfter(err)
		}
	}
	controllerutil.RemoveFinalizer(sg, infrav1.Finalizer)
	return ctrl.Result{}, nil
}

// giveUp has the shard delete the machines of the group. A copy without the group may be older
// than its making, also by a request whose answer was lost: only the shard knows.
func (at shardCopy) giveUp(ctx context.Context, sg *infrav1.NstanceShardGroup) (err error) {
	switch {
	case at.now.GetRemoving(), at.now == nil && sg.Spec.Template == "":
	case at.now == nil:
		_, err = at.api.DeleteGroup(ctx, &apiv1.DeleteGroupRequest{Group: sg.Spec.Group, Owner: at.owner})
	case at.now.GetIsStatic():
		if at.now.GetSize() > 0 {
			_, err = at.api.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Group: at.now.GetGroup(), Size: new(int32), Owner: at.owner})
		}
	default:
		_, err = at.api.DeleteGroup(ctx, &apiv1.DeleteGroupRequest{Group: at.now.GetGroup(), Owner: at.owner})
	}
	return err
}

// notSynced says why a group is not as its spec says. How many of its machines are ready is not
// known then.
func notSynced(sg *infrav1.NstanceShardGroup, reason string, err error) {
	conditions.Set(sg, metav1.Condition{Type: infrav1.ConditionSynced, Status: metav1.ConditionFalse, Reason: reason, Message: err.Error()})
	conditions.Set(sg, metav1.Condition{Type: clusterv1.ReadyCondition, Status: metav1.ConditionUnknown, Reason: reason, Message: err.Error()})
}

// show sets the status to what the shard has.
func show(sg *infrav1.NstanceShardGroup, now *apiv1.Group) {
	size, ready, booting, leaving := now.GetSize(), now.GetReady(), now.GetBooting(), now.GetLeaving()
	sg.Status.Size, sg.Status.Ready, sg.Status.Booting, sg.Status.Leaving = &size, &ready, &booting, &leaving
	sg.Status.Holds = nil
	for _, h := range now.GetHolds() {
		sg.Status.Holds = append(sg.Status.Holds, infrav1.Hold{Kind: h.GetKind(), Message: h.GetReason()})
	}
	sg.Status.ObservedGeneration = sg.Generation
	conditions.Set(sg, metav1.Condition{Type: infrav1.ConditionSynced, Status: metav1.ConditionTrue, Reason: reasonSynced})
	complete := metav1.Condition{Type: clusterv1.ReadyCondition, Status: metav1.ConditionTrue, Reason: reasonComplete}
	if ready < size {
		complete.Status, complete.Reason, complete.Message = metav1.ConditionFalse, reasonIncomplete, fmt.Sprintf("%d of %d machines are ready", ready, size)
	}
	conditions.Set(sg, complete)
}

// newGroup is the request for a group that the shard does not have.
func newGroup(sg *infrav1.NstanceShardGroup) *apiv1.CreateGroupRequest {
	spec := sg.Spec
	req := &apiv1.CreateGroupRequest{
		Group: spec.Group, Template: spec.Template, Size: spec.Size, SubnetPool: spec.SubnetPool, Vars: spec.Vars,
		LoadBalancers: spec.LoadBalancers, Market: market(spec.Spot), OnDrainTimeout: string(spec.OnDrainTimeout),
	}
	if spec.InstanceType != "" {
		req.InstanceTypes = []string{spec.InstanceType}
	}
	if spec.DrainTimeout != nil {
		req.DrainTimeout = durationpb.New(spec.DrainTimeout.Duration)
	}
	return req
}

// market of a group that is made through the API: absent spot options mean on demand.
func market(spot *infrav1.SpotOptions) *apiv1.Market {
	if spot == nil {
		return &apiv1.Market{Type: string(nstance.OnDemand)}
	}
	return &apiv1.Market{Type: string(nstance.Spot), MaxPrice: spot.MaxPrice}
}

// changes is the request that makes a group what the spec says; nil: it is. Of a
// group of the shard's configuration only size, instance type and vars can be
// changed; what the spec leaves out stays as it is there.
func changes(sg *infrav1.NstanceShardGroup, now *apiv1.Group) *apiv1.UpdateGroupRequest {
	spec, req, differs := sg.Spec, &apiv1.UpdateGroupRequest{Group: sg.Spec.Group}, false
	if size := *spec.Size; size != now.GetSize() {
		req.Size, req.RemoveFirst, differs = &size, spec.RemoveFirst, true
	}
	if spec.InstanceType != "" && !slices.Equal(now.GetInstanceTypes(), []string{spec.InstanceType}) {
		req.InstanceType, differs = &spec.InstanceType, true
	}
	if (len(spec.Vars) > 0 || !now.GetIsStatic()) && !maps.Equal(spec.Vars, now.GetVars()) {
		req.Vars, differs = &apiv1.Vars{Values: spec.Vars}, true
	}
	if now.GetIsStatic() {
		return onlyIf(differs, req)
	}
	if !slices.Equal(spec.LoadBalancers, now.GetLoadBalancers()) && len(spec.LoadBalancers) > 0 {
		req.LoadBalancers, differs = &apiv1.Strings{Values: spec.LoadBalancers}, true
	}
	if want := market(spec.Spot); want.GetType() != now.GetMarket().GetType() || want.GetMaxPrice() != now.GetMarket().GetMaxPrice() {
		req.Market, differs = want, true
	}
	if spec.DrainTimeout != nil && spec.DrainTimeout.Duration != now.GetDrainTimeout().AsDuration() {
		req.DrainTimeout, differs = durationpb.New(spec.DrainTimeout.Duration), true
	}
	if want := string(spec.OnDrainTimeout); want != "" && want != now.GetOnDrainTimeout() {
		req.OnDrainTimeout, differs = want, true
	}
	if spec.Template != "" && spec.Template != now.GetTemplate() {
		req.Template, differs = &spec.Template, true
	}
	if spec.SubnetPool != "" && spec.SubnetPool != now.GetSubnetPool() {
		req.SubnetPool, differs = &spec.SubnetPool, true
	}
	return onlyIf(differs, req)
}

func onlyIf(differs bool, req *apiv1.UpdateGroupRequest) *apiv1.UpdateGroupRequest {
	if !differs {
		return nil
	}
	return req
}

// clusterOf returns the Cluster that an object's label names.
func clusterOf(ctx context.Context, c client.Client, obj client.Object) (*clusterv1.Cluster, error) {
	name := obj.GetLabels()[clusterv1.ClusterNameLabel]
	if name == "" {
		return nil, reconcile.TerminalError(nstance.FieldError("metadata.labels", "add the Cluster's name", "there is no label %s", clusterv1.ClusterNameLabel))
	}
	var cluster clusterv1.Cluster
	if err := c.Get(ctx, client.ObjectKey{Namespace: obj.GetNamespace(), Name: name}, &cluster); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nstance.Errorf(nstance.NotFound, "there is no Cluster %s: %w", name, err)
		}
		return nil, err
	}
	return &cluster, nil
}
