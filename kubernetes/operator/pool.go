package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/labels/format"
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
)

// Reasons of conditions of a pool.
const (
	reasonInvalid = "Invalid"
	reasonScaling = "Scaling"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstancemachinepools,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstancemachinepools/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstancemachinepools/finalizers,verbs=update
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstanceshardgroups,verbs=create;delete
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstancemachines,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinepools,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list;watch;delete

// A poolController splits the replicas of a MachinePool over shards, and shows each
// instance as an NstanceMachine, for which Cluster API makes a Machine.
type poolController struct {
	client.Client
	status  *statusKeeper
	fleets  *fleets
	options Options
}

func (c *poolController) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&infrav1.NstanceMachinePool{}).
		Owns(&infrav1.NstanceShardGroup{}).
		Watches(&infrav1.NstanceMachine{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &infrav1.NstanceMachinePool{})).
		Watches(&clusterv1.MachinePool{}, handler.EnqueueRequestsFromMapFunc(
			util.MachinePoolToInfrastructureMapFunc(context.Background(), infrav1.GroupVersion.WithKind("NstanceMachinePool")))).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(c.poolOfMachine)).
		Watches(&infrav1.NstanceCluster{}, handler.EnqueueRequestsFromMapFunc(c.poolsOf)).
		WatchesRawSource(c.fleets.changes(c.poolsOfChange)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.options.Concurrency}).
		Complete(c)
}

// poolOfMachine returns the pool that a Machine is of, through its MachinePool: the
// NstanceMachine goes before the Machine.
func (c *poolController) poolOfMachine(ctx context.Context, machine client.Object) []reconcile.Request {
	owner := metav1.GetControllerOf(machine)
	if owner == nil || owner.Kind != "MachinePool" {
		return nil
	}
	var mp clusterv1.MachinePool
	if err := c.Get(ctx, client.ObjectKey{Namespace: machine.GetNamespace(), Name: owner.Name}, &mp); err != nil {
		return nil // it goes last
	}
	return util.MachinePoolToInfrastructureMapFunc(ctx, infrav1.GroupVersion.WithKind("NstanceMachinePool"))(ctx, &mp)
}

// poolsOf returns the pools of a cluster: one of its shards was reached or lost.
func (c *poolController) poolsOf(ctx context.Context, nc client.Object) (out []reconcile.Request) {
	var pools infrav1.NstanceMachinePoolList
	if err := c.List(ctx, &pools, ofCluster(nc)...); err != nil {
		return nil // a cache that has started does not fail
	}
	for _, p := range pools.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&p)})
	}
	return out
}

// poolsOfChange returns the pool of a group that has changed.
func (c *poolController) poolsOfChange(ch change) []client.ObjectKey {
	var sg infrav1.NstanceShardGroup
	if err := c.Get(c.fleets.lead(), ch.shardGroup(), &sg); err != nil {
		return nil // no pool's
	}
	owner := metav1.GetControllerOf(&sg)
	if owner == nil {
		return nil
	}
	return []client.ObjectKey{{Namespace: sg.Namespace, Name: owner.Name}}
}

// ofCluster selects the objects of the cluster that an object is of.
func ofCluster(obj client.Object) []client.ListOption {
	return []client.ListOption{
		client.InNamespace(obj.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: obj.GetLabels()[clusterv1.ClusterNameLabel]},
	}
}

// A poolState is what one pass over a pool works with.
type poolState struct {
	pool    *infrav1.NstanceMachinePool
	owner   *clusterv1.MachinePool
	cluster *clusterv1.Cluster
	groups  map[string]*infrav1.NstanceShardGroup // by shard
	members map[string]*infrav1.NstanceMachine    // by name, which is the instance's ID
	shown   map[string]*clusterv1.Machine         // by name

	claimant string // whose the cluster's groups are at shards

	// chosen are the instances that shall go, by shard.
	chosen map[string][]string

	// limits are those of shards that lack capacity, by shard.
	limits map[string]*capacityLimit
}

