package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// removalInterval is between two looks at the groups of a cluster that is deleted.
const removalInterval = 2 * time.Second

// remove takes the groups without a pool along with their cluster, whose Machines and pools
// Cluster API has deleted before, and lets it go when none is left. Until then its shards stay
// connected.
func (c *clusterController) remove(ctx context.Context, nc *infrav1.NstanceCluster) (ctrl.Result, error) {
	var groups infrav1.NstanceShardGroupList
	if err := c.keeper.Client.List(ctx, &groups, ofCluster(nc)...); err != nil { // not as a cache has it
		return ctrl.Result{}, err
	}
	if len(groups.Items) == 0 {
		c.fleets.forget(client.ObjectKeyFromObject(nc))
		controllerutil.RemoveFinalizer(nc, infrav1.Finalizer)
		return ctrl.Result{}, nil
	}
	var errs []error
	for i := range groups.Items {
		if g := &groups.Items[i]; g.DeletionTimestamp.IsZero() {
			errs = append(errs, client.IgnoreNotFound(c.Delete(ctx, g, client.Preconditions{UID: &g.UID})))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	conditions.Set(nc, metav1.Condition{
		Type: clusterv1.ReadyCondition, Status: metav1.ConditionFalse, Reason: reasonDeleting,
		Message: fmt.Sprintf("%d NstanceShardGroups are left: their condition Synced says what they wait for", len(groups.Items)),
	})
	id, err := c.keeper.Load(ctx, nc)
	if err != nil {
		setRegistered(nc, metav1.ConditionFalse, reasonRefused, err.Error())
		return ctrl.Result{RequeueAfter: retryRegistration}, nil
	}
	fl, err := c.fleets.follow(ctx, nc, id)
	if err != nil {
		return ctrl.Result{}, err
	}
	showShards(nc, fl.status())
	return ctrl.Result{RequeueAfter: min(removalInterval, c.keepCertificate(ctx, nc, fl))}, nil
}

// deleteUndrained deletes those instances of a group that are its members, since its cluster is
// deleted: like Cluster API, without a drain, since there is no other node for their pods. Instances
// by request are of Machines, maybe of another cluster.
func deleteUndrained(ctx context.Context, api apiv1.OperatorServiceClient, ofGroup []*apiv1.Instance) error {
	var errs []error
	for _, i := range ofGroup {
		if i.GetOnDemand() || nstance.State(i.GetState()) == nstance.Deleting {
			continue
		}
		_, err := api.DeleteInstance(ctx, &apiv1.DeleteInstanceRequest{Id: i.GetId(), NoDrain: true})
		if err != nil && !errors.Is(err, nstance.NotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// abandoned reports whether the NstanceCluster of a Cluster says that a shard is lost for good.
func abandoned(ctx context.Context, c client.Reader, cluster *clusterv1.Cluster, shard string) bool {
	var nc infrav1.NstanceCluster
	return c.Get(ctx, infrastructureOf(cluster), &nc) == nil && nc.Abandons(shard)
}
