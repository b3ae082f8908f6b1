package operator

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// reasonOtherOwner is the reason of a group that another owner has at the shard.
const reasonOtherOwner = "OtherOwner"

// retryOwned is between two requests for a group that another owner has, or had and is being
// removed. The interval is fixed: whenever the group is free, it is taken soon after.
const retryOwned = 10 * time.Second

// chooseOwner has an NstanceCluster say whose its groups are at shards, and reports whether it
// did not before. An annotation outlives clusterctl move and a restore from a backup, after
// which the UID is another one.
func chooseOwner(nc *infrav1.NstanceCluster) bool {
	if nc.Annotations[infrav1.AnnotationOwner] != "" {
		return false
	}
	metav1.SetMetaDataAnnotation(&nc.ObjectMeta, infrav1.AnnotationOwner, string(nc.UID))
	return true
}

// ownerOf returns whose the groups of a Cluster are at shards. Fails with Unavailable while
// that is not chosen, which brings the objects of the NstanceCluster back.
func ownerOf(ctx context.Context, c client.Reader, cluster *clusterv1.Cluster) (string, error) {
	var nc infrav1.NstanceCluster
	if err := c.Get(ctx, infrastructureOf(cluster), &nc); err != nil {
		return "", err
	}
	owner := nc.Annotations[infrav1.AnnotationOwner]
	if owner == "" {
		return "", nstance.Errorf(nstance.Unavailable, "NstanceCluster %s has no annotation %s yet", nc.Name, infrav1.AnnotationOwner)
	}
	return owner, nil
}

// otherOwner reports whether a group at a shard is another owner's.
func otherOwner(g *apiv1.Group, owner string) bool {
	return g.GetOwner() != "" && g.GetOwner() != owner
}

// owns reports whether the shard's group is the owner's. A server before 0.3.0 knows no
// owners: then it is once the shard has accepted it.
func owns(sg *infrav1.NstanceShardGroup, g *apiv1.Group, owner string) bool {
	return g.GetOwner() == owner || g.GetOwner() == "" && sg.Status.ObservedGeneration > 0
}

// otherOwnerError says which owner has a group, and what to do.
func otherOwnerError(sg *infrav1.NstanceShardGroup, g *apiv1.Group, owner string) error {
	return &nstance.Error{
		Code: nstance.Conflict, Field: "spec.group", Msg: "group " + g.GetGroup() + " of shard " + sg.Spec.Shard + " is owned by " + g.GetOwner() + ", this cluster is " + owner,
		Remedy: "use another group; if it is this cluster's, set the annotation " + infrav1.AnnotationOwner + " of its NstanceCluster to the owner",
	}
}