// Reconcile implements reconcile.Reconciler.
func (c *poolController) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	var pool infrav1.NstanceMachinePool
	if err := c.Get(ctx, req.NamespacedName, &pool); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if c.options.ignores(&pool) {
		return ctrl.Result{}, nil
	}
	owner, err := util.GetOwnerMachinePool(ctx, c.Client, pool.ObjectMeta)
	if err != nil || owner == nil {
		return ctrl.Result{}, client.IgnoreNotFound(err) // Cluster API has not taken it over yet
	}
	cluster, err := util.GetClusterByName(ctx, c.Client, pool.Namespace, owner.Spec.ClusterName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if isPaused, requeue, err := paused.EnsurePausedCondition(ctx, c.Client, cluster, &pool); err != nil || isPaused || requeue {
		return ctrl.Result{}, err
	}
	store, err := c.status.open(&pool, infrav1.ConditionSynced, clusterv1.ReadyCondition)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer func() { err = store(ctx, err) }()
	if pool.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(&pool, infrav1.Finalizer) {
		return ctrl.Result{}, nil // the patch brings it back
	}
	s, err := c.load(ctx, &pool, owner, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !pool.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, c.remove(ctx, s)
	}
	if err := c.sync(ctx, s); err != nil {
		wrong := metav1.Condition{Type: infrav1.ConditionSynced, Status: metav1.ConditionFalse, Reason: reasonNotAccepted, Message: err.Error()}
		if errors.Is(err, nstance.Invalid) {
			wrong.Reason, err = reasonInvalid, reconcile.TerminalError(err) // for the user to mend
		}
		conditions.Set(&pool, wrong)
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: s.nextRetry(time.Now())}, nil
}

// load reads what there is of a pool.
func (c *poolController) load(ctx context.Context, pool *infrav1.NstanceMachinePool, owner *clusterv1.MachinePool, cluster *clusterv1.Cluster) (*poolState, error) {
	s := &poolState{
		pool: pool, owner: owner, cluster: cluster, groups: map[string]*infrav1.NstanceShardGroup{},
		members: map[string]*infrav1.NstanceMachine{}, shown: map[string]*clusterv1.Machine{}, limits: map[string]*capacityLimit{},
	}
	var (
		groups   infrav1.NstanceShardGroupList
		members  infrav1.NstanceMachineList
		machines clusterv1.MachineList
	)
	inCluster := []client.ListOption{client.InNamespace(pool.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}}
	inPool := []client.ListOption{client.InNamespace(pool.Namespace), client.MatchingLabels(s.labels())}
	if err := errors.Join(c.List(ctx, &groups, inCluster...), c.List(ctx, &members, inPool...), c.List(ctx, &machines, inPool...)); err != nil {
		return nil, err
	}
	for i := range groups.Items {
		if g := &groups.Items[i]; metav1.IsControlledBy(g, pool) {
			s.groups[g.Spec.Shard] = g
		}
	}
	for i := range members.Items {
		s.members[members.Items[i].Name] = &members.Items[i]
	}
	for i := range machines.Items {
		s.shown[machines.Items[i].Name] = &machines.Items[i]
	}
	return s, nil
}

// labels are how Cluster API finds the machines of a pool.
func (s *poolState) labels() map[string]string {
	return map[string]string{
		clusterv1.ClusterNameLabel:     s.cluster.Name,
		clusterv1.MachinePoolNameLabel: format.MustFormatValue(s.owner.Name),
	}
}

// group is the name of the pool's group at each shard.
func (s *poolState) group() string { return cmp.Or(s.pool.Spec.Group, s.pool.Name) }

// sync splits the replicas, and shows what the shards have.
func (c *poolController) sync(ctx context.Context, s *poolState) error {
	shards, err := c.shardsOf(ctx, s)
	if err == nil {
		s.claimant, err = ownerOf(ctx, c.Client, s.cluster)
	}
	if err != nil {
		return err
	}
	err = c.divide(ctx, s, shards)
	errs := []error{err}
	for name := range s.groups {
		errs = append(errs, c.follow(ctx, s, name))
	}
	if err == nil {
		s.show(shards)
	}
	return errors.Join(errs...)
}

