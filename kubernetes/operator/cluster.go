package operator

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
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
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/identity"
)

// Reasons of conditions.
const (
	reasonProvisioned  = "Provisioned"
	reasonRegistered   = "Registered"
	reasonRefused      = "RegistrationRefused"
	reasonExpired      = "CertificateExpired"
	reasonUnaccepted   = "CertificateRefused"
	reasonUnrenewed    = "RenewalFailed"
	reasonWaiting      = "WaitingForShard"
	reasonConnected    = "Connected"
	reasonDisconnected = "ShardsLost"
	reasonUnreachable  = "Unreachable"
)

// retryRegistration is between two attempts to register or to renew: what is wrong
// is usually for the user to mend.
const retryRegistration = 15 * time.Second

// retryKubeconfig is between two looks for a kubeconfig that is not there yet.
const retryKubeconfig = 10 * time.Second

// retryRefused is between two requests that the shard has refused.
const retryRefused = time.Minute

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstanceclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstanceclusters/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstanceclusters/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch

// A clusterController registers the operator at the shards of an NstanceCluster,
// and keeps the connections to them.
type clusterController struct {
	client.Client
	status  *statusKeeper
	keeper  identity.Keeper
	fleets  *fleets
	options Options
}

func (c *clusterController) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&infrav1.NstanceCluster{}).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(
			util.ClusterToInfrastructureMapFunc(context.Background(), infrav1.GroupVersion.WithKind("NstanceCluster"), mgr.GetClient(), &infrav1.NstanceCluster{}))).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			c.fleets.onClusterChanged(func(key client.ObjectKey) { queue.Add(reconcile.Request{NamespacedName: key}) })
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.options.Concurrency}).
		Complete(c)
}

// Reconcile implements reconcile.Reconciler.
func (c *clusterController) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	var nc infrav1.NstanceCluster
	err = c.Get(ctx, req.NamespacedName, &nc)
	if apierrors.IsNotFound(err) || err == nil && c.options.ignores(&nc) {
		c.fleets.forget(req.NamespacedName) // clusterctl move removes finalizers: another operator has it
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	cluster, err := util.GetOwnerCluster(ctx, c.Client, nc.ObjectMeta)
	if err != nil || cluster == nil || annotations.IsExternallyManaged(&nc) {
		return ctrl.Result{}, err // Cluster API has not taken it over yet, or never will
	}
	switch isPaused, requeue, err := paused.EnsurePausedCondition(ctx, c.Client, cluster, &nc); {
	case err != nil || requeue:
		return ctrl.Result{}, err
	case isPaused:
		return c.keepDraining(ctx, cluster, &nc)
	}
	store, err := c.status.open(&nc, clusterv1.ReadyCondition, infrav1.ConditionRegistered, infrav1.ConditionShardsConnected, infrav1.ConditionNodesReached)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer func() { err = store(ctx, err) }()
	if !nc.DeletionTimestamp.IsZero() {
		return c.remove(ctx, &nc)
	}
	chosen := chooseOwner(&nc)
	if controllerutil.AddFinalizer(&nc, infrav1.Finalizer) || chosen {
		return ctrl.Result{}, nil // the patch brings it back
	}
	return c.provision(ctx, cluster, &nc)
}

// provision registers if necessary, and follows the shards. What they and the nodes are like is
// shown and used whatever becomes of the certificate.
func (c *clusterController) provision(ctx context.Context, cluster *clusterv1.Cluster, nc *infrav1.NstanceCluster) (ctrl.Result, error) {
	nc.Status.ObservedGeneration = nc.Generation
	id, err := c.identity(ctx, nc)
	if err != nil {
		reason := reasonRefused
		if errors.Is(err, nstance.Unavailable) {
			reason = reasonWaiting
		}
		setRegistered(nc, metav1.ConditionFalse, reason, err.Error())
		return ctrl.Result{RequeueAfter: retryRegistration}, nil
	}
	fl, err := c.fleets.follow(ctx, nc, id)
	if err != nil {
		return ctrl.Result{}, err
	}
	nc.Status.FailureDomains = failureDomains(nc)
	showShards(nc, fl.status())
	reached := c.reachNodes(ctx, cluster, nc, fl)
	wait := c.keepCertificate(ctx, nc, fl)
	if conditions.IsTrue(nc, infrav1.ConditionRegistered) {
		setProvisioned(nc)
	}
	if !reached {
		wait = min(wait, retryKubeconfig)
	}
	return ctrl.Result{RequeueAfter: wait}, nil
}

