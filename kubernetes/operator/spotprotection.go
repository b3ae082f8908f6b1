package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

// Reasons of conditions of a SpotProtection.
const (
	reasonAdmitted    = "Admitted"
	reasonNotAdmitted = "NotAdmitted"
	reasonNotSelected = "NotSelected" // of a workload whose hand-off is taken back
	reasonUnreached   = "WaitingForNodes"
	reasonNotRead     = "NotRead"
)

const (
	// maxWorkloads bounds the workloads of one SpotProtection, and so its status.
	maxWorkloads = 128

	// protectionLimit bounds one pass over a SpotProtection.
	protectionLimit = 2 * time.Minute

	// idlePass is between two passes while no node is lost, busyPass while pods are moved,
	// withdrawPass while all of it is taken back.
	idlePass     = time.Minute
	busyPass     = 5 * time.Second
	withdrawPass = time.Second
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=spotprotections,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=spotprotections/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=spotprotections/finalizers,verbs=update

// A protectionController protects workloads on nodes that a cloud may take back. Workloads
// and nodes are those of the workload cluster, through its kubeconfig.
type protectionController struct {
	client.Client
	status   *statusKeeper
	uncached client.Reader
	fleets   *fleets
	options  Options
}

func (c *protectionController) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&infrav1.SpotProtection{}).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, cluster client.Object) []reconcile.Request {
			return c.ofCluster(ctx, client.ObjectKeyFromObject(cluster))
		})).
		Watches(&infrav1.NstanceCluster{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, nc client.Object) []reconcile.Request {
			return c.ofCluster(ctx, client.ObjectKey{Namespace: nc.GetNamespace(), Name: nc.GetLabels()[clusterv1.ClusterNameLabel]})
		})).
		WatchesRawSource(c.fleets.changes(c.ofChange)).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			c.fleets.onNodesChanged(func(cluster client.ObjectKey) {
				for _, req := range c.ofCluster(c.fleets.lead(), cluster) {
					queue.Add(req)
				}
			})
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.options.Concurrency}).
		Complete(c)
}