// shardsOf returns the shards of a pool in its order.
func (c *poolController) shardsOf(ctx context.Context, s *poolState) ([]string, error) {
	var nc infrav1.NstanceCluster
	if err := c.Get(ctx, infrastructureOf(s.cluster), &nc); err != nil {
		return nil, err
	}
	var known []string
	for _, shard := range nc.Spec.Shards {
		known = append(known, shard.Name)
	}
	wanted, field := s.pool.Spec.Shards, "spec.shards"
	if len(wanted) == 0 {
		wanted, field = s.owner.Spec.FailureDomains, "MachinePool.spec.failureDomains"
	}
	for _, name := range wanted {
		if !slices.Contains(known, name) {
			return nil, nstance.FieldError(field, "name shards of the NstanceCluster: "+strings.Join(known, ", "), "NstanceCluster %s has no shard %s", nc.Name, name)
		}
	}
	if len(wanted) == 0 {
		return known, nil
	}
	return wanted, nil
}

// divide has each shard keep its part of the replicas, and no other shard any. A group that
// cannot be changed keeps no other from it, and leaves s.
func (c *poolController) divide(ctx context.Context, s *poolState, shards []string) error {
	var errs []error
	sizes := s.plan(shards, time.Now())
	for _, name := range shards {
		g, err := c.apply(ctx, s, name, sizes[name], s.chosen[name])
		if s.groups[name] = g; err != nil {
			delete(s.groups, name)
			errs = append(errs, err)
		}
	}
	for name, g := range s.groups {
		if !slices.Contains(shards, name) && g.DeletionTimestamp.IsZero() {
			errs = append(errs, client.IgnoreNotFound(c.Delete(ctx, g)))
		}
	}
	return errors.Join(errs...)
}

// plan chooses what shall go, and returns the size of each shard's part.
func (s *poolState) plan(shards []string, now time.Time) map[string]int32 {
	s.choose()
	has := map[string]int32{}
	for _, name := range shards {
		if g := s.groups[name]; g != nil {
			has[name] = ptr.Deref(g.Spec.Size, 0) - int32(len(s.chosen[name]))
		}
	}
	return s.sizes(shards, has, now)
}

// choose sets the instances that shall go because there are more than replicas and their
// Machines say that they go first.
func (s *poolState) choose() {
	s.chosen = map[string][]string{}
	surplus := -int(ptr.Deref(s.owner.Spec.Replicas, 1))
	for _, m := range s.members {
		if staying(m) {
			surplus++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		m, machine := s.members[name], s.shown[name]
		if surplus > 0 && machine != nil && staying(m) && metav1.HasAnnotation(machine.ObjectMeta, clusterv1.DeleteMachineAnnotation) {
			s.chosen[m.Spec.Shard] = append(s.chosen[m.Spec.Shard], m.Spec.InstanceID)
			surplus--
		}
	}
}

// replaced returns those of the chosen instances that the smaller size of a shard does not remove. now
// is its group there: the size may not have arrived yet, and the shard would replace what is
// drained before.
func (s *poolState) replaced(shard string, now *apiv1.Group) []string {
	chosen := s.chosen[shard]
	fewer := max(0, int(now.GetSize()-ptr.Deref(s.groups[shard].Spec.Size, 0)))
	return chosen[min(fewer, len(chosen)):]
}

// staying reports whether a member is not on its way out.
func staying(m *infrav1.NstanceMachine) bool {
	return m.DeletionTimestamp.IsZero() && !nstance.State(m.Status.State).Leaving() && nstance.State(m.Status.State) != nstance.Gone
}

// apply makes the NstanceShardGroup of a shard what it shall be.
func (c *poolController) apply(ctx context.Context, s *poolState, shard string, size int32, remove []string) (*infrav1.NstanceShardGroup, error) {
	g := &infrav1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.pool.Namespace, Name: ShardGroupName(nstance.GroupID(s.group()), nstance.ShardID(shard)),
	}}
	_, err := controllerutil.CreateOrPatch(ctx, c.Client, g, func() error {
		metav1.SetMetaDataLabel(&g.ObjectMeta, clusterv1.ClusterNameLabel, s.cluster.Name)
		inheritFilter(g, s.pool)
		spec := s.pool.Spec
		g.Spec.Group, g.Spec.Shard, g.Spec.Size, g.Spec.RemoveFirst = s.group(), shard, &size, remove
		shareSpec(&g.Spec, &spec)
		g.Spec.BootstrapSecretName = ptr.Deref(s.owner.Spec.Template.Spec.Bootstrap.DataSecretName, "")
		return controllerutil.SetControllerReference(s.pool, g, c.Scheme())
	})
	if owned, ok := errors.AsType[*controllerutil.AlreadyOwnedError](err); ok {
		return nil, nstance.FieldError("spec.group", "give each pool a group of its own", "group %s of shard %s is of pool %s", s.group(), shard, owned.Owner.Name)
	}
	return g, err
}

