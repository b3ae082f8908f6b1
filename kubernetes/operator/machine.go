package operator

import (
	"cmp"
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
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
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/wire"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// Reasons of conditions of a machine.
const (
	reasonReady        = "Ready"
	reasonNotReady     = "NotReady"
	reasonCreating     = "Creating"
	reasonBootstrap    = "WaitingForBootstrapData"
	reasonClusterInfra = "WaitingForClusterInfrastructure"
	reasonEnded        = "Ended"
	reasonReclaimed    = "Reclaimed"
	reasonMachineGone  = "MachineGone"
	reasonCreateFailed = "CreateFailed"
	reasonCreated      = "Created"
	reasonDraining     = "Draining"
	reasonNotDraining  = "NotDraining"
)

// Times of a machine's creation.
const (
	// idLifetime is for how long a shard accepts a new ID; after that a machine which does
	// not exist never will.
	idLifetime = 5 * time.Minute

	// firstRecreate and maxRecreate bound the time between two machines that fail to be
	// created. In between it is as long as that has been so.
	firstRecreate = 10 * time.Second
	maxRecreate   = 10 * time.Minute

	// createSettled is how old an ID is before an answer that no machine has it counts as
	// final: a request may still be on its way.
	createSettled = time.Minute
)

// While the node of a deleted machine is being removed, its NstanceMachine stays: looked at
// every nodePoll, for nodeLimit at most.
const (
	nodePoll  = time.Second
	nodeLimit = time.Minute
)

// The progress of a drain is shown every leastProgress, and later where that would be more
// than ten machines in a second.
const (
	leastProgress = 10 * time.Second
	progressShare = 100 * time.Millisecond
)

// instanceIDField indexes NstanceMachines by instance.
const instanceIDField = "spec.instanceID"

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstancemachines/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstancemachines/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines/status,verbs=patch

// A machineController shows an instance as an NstanceMachine. Outside of pools it creates
// the instance too, once: what the cloud takes back is replaced by the owner of the Machine.
type machineController struct {
	client.Client
	status  *statusKeeper
	fleets  *fleets
	secrets client.Reader
	options Options
}

func (c *machineController) setUp(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &infrav1.NstanceMachine{}, instanceIDField, func(obj client.Object) []string {
		return []string{obj.(*infrav1.NstanceMachine).Spec.InstanceID}
	}); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&infrav1.NstanceMachine{}).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(util.MachineToInfrastructureMapFunc(infrav1.GroupVersion.WithKind("NstanceMachine")))).
		Watches(&infrav1.NstanceCluster{}, handler.EnqueueRequestsFromMapFunc(c.machinesOf)).
		WatchesRawSource(c.fleets.changes(c.machinesOfChange)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.options.Concurrency}).
		Complete(c)
}

// machinesOf returns the machines of a cluster: one of its shards was reached or lost.
func (c *machineController) machinesOf(ctx context.Context, nc client.Object) (out []reconcile.Request) {
	for _, key := range c.keys(ctx, ofCluster(nc)...) {
		out = append(out, reconcile.Request{NamespacedName: key})
	}
	return out
}

// machinesOfChange returns the machine of an instance that has changed.
func (c *machineController) machinesOfChange(ch change) []client.ObjectKey {
	if ch.instance == "" {
		return nil
	}
	return c.keys(c.fleets.lead(), client.InNamespace(ch.cluster.Namespace), client.MatchingFields{instanceIDField: string(ch.instance)})
}

func (c *machineController) keys(ctx context.Context, which ...client.ListOption) (out []client.ObjectKey) {
	var list infrav1.NstanceMachineList
	if err := c.List(ctx, &list, which...); err != nil {
		return nil // a cache that has started does not fail
	}
	for _, m := range list.Items {
		out = append(out, client.ObjectKeyFromObject(&m))
	}
	return out
}

