package webhooks

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// clusterRules refuse to take a shard out of an NstanceCluster that has groups or machines
// of it: nothing could reach them any more. They read these, and only then.
type clusterRules struct {
	rules[*infrav1.NstanceCluster]
	reader client.Reader
}

// ValidateUpdate implements admission.Validator.
func (r clusterRules) ValidateUpdate(ctx context.Context, old, changed *infrav1.NstanceCluster) (admission.Warnings, error) {
	removed := removedShards(old, changed)
	if len(removed) == 0 || !changed.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	used, err := r.users(ctx, changed)
	if err != nil {
		return nil, err
	}
	var broken field.ErrorList
	for _, shard := range removed {
		if n := used[shard]; n != (users{}) {
			broken = append(broken, field.Forbidden(field.NewPath("spec", "shards"), fmt.Sprintf(
				"shard %s has %d NstanceShardGroups and %d NstanceMachines: name other shards in spec.shards of the pools, and delete what is in no pool; "+
					"or, if the shard is lost for good, name it in the annotation %s, which leaves its machines to themselves",
				shard, n.groups, n.machines, infrav1.AnnotationAbandonedShards)))
		}
	}
	return nil, r.refuse(changed, broken)
}

// removedShards returns the shards that an update takes out, without those that are given up.
func removedShards(old, changed *infrav1.NstanceCluster) (out []string) {
	for _, s := range old.Spec.Shards {
		if !slices.ContainsFunc(changed.Spec.Shards, func(now infrav1.Shard) bool { return now.Name == s.Name }) && !changed.Abandons(s.Name) {
			out = append(out, s.Name)
		}
	}
	return out
}

// users are how many objects need a shard.
type users struct{ groups, machines int }

func (r clusterRules) users(ctx context.Context, nc *infrav1.NstanceCluster) (map[string]users, error) {
	of := []client.ListOption{client.InNamespace(nc.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: nc.Labels[clusterv1.ClusterNameLabel]}}
	var groups infrav1.NstanceShardGroupList
	var machines infrav1.NstanceMachineList
	if err := r.reader.List(ctx, &groups, of...); err != nil {
		return nil, err
	}
	if err := r.reader.List(ctx, &machines, of...); err != nil {
		return nil, err
	}
	out := map[string]users{}
	for _, g := range groups.Items {
		n := out[g.Spec.Shard]
		n.groups++
		out[g.Spec.Shard] = n
	}
	for _, m := range machines.Items {
		n := out[m.Spec.Shard]
		n.machines++
		out[m.Spec.Shard] = n
	}
	return out, nil
}