// ofCluster returns the SpotProtections of a Cluster.
func (c *protectionController) ofCluster(ctx context.Context, cluster client.ObjectKey) (out []reconcile.Request) {
	var list infrav1.SpotProtectionList
	if err := c.List(ctx, &list, client.InNamespace(cluster.Namespace)); err != nil {
		return nil // a cache that has started does not fail
	}
	for i := range list.Items {
		if list.Items[i].Spec.ClusterName == cluster.Name {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}

// ofChange returns the SpotProtections for which a change at a shard means something: of a
// stand-by instance, of a drain, or of a group's claims.
func (c *protectionController) ofChange(ch change) (out []client.ObjectKey) {
	var list infrav1.SpotProtectionList
	if err := c.List(c.fleets.lead(), &list, client.InNamespace(ch.cluster.Namespace)); err != nil || len(list.Items) == 0 {
		return nil // a cache that has started does not fail
	}
	if ch.instance != "" && !concernsProtection(c.fleets.instance(ch)) {
		return nil
	}
	for i := range list.Items {
		if ch.instance != "" || list.Items[i].Spec.Standby.Group == string(ch.group) {
			out = append(out, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	return out
}

// concernsProtection reports whether an instance is one that stands by, or is drained.
func concernsProtection(i *apiv1.Instance) bool { return i.GetStandby() || i.GetDrain() != nil }

// Reconcile implements reconcile.Reconciler.
func (c *protectionController) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	var sp infrav1.SpotProtection
	if err := c.Get(ctx, req.NamespacedName, &sp); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if c.options.ignores(&sp) {
		return ctrl.Result{}, nil
	}
	if !sp.DeletionTimestamp.IsZero() { // with the claims of the last pass, which the cache may not have yet
		sp = infrav1.SpotProtection{}
		if err := c.uncached.Get(ctx, req.NamespacedName, &sp); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	cluster, err := util.GetClusterByName(ctx, c.Client, sp.Namespace, sp.Spec.ClusterName)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if err == nil {
		if isPaused, requeue, err := paused.EnsurePausedCondition(ctx, c.Client, cluster, &sp); err != nil || isPaused || requeue {
			return ctrl.Result{}, err
		}
	}
	store, err := c.status.open(&sp, infrav1.ConditionAdmitted, infrav1.ConditionSynced)
	if err != nil {
		return ctrl.Result{}, err
	}
	limited, cancel := context.WithTimeout(ctx, protectionLimit)
	defer cancel()
	defer func() { err = store(ctx, err) }()
	if sp.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(&sp, infrav1.Finalizer) {
		metav1.SetMetaDataLabel(&sp.ObjectMeta, clusterv1.ClusterNameLabel, sp.Spec.ClusterName)
		return ctrl.Result{}, nil // the patch brings it back
	}
	return c.protect(limited, &sp, cluster)
}

// protect makes one pass over a SpotProtection. cluster is nil when there is none.
func (c *protectionController) protect(ctx context.Context, sp *infrav1.SpotProtection, cluster *clusterv1.Cluster) (ctrl.Result, error) {
	deleting := !sp.DeletionTimestamp.IsZero()
	if deleting && (cluster == nil || !cluster.DeletionTimestamp.IsZero()) {
		controllerutil.RemoveFinalizer(sp, infrav1.Finalizer) // nothing is left to take back
		return ctrl.Result{}, nil
	}
	if cluster == nil {
		unsynced(sp, reasonUnreached, nstance.FieldError("spec.clusterName", "name a Cluster of this namespace, in another SpotProtection", "there is no Cluster %s", sp.Spec.ClusterName))
		return ctrl.Result{}, nil // its creation brings it back
	}
	fl := c.fleets.of(cluster)
	nodes := c.fleets.nodesOf(cluster)
	if fl == nil || nodes == nil || !nodes.access.reached() {
		unsynced(sp, reasonUnreached, nstance.Errorf(nstance.Unavailable, "the nodes of Cluster %s are not reached: see NodesReached of its NstanceCluster", cluster.Name))
		return ctrl.Result{RequeueAfter: retryKubeconfig}, nil
	}
	s, err := c.survey(ctx, sp, cluster, fl, nodes.workloads)
	if err != nil {
		return failed(sp, reasonNotRead, err)
	}
	if deleting {
		return ctrl.Result{RequeueAfter: withdrawPass}, c.withdraw(ctx, s)
	}
	// What is lost comes first, and no step waits for another one that failed.
	err = errors.Join(c.claim(ctx, s), c.handOff(ctx, s), c.propose(ctx, s))
	s.show()
	return s.next(err)
}

// next shows how a pass has ended, and returns when the next one comes. What is moved waits for
// nothing else that fails.
func (s *survey) next(err error) (ctrl.Result, error) {
	result := ctrl.Result{RequeueAfter: idlePass}
	switch {
	case err != nil:
		result, err = failed(s.sp, reasonNotAccepted, err)
	case s.unread != nil:
		unsynced(s.sp, reasonNotRead, s.unread)
	default:
		conditions.Set(s.sp, metav1.Condition{Type: infrav1.ConditionSynced, Status: metav1.ConditionTrue, Reason: reasonSynced})
	}
	if s.busy {
		return ctrl.Result{RequeueAfter: busyPass}, nil
	}
	return result, err
}

// failed shows an error. What only the user can correct is tried again now and then.
func failed(sp *infrav1.SpotProtection, reason string, err error) (ctrl.Result, error) {
	unsynced(sp, reason, err)
	for _, mistake := range []nstance.Code{nstance.Invalid, nstance.Denied, nstance.NotFound, nstance.Conflict} {
		if errors.Is(err, mistake) {
			return ctrl.Result{RequeueAfter: retryRefused}, nil
		}
	}
	return ctrl.Result{}, err
}

func unsynced(sp *infrav1.SpotProtection, reason string, err error) {
	conditions.Set(sp, metav1.Condition{Type: infrav1.ConditionSynced, Status: metav1.ConditionFalse, Reason: reason, Message: clip.Text(err.Error(), 1024)})
}

// A surveyedNode is a node, and what is known of its end.
type surveyedNode struct {
	*corev1.Node
	instance      *apiv1.Instance // of a shard; nil: it is a node of others
	interruptible bool
	signal        *protection.Signal // of a node of others; nil: nothing announces its end
}

// bridge reports whether the node runs in place of others.
func (n *surveyedNode) bridge() bool {
	return n.instance.GetStandby() && n.instance.GetWokenAt() != nil
}

// lost reports whether pods lose the node. A scale-down counts for nodes that are protected,
// whatever their pods: those that a cloud may take back.
func (n *surveyedNode) lost() bool {
	if n == nil {
		return false
	}
	return n.signal.Loses() && (n.signal.Cause == protection.Reclaim || n.interruptible) || reclaimOf(n.instance.GetDrain()) != nil
}

// lasting reports whether pods may stay on the node.
func (n *surveyedNode) lasting() bool {
	return n != nil && !n.instance.GetStandby() && n.instance.GetDrain() == nil && n.signal == nil && n.DeletionTimestamp == nil
}

// A surveyedWorkload is a workload with its pods.
type surveyedWorkload struct {
	protection.Workload
	pods      []corev1.Pod
	scalers   []autoscalingv2.HorizontalPodAutoscaler // of its namespace
	admission protection.Admission
	status    infrav1.ProtectedWorkload
}

// A survey is what one pass over a SpotProtection works with.
type survey struct {
	sp        *infrav1.SpotProtection
	cluster   *clusterv1.Cluster
	fleet     *fleet
	objects   client.Client // of the workload cluster
	now       time.Time
	nodes     map[string]*surveyedNode
	workloads []*surveyedWorkload
	selected  int
	ending    []infrav1.ProtectedWorkload // not selected any more, and not all of their hand-off is taken back
	drains    bool                        // of pods that say themselves that they are to be handed off, in all drains
	unread    error                       // what of the cluster is not known; nil: nothing
	busy      bool                        // pods are moved, machines claimed, or something of it is taken back
}

// survey reads what there is.
func (c *protectionController) survey(ctx context.Context, sp *infrav1.SpotProtection, cluster *clusterv1.Cluster, fl *fleet, w *workloadCluster) (*survey, error) {
	s := &survey{sp: sp, cluster: cluster, fleet: fl, objects: w.objects, now: time.Now(), nodes: map[string]*surveyedNode{}}
	var err error
	if s.unread, err = w.follow(ctx); err != nil {
		return nil, err
	}
	nodes, claims, events, err := w.nodes(ctx)
	if err != nil {
		return nil, err
	}
	instances := fl.instances()
	for i := range nodes {
		n := &surveyedNode{Node: &nodes[i], instance: instances.of(&nodes[i]), interruptible: protection.Interruptible(&nodes[i])}
		if n.instance == nil {
			n.signal = protection.Detect(n.Node, claims[n.Name], events[n.Name], s.now)
		}
		s.nodes[n.Name] = n
	}
	if err := s.listWorkloads(ctx); err != nil {
		return nil, err
	}
	return s, s.admit(ctx)
}

// listWorkloads lists the selected workloads in the order of the status.
func (s *survey) listWorkloads(ctx context.Context) error {
	selector, err := metav1.LabelSelectorAsSelector(s.sp.Spec.Selector)
	if err != nil {
		return nstance.FieldError("spec.selector", "correct the selector", "%v", err)
	}
	var all []protection.Workload
	for _, namespace := range namespacesOf(s.sp) {
		in := []client.ListOption{client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}}
		var deployments appsv1.DeploymentList
		var sets appsv1.StatefulSetList
		if err := errors.Join(s.objects.List(ctx, &deployments, in...), s.objects.List(ctx, &sets, in...)); err != nil {
			return err
		}
		for i := range deployments.Items {
			all = append(all, protection.DeploymentWorkload(&deployments.Items[i]))
		}
		for i := range sets.Items {
			all = append(all, protection.StatefulSetWorkload(&sets.Items[i]))
		}
	}
	slices.SortFunc(all, func(a, b protection.Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace(), b.Namespace()), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name(), b.Name()))
	})
	s.selected = len(all)
	for _, w := range all[:min(len(all), maxWorkloads)] {
		s.workloads = append(s.workloads, &surveyedWorkload{Workload: w})
	}
	return nil
}

// namespacesOf returns the namespaces to list; an empty one means all.
func namespacesOf(sp *infrav1.SpotProtection) []string {
	if len(sp.Spec.Namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return sp.Spec.Namespaces
}

// admit reads pods, budgets and autoscalers, and decides which workloads are protected.
func (s *survey) admit(ctx context.Context) error {
	budgets := map[string][]policyv1.PodDisruptionBudget{}
	scalers := map[string][]autoscalingv2.HorizontalPodAutoscaler{}
	for _, w := range s.workloads {
		namespace := w.Namespace()
		if _, known := budgets[namespace]; !known {
			var b policyv1.PodDisruptionBudgetList
			var a autoscalingv2.HorizontalPodAutoscalerList
			if err := errors.Join(s.objects.List(ctx, &b, client.InNamespace(namespace)), s.objects.List(ctx, &a, client.InNamespace(namespace))); err != nil {
				return err
			}
			budgets[namespace], scalers[namespace] = b.Items, a.Items
		}
		if err := s.listPods(ctx, w); err != nil {
			return err
		}
		w.scalers = scalers[namespace]
		w.admission = protection.Admit(&w.Workload, budgets[namespace], w.pods)
		s.describe(w)
	}
	return nil
}

func (s *survey) listPods(ctx context.Context, w *surveyedWorkload) error {
	selector, err := metav1.LabelSelectorAsSelector(w.Selector)
	if err != nil {
		return nil //nolint:nilerr // it is not admitted, which says so
	}
	var list corev1.PodList
	if err := s.objects.List(ctx, &list, client.InNamespace(w.Namespace()), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return err
	}
	w.pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !w.Owns(&p) })
	return nil
}