// shareSpec has a group ask for what its pool does.
func shareSpec(g *infrav1.NstanceShardGroupSpec, p *infrav1.NstanceMachinePoolSpec) {
	g.Template, g.SubnetPool, g.DrainTimeout, g.OnDrainTimeout, g.Shape = p.Template, p.SubnetPool, p.DrainTimeout, p.OnDrainTimeout, p.Shape
}

// follow shows the instances of one shard: each gets an NstanceMachine as soon as there is a
// machine. It goes by itself when there is none any more. Without the shard nothing changes.
// Stand-by instances are not shown: they are in none of the group's numbers, and no health
// check shall replace one that is parked.
func (c *poolController) follow(ctx context.Context, s *poolState, name string) error {
	shard, api, err := c.fleets.shardOf(s.cluster, nstance.ShardID(name))
	if err != nil {
		return nil //nolint:nilerr // the group's condition says it, and the shard's return brings the pool back
	}
	group, _ := shard.Group(nstance.GroupID(s.group()))
	if !owns(s.groups[name], group, s.claimant) {
		return nil // likewise
	}
	replaced := s.replaced(name, group)
	var errs []error
	for _, i := range shard.Instances(nstance.GroupID(s.group())) {
		errs = append(errs, c.followInstance(ctx, s, api, name, i, s.departure(i.GetId(), replaced)))
	}
	return errors.Join(errs...)
}

// followInstance shows one instance of a shard, and has it drained for the reason that the pool
// has to replace it; empty: none.
func (c *poolController) followInstance(ctx context.Context, s *poolState, api apiv1.OperatorServiceClient, shard string, i *apiv1.Instance, why string) error {
	var errs []error
	if s.members[i.GetId()] == nil && i.GetNodeProviderId() != "" && !i.GetOnDemand() && !i.GetStandby() {
		errs = append(errs, c.member(ctx, s, shard, i))
	}
	if why != "" && i.GetDrain() == nil && !nstance.State(i.GetState()).Leaving() {
		_, err := api.DrainInstance(ctx, &apiv1.DrainInstanceRequest{Id: i.GetId(), Reason: why})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// departure returns why the pool has an instance replaced; empty: it does not. Cluster API
// leaves it to the pool to replace the Machines that a MachineHealthCheck finds unhealthy.
func (s *poolState) departure(id string, replaced []string) string {
	machine := s.shown[id]
	switch {
	case machine == nil:
	case isUnhealthy(machine):
		return "a MachineHealthCheck found its Machine unhealthy"
	case slices.Contains(replaced, id):
		return "its Machine has the annotation " + clusterv1.DeleteMachineAnnotation
	}
	return ""
}

// member makes the NstanceMachine of an instance.
func (c *poolController) member(ctx context.Context, s *poolState, shard string, i *apiv1.Instance) error {
	m := &infrav1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.pool.Namespace, Name: i.GetId(), Labels: s.labels(), Finalizers: []string{infrav1.Finalizer},
			// Not as the controller: that is the Machine.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: infrav1.GroupVersion.String(), Kind: "NstanceMachinePool", Name: s.pool.Name, UID: s.pool.UID,
			}},
		},
		Spec: infrav1.NstanceMachineSpec{Group: i.GetGroup(), Shard: shard, InstanceID: i.GetId(), ProviderID: i.GetNodeProviderId()},
	}
	inheritFilter(m, s.pool)
	err := c.Create(ctx, m)
	if apierrors.IsAlreadyExists(err) {
		return nil // the cache is behind, and brings the pool back
	}
	if err == nil {
		s.members[m.Name] = m
	}
	return err
}