// A machineState is what one pass over a machine works with.
type machineState struct {
	m       *infrav1.NstanceMachine
	machine *clusterv1.Machine // nil: there is none yet, or any more
	cluster *clusterv1.Cluster
	shard   *shards.Shard
	api     apiv1.OperatorServiceClient
}

// pooled reports whether the pool makes and replaces the machine.
func (s *machineState) pooled() bool { return s.m.Labels[clusterv1.MachinePoolNameLabel] != "" }

// Reconcile implements reconcile.Reconciler.
func (c *machineController) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	var m infrav1.NstanceMachine
	if err := c.Get(ctx, req.NamespacedName, &m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if c.options.ignores(&m) {
		return ctrl.Result{}, nil
	}
	machine, err := util.GetOwnerMachine(ctx, c.Client, m.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if m.Labels[clusterv1.ClusterNameLabel] == "" {
		return ctrl.Result{}, nil // Cluster API has not taken it over yet
	}
	cluster, err := clusterOf(ctx, c.Client, &m)
	if err != nil {
		return ctrl.Result{}, err
	}
	if isPaused, requeue, err := paused.EnsurePausedCondition(ctx, c.Client, cluster, &m); err != nil || isPaused || requeue {
		return ctrl.Result{}, err
	}
	store, err := c.status.open(&m, clusterv1.ReadyCondition, infrav1.ConditionInterrupted, infrav1.ConditionCreateFailed, infrav1.ConditionDraining)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer func() { err = store(ctx, err) }()
	if m.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(&m, infrav1.Finalizer) {
		return ctrl.Result{}, nil // the patch brings it back
	}
	return c.reconcile(ctx, &machineState{m: &m, machine: machine, cluster: cluster})
}

func (c *machineController) reconcile(ctx context.Context, s *machineState) (ctrl.Result, error) {
	m := s.m
	m.Status.ObservedGeneration = m.Generation
	if m.Spec.InstanceID == "" {
		if !m.DeletionTimestamp.IsZero() {
			controllerutil.RemoveFinalizer(m, infrav1.Finalizer) // nothing was asked for
			return ctrl.Result{}, nil
		}
		return c.choose(ctx, s)
	}
	var err error
	if s.shard, s.api, err = c.fleets.shardOf(s.cluster, nstance.ShardID(m.Spec.Shard)); err != nil {
		notReady(m, reasonShardLost, err.Error())
		return c.shardLost(ctx, s)
	}
	if i, exists := s.shard.Instance(nstance.InstanceID(m.Spec.InstanceID)); exists {
		return c.show(ctx, s, i)
	}
	end, err := s.shard.End(ctx, nstance.InstanceID(m.Spec.InstanceID))
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case end == nil: // the copy is behind
		return ctrl.Result{RequeueAfter: 5 * time.Second}, nil
	}
	return c.ended(ctx, s, end)
}

// choose sets shard and ID of the instance to be, which are stored before it is asked for.
func (c *machineController) choose(ctx context.Context, s *machineState) (ctrl.Result, error) {
	m := s.m
	switch {
	case s.pooled():
		return ctrl.Result{}, reconcile.TerminalError(nstance.FieldError(instanceIDField, "leave NstanceMachines of pools to the operator", "is empty"))
	case s.machine == nil:
		return ctrl.Result{}, nil // the Machine brings it back
	case !ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false):
		notReady(m, reasonClusterInfra, "")
		return ctrl.Result{}, nil // so does the NstanceCluster
	case s.machine.Spec.Bootstrap.DataSecretName == nil:
		notReady(m, reasonBootstrap, "")
		return ctrl.Result{}, nil // so does the Machine
	}
	name := cmp.Or(s.machine.Spec.FailureDomain, m.Spec.Shard)
	if name == "" {
		name = c.fleets.shardWith(s.cluster, nstance.GroupID(m.Spec.Group))
	}
	shard, _, err := c.fleets.shardOf(s.cluster, nstance.ShardID(name))
	if err != nil {
		notReady(m, reasonShardLost, err.Error())
		return ctrl.Result{}, nil // the shard brings it back
	}
	group, ok := shard.Group(nstance.GroupID(m.Spec.Group))
	if !ok {
		return c.refuse(ctx, s, nstance.FieldError("spec.group", "add the group to the shard's configuration", "shard %s has no group %s", name, m.Spec.Group))
	}
	id, err := nstance.NewInstanceID(nstance.InstanceKind(group.GetKind()), time.Now())
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, c.setInstance(ctx, m, name, id)
}