// describe makes the status of a workload. Its last interruption is kept.
func (s *survey) describe(w *surveyedWorkload) {
	on := int32(0)
	for i := range w.pods {
		if n := s.nodes[w.pods[i].Spec.NodeName]; n != nil && n.interruptible && protection.Lives(&w.pods[i]) {
			on++
		}
	}
	w.status = infrav1.ProtectedWorkload{
		Kind: w.Kind, Namespace: w.Namespace(), Name: w.Name(), Admitted: ptr.To(w.admission.Admitted()), Reason: w.admission.Reason,
		Message: clip.Text(w.admission.Message, 1024), ProtectedPods: ptr.To(int32(0)), ProposedBudget: w.admission.Proposal,
	}
	if w.admission.Admitted() {
		w.status.ProtectedPods = &on
	}
	if b := w.admission.Budget; b != nil {
		w.status.Budget = b.Name
	}
	if former := statusOf(s.sp, w.Kind, w.Namespace(), w.Name()); former != nil {
		w.status.LastInterruption = former.LastInterruption
	}
}

// statusOf returns what the status has of a workload; nil: nothing.
func statusOf(sp *infrav1.SpotProtection, kind, namespace, name string) *infrav1.ProtectedWorkload {
	for i := range sp.Status.Workloads {
		if w := &sp.Status.Workloads[i]; w.Kind == kind && w.Namespace == namespace && w.Name == name {
			return w
		}
	}
	return nil
}

