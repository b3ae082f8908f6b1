package operator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// sizedPool is a pool with so many ready machines at each shard, named a-0, a-1 and so on. Those
// that an autoscaler has marked go first.
func sizedPool(replicas int32, sizes map[string]int32, marked ...string) *poolState {
	s := &poolState{
		pool: &infrav1.NstanceMachinePool{}, owner: &clusterv1.MachinePool{}, groups: map[string]*infrav1.NstanceShardGroup{},
		members: map[string]*infrav1.NstanceMachine{}, shown: map[string]*clusterv1.Machine{}, limits: map[string]*capacityLimit{},
	}
	s.owner.Spec.Replicas = &replicas
	for shard, size := range sizes {
		s.groups[shard] = &infrav1.NstanceShardGroup{Spec: infrav1.NstanceShardGroupSpec{Shard: shard, Size: ptr.To(size)}}
		for i := range size {
			id := fmt.Sprintf("%s-%d", shard, i)
			s.members[id] = &infrav1.NstanceMachine{Spec: infrav1.NstanceMachineSpec{Shard: shard, InstanceID: id}}
			s.members[id].Status.State = string(nstance.Ready)
			s.shown[id] = &clusterv1.Machine{}
		}
	}
	for _, id := range marked {
		s.shown[id].Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: "now"}
	}
	return s
}

// TestScaleDownBeforeItArrives: a shard replaces a machine that is drained while it has its former
// size. What the smaller size removes is not drained by the pool, however many passes there are until
// it has arrived; what it does not remove is, at once.
func TestScaleDownBeforeItArrives(t *testing.T) {
	for name, c := range map[string]struct {
		replicas int32
		sizes    map[string]int32
		marked   []string
		want     map[string]int32
		replaced []string // of shard a
	}{
		"the shard shrinks":           {3, map[string]int32{"a": 2, "b": 2}, []string{"a-1"}, map[string]int32{"a": 1, "b": 2}, nil},
		"to nothing":                  {2, map[string]int32{"a": 1, "b": 1, "c": 1}, []string{"a-0"}, map[string]int32{"a": 0, "b": 1, "c": 1}, nil},
		"another shard has to shrink": {2, map[string]int32{"a": 1, "b": 2}, []string{"a-0"}, map[string]int32{"a": 1, "b": 1}, []string{"a-0"}},
		"both do":                     {4, map[string]int32{"a": 2, "b": 2, "c": 2}, []string{"a-0", "a-1"}, map[string]int32{"a": 1, "b": 2, "c": 1}, []string{"a-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := sizedPool(c.replicas, c.sizes, c.marked...)
			shards := []string{"a", "b", "c"}[:len(c.sizes)]
			has := &apiv1.Group{Size: c.sizes["a"]}
			for range 4 { // until the shards have heard of it
				sizes := s.plan(shards, time.Now())
				require.Equal(t, c.want, sizes)
				for shard := range c.sizes {
					s.groups[shard].Spec.Size = ptr.To(sizes[shard])
				}
				require.ElementsMatch(t, c.replaced, s.replaced("a", has))
				for _, id := range c.marked {
					require.Equal(t, len(c.replaced) > 0 && id == c.replaced[0], s.departure(id, s.replaced("a", has)) != "", id)
				}
			}
			for _, id := range c.marked {
				s.members[id].DeletionTimestamp = ptr.To(metav1.Now())
			}
			s.plan(shards, time.Now())
			require.Empty(t, s.replaced("a", &apiv1.Group{Size: c.want["a"]}), "they are on their way out")
		})
	}
}

// threeShards is an API server with an NstanceCluster of shards a, b and c.
type threeShards struct{ client.Client }

func (threeShards) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	obj.(*infrav1.NstanceCluster).Spec.Shards = []infrav1.Shard{{Name: "a"}, {Name: "b"}, {Name: "c"}} //nolint:forcetypeassert // the test fails
	return nil
}

// TestShardsOfPool: a pool is at the shards that it names, else at those of its MachinePool, else at all.
func TestShardsOfPool(t *testing.T) {
	_, err := ownerOf(t.Context(), threeShards{}, &clusterv1.Cluster{})
	require.ErrorIs(t, err, nstance.Unavailable, "its owner is not chosen yet")
	for name, c := range map[string]struct {
		pool, domains, want []string
		wrong               string // field
	}{
		"all":                           {nil, nil, []string{"a", "b", "c"}, ""},
		"its own, in its order":         {[]string{"c", "a"}, []string{"b"}, []string{"c", "a"}, ""},
		"those of the MachinePool":      {nil, []string{"b"}, []string{"b"}, ""},
		"an unknown one":                {[]string{"a", "d"}, nil, nil, "spec.shards"},
		"an unknown one of MachinePool": {nil, []string{"d"}, nil, "MachinePool.spec.failureDomains"},
	} {
		t.Run(name, func(t *testing.T) {
			s := sizedPool(1, nil)
			s.cluster, s.pool.Spec.Shards, s.owner.Spec.FailureDomains = &clusterv1.Cluster{}, c.pool, c.domains
			got, err := (&poolController{Client: threeShards{}}).shardsOf(t.Context(), s)
			require.Equal(t, c.want, got)
			if c.wrong != "" {
				require.ErrorIs(t, err, nstance.Invalid)
				require.ErrorContains(t, err, c.wrong+": ")
				return
			}
			require.NoError(t, err)
		})
	}
}