// keepDraining has the nodes of a paused cluster drained: its shards delete the machines at their
// deadlines all the same. It needs the shards and the certificate for that, and stores nothing else.
func (c *clusterController) keepDraining(ctx context.Context, cluster *clusterv1.Cluster, nc *infrav1.NstanceCluster) (ctrl.Result, error) {
	id, err := c.keeper.Load(ctx, nc)
	if errors.Is(err, nstance.NotFound) {
		return ctrl.Result{}, nil // it has never registered, and does not while it is paused
	} else if err != nil {
		return ctrl.Result{}, err
	}
	fl, err := c.fleets.follow(ctx, nc, id)
	if err != nil {
		return ctrl.Result{}, err
	}
	wait := c.keepCertificate(ctx, nc, fl)
	if c.drainNodes(ctx, cluster, fl) != nil {
		wait = min(wait, retryKubeconfig)
	}
	return ctrl.Result{RequeueAfter: wait}, nil
}

func setProvisioned(nc *infrav1.NstanceCluster) {
	conditions.Set(nc, metav1.Condition{Type: clusterv1.ReadyCondition, Status: metav1.ConditionTrue, Reason: reasonProvisioned})
	provisioned := true
	nc.Status.Initialization.Provisioned = &provisioned
}

// reachNodes has the nodes drained, and shows whether they are reached. It reports whether
// there is something that reaches them.
func (c *clusterController) reachNodes(ctx context.Context, cluster *clusterv1.Cluster, nc *infrav1.NstanceCluster, fl *fleet) bool {
	if err := c.drainNodes(ctx, cluster, fl); err != nil {
		conditions.Set(nc, metav1.Condition{Type: infrav1.ConditionNodesReached, Status: metav1.ConditionFalse, Reason: unreachedReason(err), Message: err.Error()})
		return false
	}
	conditions.Set(nc, fl.reachedCondition())
	return true
}

// unreachedReason is why nodes could not be reached at all yet.
func unreachedReason(err error) string {
	switch nstance.CodeOf(err) {
	case nstance.NotFound, nstance.Invalid, nstance.Denied:
		return reasonWaiting // for a kubeconfig, for one that is data, for the right to read it
	}
	return reasonUnreachable
}

// drainNodes drains the nodes of a Cluster's workload cluster, which is reached
// through the Secret that its control plane provider makes.
func (c *clusterController) drainNodes(ctx context.Context, cluster *clusterv1.Cluster, fl *fleet) error {
	if c.fleets.nodesOf(cluster) != nil {
		return nil // it reads the Secret itself
	}
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: cluster.Name + "-kubeconfig"}
	read := func(ctx context.Context) ([]byte, error) { return c.readKubeconfig(ctx, key) }
	data, err := read(ctx)
	fl.kubeconfigRead(err)
	if err != nil {
		return err
	}
	return fl.drainNodes(c.fleets.lead(), cluster, data, read)
}

func (c *clusterController) readKubeconfig(ctx context.Context, key client.ObjectKey) ([]byte, error) {
	var secret corev1.Secret
	if err := c.keeper.Client.Get(ctx, key, &secret); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nstance.Errorf(nstance.NotFound, "there is no Secret %s: nodes are not drained", key.Name)
		}
		return nil, err
	}
	return secret.Data["value"], nil
}

// reachedCondition says whether the nodes are reached now.
func (fl *fleet) reachedCondition() metav1.Condition {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.nodes == nil { // forgotten meanwhile
		return metav1.Condition{Type: infrav1.ConditionNodesReached, Status: metav1.ConditionFalse, Reason: reasonWaiting}
	}
	return fl.nodes.access.condition()
}

// failureDomains returns the shards as Cluster API wants them.
func failureDomains(nc *infrav1.NstanceCluster) (out []clusterv1.FailureDomain) {
	for _, s := range nc.Spec.Shards {
		controlPlane := s.ControlPlane == nil || *s.ControlPlane
		out = append(out, clusterv1.FailureDomain{Name: s.Name, ControlPlane: &controlPlane})
	}
	return out
}

func showShards(nc *infrav1.NstanceCluster, known []infrav1.ShardStatus) {
	nc.Status.Shards = known
	conditions.Set(nc, connectedCondition(known))
}

func connectedCondition(known []infrav1.ShardStatus) metav1.Condition {
	var lost []string
	for _, s := range known {
		if s.Connected == nil || !*s.Connected {
			lost = append(lost, s.Name)
		}
	}
	if len(lost) > 0 {
		return metav1.Condition{
			Type: infrav1.ConditionShardsConnected, Status: metav1.ConditionFalse, Reason: reasonDisconnected, Message: strings.Join(lost, ", "),
		}
	}
	return metav1.Condition{Type: infrav1.ConditionShardsConnected, Status: metav1.ConditionTrue, Reason: reasonConnected}
}

// unlessGone ignores that an object that was written is gone: its last finalizer was ours.
func unlessGone(err error) error { return kerrors.FilterOut(err, apierrors.IsNotFound) }