// setInstance stores which instance a machine is, which brings it back. A machine that was
// read before it got its instance fails with a conflict: the instance would be forgotten.
func (c *machineController) setInstance(ctx context.Context, m *infrav1.NstanceMachine, shard string, id nstance.InstanceID) error {
	changed := m.DeepCopy()
	changed.Spec.Shard, changed.Spec.InstanceID, changed.Spec.ProviderID = shard, string(id), ""
	return c.Patch(ctx, changed, client.MergeFromWithOptions(m, client.MergeFromWithOptimisticLock{}))
}

// create asks for the instance. It is repeated until the shard has it.
func (c *machineController) create(ctx context.Context, s *machineState) (ctrl.Result, error) {
	m := s.m
	data, err := bootstrapData(ctx, c.secrets, m.Namespace, ptr.Deref(s.machine.Spec.Bootstrap.DataSecretName, ""))
	var resp *apiv1.CreateInstanceResponse
	if err == nil {
		resp, err = s.api.CreateInstance(ctx, &apiv1.CreateInstanceRequest{
			Id: m.Spec.InstanceID, Group: m.Spec.Group, InstanceType: m.Spec.InstanceType, Vars: m.Spec.Vars,
			LoadBalancers: m.Spec.LoadBalancers, Market: market(m.Spec.Spot), BootstrapData: data,
		})
	}
	switch {
	case err == nil:
		return c.show(ctx, s, resp.GetInstance())
	case errors.Is(err, nstance.Invalid), errors.Is(err, nstance.Denied), errors.Is(err, nstance.NotFound), errors.Is(err, nstance.Conflict):
		return c.refuse(ctx, s, err)
	}
	return ctrl.Result{}, err
}

// refuse says that the instance cannot be made as it is: the user must mend it.
func (c *machineController) refuse(ctx context.Context, s *machineState, err error) (ctrl.Result, error) {
	conditions.Set(s.m, metav1.Condition{Type: infrav1.ConditionCreateFailed, Status: metav1.ConditionTrue, Reason: reasonNotAccepted, Message: err.Error()})
	notReady(s.m, reasonNotAccepted, err.Error())
	return ctrl.Result{RequeueAfter: retryRefused}, c.tell(ctx, s, nil)
}

// bootstrapData returns the user data that a bootstrap provider has made; nil: the shard's
// template is all there is.
func bootstrapData(ctx context.Context, c client.Reader, namespace, name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	var secret corev1.Secret
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
		return nil, err
	}
	if len(secret.Data["value"]) == 0 {
		return nil, nstance.FieldError("bootstrap.dataSecretName", "wait for the bootstrap provider, or leave the name empty", "Secret %s has no key value", name)
	}
	return secret.Data["value"], nil
}