// admitted returns the workloads that are protected.
func (s *survey) admitted() (out []*surveyedWorkload) {
	for _, w := range s.workloads {
		if w.admission.Admitted() {
			out = append(out, w)
		}
	}
	return out
}

// show sets the status to what was found and done.
func (s *survey) show() {
	st := &s.sp.Status
	st.Workloads, st.ObservedGeneration = nil, s.sp.Generation
	pods, admitted := int32(0), int32(0)
	var refused []string
	for _, w := range s.workloads {
		st.Workloads = append(st.Workloads, w.status)
		pods += *w.status.ProtectedPods
		if *w.status.Admitted {
			admitted++
		} else {
			refused = append(refused, w.Namespace()+"/"+w.Name()+": "+w.status.Reason)
		}
	}
	// What ends goes before what is selected: only the status knows of it.
	st.Workloads = append(st.Workloads[:min(len(st.Workloads), maxWorkloads-len(s.ending))], s.ending...)
	st.SelectedWorkloads, st.AdmittedWorkloads, st.ProtectedPods = ptr.To(int32(s.selected)), &admitted, &pods
	all := metav1.Condition{Type: infrav1.ConditionAdmitted, Status: metav1.ConditionTrue, Reason: reasonAdmitted}
	if int(admitted) < s.selected {
		all.Status, all.Reason = metav1.ConditionFalse, reasonNotAdmitted
		all.Message = fmt.Sprintf("%d of %d workloads are not protected", s.selected-int(admitted), s.selected)
		if s.selected > maxWorkloads {
			all.Message += fmt.Sprintf(", %d of them because one SpotProtection protects at most %d: use several", s.selected-maxWorkloads, maxWorkloads)
		}
		for _, text := range refused[:min(len(refused), 5)] {
			all.Message += "; " + text
		}
		all.Message = clip.Text(all.Message, 1024)
	}
	conditions.Set(s.sp, all)
}

// withdraw takes back what was done for a SpotProtection that is deleted, and lets it go.
func (c *protectionController) withdraw(ctx context.Context, s *survey) error {
	if err := errors.Join(c.releaseAll(ctx, s), c.endHandOffs(ctx, s)); err != nil {
		unsynced(s.sp, reasonDeleting, err)
		return err
	}
	if !s.busy { // else another pass sees whether others have changed something at the same time
		controllerutil.RemoveFinalizer(s.sp, infrav1.Finalizer)
	}
	return nil
}

// ignoreGone ignores that an object of others is gone or has changed: another pass sees what
// it is now.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