// inheritFilter has an object be of the operator that its pool is of.
func inheritFilter(obj, pool client.Object) {
	if filter, ok := pool.GetLabels()[clusterv1.WatchLabel]; ok {
		of := maps.Clone(obj.GetLabels())
		of[clusterv1.WatchLabel] = filter
		obj.SetLabels(of)
	}
}

// show sets the status to what there is.
func (s *poolState) show(shards []string) {
	p := s.pool
	p.Spec.ProviderIDList, p.Status.Replicas = nil, new(int32)
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		m := s.members[name]
		p.Spec.ProviderIDList = append(p.Spec.ProviderIDList, m.Spec.ProviderID)
		if staying(m) {
			*p.Status.Replicas++
		}
	}
	p.Status.InfrastructureMachineKind, p.Status.ObservedGeneration, p.Status.Scale = "NstanceMachine", p.Generation, p.Spec.Scale
	p.Status.Shards = nil
	var unsynced, owned []string
	missing := int32(0)
	for _, name := range shards {
		g := s.groups[name]
		at := infrav1.PoolShard{Name: name, Size: g.Spec.Size, Ready: g.Status.Ready}
		missing += max(0, *g.Spec.Size-ptr.Deref(g.Status.Ready, 0))
		if c := conditions.Get(g, infrav1.ConditionSynced); c == nil || c.Status != metav1.ConditionTrue || g.Status.ObservedGeneration != g.Generation {
			unsynced = append(unsynced, name)
			if c != nil {
				at.Message = c.Message
			}
			if c != nil && c.Reason == reasonOtherOwner {
				owned = append(owned, c.Message)
			}
		} else {
			p.Status.Ready = true
		}
		for _, h := range g.Status.Holds {
			at.Message = cmp.Or(at.Message, h.Message)
		}
		if limit := s.limits[name]; limit != nil {
			limit.showOn(&at)
		}
		p.Status.Shards = append(p.Status.Shards, at)
	}
	if p.Status.Ready {
		p.Status.Initialization.Provisioned = ptr.To(true)
	}
	synced := metav1.Condition{Type: infrav1.ConditionSynced, Status: metav1.ConditionTrue, Reason: reasonSynced}
	if len(unsynced) > 0 {
		synced.Status, synced.Reason, synced.Message = metav1.ConditionFalse, reasonWaiting, "waiting for "+strings.Join(unsynced, ", ")
	}
	if len(owned) > 0 {
		synced.Reason, synced.Message = reasonOtherOwner, strings.Join(owned, "; ")
	}
	conditions.Set(p, synced)
	complete := metav1.Condition{Type: clusterv1.ReadyCondition, Status: metav1.ConditionTrue, Reason: reasonComplete}
	switch {
	case missing > 0:
		complete.Status, complete.Reason, complete.Message = metav1.ConditionFalse, reasonScaling, fmt.Sprintf("%d machines are not ready", missing)
	case len(unsynced) > 0: // the numbers may be old
		complete.Status, complete.Reason, complete.Message = metav1.ConditionUnknown, reasonWaiting, synced.Message
	}
	conditions.Set(p, complete)
}

// remove gives up all machines, and lets the pool go once there is none: Cluster API
// deletes no Machines of a pool.
func (c *poolController) remove(ctx context.Context, s *poolState) error {
	var errs []error
	for _, g := range s.groups {
		if g.DeletionTimestamp.IsZero() {
			errs = append(errs, client.IgnoreNotFound(c.Delete(ctx, g)))
		}
	}
	for _, machine := range s.shown {
		if machine.DeletionTimestamp.IsZero() {
			errs = append(errs, client.IgnoreNotFound(c.Delete(ctx, machine)))
		}
	}
	for _, m := range s.members {
		if s.shown[m.Name] == nil && m.DeletionTimestamp.IsZero() {
			errs = append(errs, client.IgnoreNotFound(c.Delete(ctx, m)))
		}
	}
	left := len(s.groups) + len(s.shown) + len(s.members)
	conditions.Set(s.pool, metav1.Condition{
		Type: clusterv1.ReadyCondition, Status: metav1.ConditionFalse, Reason: reasonDeleting, Message: fmt.Sprintf("%d machines are left", len(s.members)),
	})
	if left == 0 {
		controllerutil.RemoveFinalizer(s.pool, infrav1.Finalizer)
	}
	return errors.Join(errs...)
}