// ended deals with an instance that the shard does not have.
func (c *machineController) ended(ctx context.Context, s *machineState, end *shards.End) (ctrl.Result, error) {
	m, id := s.m, nstance.InstanceID(s.m.Spec.InstanceID)
	existed := m.Spec.ProviderID != "" || end.Deleted
	if !m.DeletionTimestamp.IsZero() {
		if left := time.Until(id.Time().Add(createSettled)); !existed && !end.Failed && left > 0 {
			return ctrl.Result{RequeueAfter: left}, nil
		}
		if end.Deleted && c.fleets.removesNode(s.cluster, id, m.Spec.ProviderID) {
			return ctrl.Result{RequeueAfter: nodePoll}, nil // Cluster API deletes the node at once
		}
		return ctrl.Result{}, c.letGo(ctx, s)
	}
	switch {
	case end.Failed && !s.pooled():
		return c.recreate(ctx, s, end)
	case !existed && !s.pooled():
		if time.Since(id.Time()) > idLifetime {
			return ctrl.Result{}, c.setInstance(ctx, m, m.Spec.Shard, "") // it can never have been created, and never will
		}
		if s.machine == nil {
			return ctrl.Result{}, nil
		}
		return c.create(ctx, s)
	}
	m.Status.State, m.Status.Leaving = string(nstance.Deleted), infrav1.Leaving{}
	c.showDrain(s, nil)
	notReady(m, reasonEnded, end.Message)
	if end.Cause == nstance.CauseNotice || end.Cause == nstance.CauseGone {
		interrupted(m, end.Cause, end.Message)
	} else if !conditions.IsTrue(m, infrav1.ConditionInterrupted) && !s.pooled() && s.machine != nil && s.machine.DeletionTimestamp.IsZero() {
		// Its removal was requested at the shard, or its time was up.
		return ctrl.Result{}, client.IgnoreNotFound(c.Delete(ctx, s.machine))
	}
	if err := c.tell(ctx, s, nil); err != nil || !s.pooled() {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, c.dismiss(ctx, s)
}

// letGo ends the object of an instance that this cluster does not have any more.
func (c *machineController) letGo(ctx context.Context, s *machineState) error {
	err := c.release(ctx, s.machine)
	if err == nil {
		controllerutil.RemoveFinalizer(s.m, infrav1.Finalizer)
	}
	return err
}

// ownedByOther reports whether a member of a pool is now in a group of another owner, who
// decides about its machine.
func (c *machineController) ownedByOther(ctx context.Context, s *machineState) (bool, error) {
	if !s.pooled() {
		return false, nil
	}
	group, _ := s.shard.Group(nstance.GroupID(s.m.Spec.Group))
	owner, err := ownerOf(ctx, c.Client, s.cluster)
	return otherOwner(group, owner), err
}

// shardLost deals with a machine whose shard is away, whose return brings it back. Its Machine
// waits for a drain until the deadline.
func (c *machineController) shardLost(ctx context.Context, s *machineState) (ctrl.Result, error) {
	if abandoned(ctx, c.Client, s.cluster, s.m.Spec.Shard) {
		return ctrl.Result{}, c.abandon(ctx, s)
	}
	deadline := s.m.Status.Leaving.Deadline
	if deadline.IsZero() {
		return ctrl.Result{}, nil
	}
	if left := time.Until(deadline.Time); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	return ctrl.Result{}, c.release(ctx, s.machine)
}

// abandon lets a machine go whose shard is lost for good: a member of a pool by itself, others
// once their Machine is deleted, which waits for no drain. What runs there is left to itself.
func (c *machineController) abandon(ctx context.Context, s *machineState) error {
	if err := c.release(ctx, s.machine); err != nil {
		return err
	}
	switch {
	case !s.m.DeletionTimestamp.IsZero():
		controllerutil.RemoveFinalizer(s.m, infrav1.Finalizer)
	case s.pooled():
		return c.dismiss(ctx, s)
	}
	return nil
}

// dismiss has a member of a pool go whose instance has ended: through its Machine, where
// there is one, which has the same name.
func (c *machineController) dismiss(ctx context.Context, s *machineState) error {
	var machine clusterv1.Machine
	err := c.Get(ctx, client.ObjectKeyFromObject(s.m), &machine)
	switch {
	case apierrors.IsNotFound(err):
		return client.IgnoreNotFound(c.Delete(ctx, s.m))
	case err != nil || !machine.DeletionTimestamp.IsZero():
		return err
	}
	return client.IgnoreNotFound(c.Delete(ctx, &machine))
}

// recreate replaces an instance that never had a machine, in ever longer intervals.
func (c *machineController) recreate(ctx context.Context, s *machineState, end *shards.End) (ctrl.Result, error) {
	m, tried := s.m, nstance.InstanceID(s.m.Spec.InstanceID).Time()
	conditions.Set(m, metav1.Condition{Type: infrav1.ConditionCreateFailed, Status: metav1.ConditionTrue, Reason: reasonCreateFailed, Message: end.Message})
	notReady(m, reasonCreateFailed, end.Message)
	m.Status.State = string(nstance.Failed)
	since := conditions.Get(m, infrav1.ConditionCreateFailed).LastTransitionTime.Time
	if left := time.Until(recreateAt(since, tried)); left > 0 {
		return ctrl.Result{RequeueAfter: left}, c.tell(ctx, s, nil)
	}
	return ctrl.Result{}, errors.Join(c.tell(ctx, s, nil), c.setInstance(ctx, m, m.Spec.Shard, ""))
}

// recreateAt is when the next instance is tried, after that of tried has failed. As none
// could be created since then, the interval doubles each time.
func recreateAt(since, tried time.Time) time.Time {
	return tried.Add(min(max(tried.Sub(since), firstRecreate), maxRecreate))
}

// show sets the status to what the shard has, and deletes the instance when the machine is
// to go.
func (c *machineController) show(ctx context.Context, s *machineState, i *apiv1.Instance) (ctrl.Result, error) {
	m, state := s.m, nstance.State(i.GetState())
	if id := i.GetNodeProviderId(); id != "" {
		m.Spec.ProviderID, m.Status.Initialization.Provisioned = id, ptr.To(true)
	}
	m.Status.State, m.Status.InstanceType, m.Status.FailureDomain = i.GetState(), i.GetInstanceType(), m.Spec.Shard
	if i.GetMarket() != "" {
		m.Status.Interruptible = ptr.To(i.GetMarket() == string(nstance.Spot))
	}
	m.Status.Addresses = nil
	for _, a := range i.GetAddresses() {
		m.Status.Addresses = append(m.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: a})
	}
	m.Status.Leaving = leavingOf(i.GetDrain())
	again := c.showDrain(s, i.GetDrain())
	if conditions.Has(m, infrav1.ConditionCreateFailed) && m.Spec.ProviderID != "" {
		conditions.Set(m, metav1.Condition{Type: infrav1.ConditionCreateFailed, Status: metav1.ConditionFalse, Reason: reasonCreated})
	}
	switch cause := reclaimOf(i.GetDrain()); {
	case cause != nil:
		interrupted(m, nstance.CauseKind(cause.GetKind()), cause.GetMessage())
	case state == nstance.Gone:
		interrupted(m, nstance.CauseGone, "the provider says that the machine does not run")
	case conditions.Has(m, infrav1.ConditionInterrupted) && state != nstance.Deleting:
		conditions.Set(m, metav1.Condition{Type: infrav1.ConditionInterrupted, Status: metav1.ConditionFalse, Reason: reasonReady})
	}
	if state == nstance.Ready {
		conditions.Set(m, metav1.Condition{Type: clusterv1.ReadyCondition, Status: metav1.ConditionTrue, Reason: reasonReady})
	} else {
		notReady(m, reasonNotReady, "the instance is "+i.GetState())
	}
	if err := c.tell(ctx, s, i); err != nil || m.DeletionTimestamp.IsZero() || state == nstance.Deleting {
		return ctrl.Result{RequeueAfter: again}, err
	}
	// Cluster API has drained the node by now, or need not.
	drained := !s.cluster.DeletionTimestamp.IsZero() || s.machine != nil && !s.machine.DeletionTimestamp.IsZero()
	if !drained && i.GetDrain() != nil {
		return ctrl.Result{RequeueAfter: again}, nil // its end brings it back before
	}
	other, err := c.ownedByOther(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	if other {
		return ctrl.Result{}, c.letGo(ctx, s)
	}
	_, err = s.api.DeleteInstance(ctx, &apiv1.DeleteInstanceRequest{Id: i.GetId(), NoDrain: drained})
	if errors.Is(err, nstance.NotFound) {
		err = nil // its event brings it back
	}
	return ctrl.Result{}, err
}

// showDrain shows why a machine is drained, until when, and how far that is. It returns when
// that is worth another look: the more machines are drained, the later; 0: there is no drain.
func (c *machineController) showDrain(s *machineState, d *apiv1.Drain) time.Duration {
	if d == nil || len(d.GetCauses()) == 0 {
		if conditions.IsTrue(s.m, infrav1.ConditionDraining) {
			conditions.Set(s.m, metav1.Condition{Type: infrav1.ConditionDraining, Status: metav1.ConditionFalse, Reason: reasonNotDraining})
		}
		return 0
	}
	cause, again := d.GetCauses()[0], max(time.Until(d.GetDeadline().AsTime()), time.Second) // the drain is over then, whatever the shard says
	text := "because of " + cause.GetKind()
	if cause.GetMessage() != "" {
		text += ": " + cause.GetMessage()
	}
	if !wire.DrainOf(d).Unlimited() {
		text += ", until " + d.GetDeadline().AsTime().UTC().Format(time.RFC3339)
	}
	if nodes := c.fleets.nodesOf(s.cluster); nodes != nil {
		if progress := nodes.Progress(nstance.InstanceID(s.m.Spec.InstanceID)); progress != "" {
			text += "; " + progress
			again = min(again, max(leastProgress, time.Duration(nodes.Stats().Draining)*progressShare))
		}
	}
	conditions.Set(s.m, metav1.Condition{Type: infrav1.ConditionDraining, Status: metav1.ConditionTrue, Reason: reasonDraining, Message: clip.Text(text, maxNote)})
	return again
}

func notReady(m *infrav1.NstanceMachine, reason, message string) {
	conditions.Set(m, metav1.Condition{Type: clusterv1.ReadyCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message})
}

// interrupted shows why a machine is lost. One whose notice was seen stays reclaimed when it
// does not run any more.
func interrupted(m *infrav1.NstanceMachine, kind nstance.CauseKind, message string) {
	reason := reasonMachineGone
	if kind == nstance.CauseNotice || conditions.IsTrue(m, infrav1.ConditionInterrupted) && conditions.GetReason(m, infrav1.ConditionInterrupted) == reasonReclaimed {
		reason = reasonReclaimed
	}
	conditions.Set(m, metav1.Condition{Type: infrav1.ConditionInterrupted, Status: metav1.ConditionTrue, Reason: reason, Message: message})
}

// reclaimOf returns why the cloud takes a machine back; nil: it does not.
func reclaimOf(d *apiv1.Drain) *apiv1.Cause {
	for _, cause := range d.GetCauses() {
		if kind := nstance.CauseKind(cause.GetKind()); kind == nstance.CauseNotice || kind == nstance.CauseGone {
			return cause
		}
	}
	return nil
}

// leavingOf says why and until when a machine is being emptied.
func leavingOf(d *apiv1.Drain) infrav1.Leaving {
	if d == nil || len(d.GetCauses()) == 0 {
		return infrav1.Leaving{}
	}
	cause := d.GetCauses()[0]
	l := infrav1.Leaving{
		Cause: cause.GetKind(), EventID: cause.GetEventId(), Message: cause.GetMessage(), StartedAt: metav1.NewTime(d.GetStartedAt().AsTime()),
	}
	if !wire.DrainOf(d).Unlimited() {
		l.Deadline = metav1.NewTime(d.GetDeadline().AsTime())
	}
	return l
}
