package operator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

type sizes = map[string]int32

// TestSplit divides replicas over shards of which some have no capacity.
func TestSplit(t *testing.T) {
	abc := []string{"a", "b", "c"}
	for name, c := range map[string]struct {
		replicas int32
		shards   []string
		has      sizes
		limits   sizes
		want     sizes
	}{
		"new: rest to the earlier shards":           {7, abc, nil, nil, sizes{"a": 3, "b": 2, "c": 2}},
		"rest stays where it is":                    {7, abc, sizes{"a": 2, "b": 2, "c": 3}, nil, sizes{"a": 2, "b": 2, "c": 3}},
		"fewer than shards":                         {1, abc, nil, nil, sizes{"a": 1, "b": 0, "c": 0}},
		"none":                                      {0, abc, nil, sizes{"b": 0}, sizes{"a": 0, "b": 0, "c": 0}},
		"sold out: the others have the rest":        {9, abc, sizes{"a": 3, "b": 3, "c": 3}, sizes{"b": 1}, sizes{"a": 4, "b": 1, "c": 4}},
		"a limit above the part changes nothing":    {9, abc, nil, sizes{"b": 3}, sizes{"a": 3, "b": 3, "c": 3}},
		"a limit that only the rest of others hits": {9, abc, nil, sizes{"a": 0, "b": 4}, sizes{"a": 0, "b": 4, "c": 5}},
		"two sold out":                              {9, abc, nil, sizes{"a": 1, "c": 0}, sizes{"a": 1, "b": 8, "c": 0}},
		"all sold out: all are asked":               {9, abc, nil, sizes{"a": 1, "b": 1, "c": 1}, sizes{"a": 3, "b": 3, "c": 3}},
		"all sold out, one shard":                   {5, []string{"a"}, nil, sizes{"a": 2}, sizes{"a": 5}},
		"scaled below a limit":                      {2, abc, sizes{"a": 4, "b": 1, "c": 4}, sizes{"b": 1}, sizes{"a": 1, "b": 0, "c": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got := split(c.replicas, c.shards, c.has, c.limits)
			require.Equal(t, c.want, got)
			total := int32(0)
			for _, n := range got {
				total += n
			}
			require.Equal(t, c.replicas, total)
		})
	}
}

// TestWithSurplus keeps machines until those that take their place are ready.
func TestWithSurplus(t *testing.T) {
	ab := []string{"a", "b"}
	for name, c := range map[string]struct {
		sizes, has, ready, want sizes
	}{
		"back to an even split, nothing ready yet": {sizes{"a": 3, "b": 3}, sizes{"a": 5, "b": 1}, sizes{"a": 5, "b": 1}, sizes{"a": 5, "b": 3}},
		"one is ready":                         {sizes{"a": 3, "b": 3}, sizes{"a": 5, "b": 3}, sizes{"a": 5, "b": 2}, sizes{"a": 4, "b": 3}},
		"all are ready":                        {sizes{"a": 3, "b": 3}, sizes{"a": 5, "b": 3}, sizes{"a": 5, "b": 3}, sizes{"a": 3, "b": 3}},
		"what a sold-out shard never had goes": {sizes{"a": 5, "b": 1}, sizes{"a": 3, "b": 1}, sizes{"a": 3, "b": 1}, sizes{"a": 5, "b": 1}},
		"scaled down":                          {sizes{"a": 1, "b": 1}, sizes{"a": 3, "b": 3}, sizes{"a": 3, "b": 0}, sizes{"a": 1, "b": 1}},
		"scaled up":                            {sizes{"a": 4, "b": 4}, sizes{"a": 3, "b": 3}, sizes{"a": 3, "b": 3}, sizes{"a": 4, "b": 4}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, withSurplus(c.sizes, ab, c.has, c.ready))
		})
	}
}

// TestSizesWithoutStatus lets no shard shrink before it is known what the others have.
func TestSizesWithoutStatus(t *testing.T) {
	group := func(size int32) *infrav1.NstanceShardGroup {
		return &infrav1.NstanceShardGroup{Spec: infrav1.NstanceShardGroupSpec{Size: &size}}
	}
	s := &poolState{
		pool:   &infrav1.NstanceMachinePool{Spec: infrav1.NstanceMachinePoolSpec{Distribution: infrav1.DistributionFailover}},
		owner:  &clusterv1.MachinePool{Spec: clusterv1.MachinePoolSpec{Replicas: ptr.To[int32](5)}},
		groups: map[string]*infrav1.NstanceShardGroup{"a": group(4), "b": group(1)}, limits: map[string]*capacityLimit{},
	}
	require.Equal(t, sizes{"a": 4, "b": 2}, s.sizes([]string{"a", "b"}, sizes{"a": 4, "b": 1}, time.Now()))
}

// TestSizes: a pool asks shards that lack capacity for no more than they have, if it may. What is
// chosen to go, and what a shard never had, is no machine that has to stay until others are ready.
func TestSizes(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	group := func(size, ready int32, holds ...infrav1.Hold) *infrav1.NstanceShardGroup {
		g := &infrav1.NstanceShardGroup{Spec: infrav1.NstanceShardGroupSpec{Size: &size}}
		g.Status.Size, g.Status.Ready, g.Status.Holds = &size, &ready, holds
		return g
	}
	soldOut := infrav1.Hold{Kind: holdCapacity}
	former := infrav1.PoolShard{Name: "a", Limit: ptr.To[int32](3), RetryAt: ptr.To(metav1.NewTime(now.Add(time.Minute)))}
	for name, c := range map[string]struct {
		even     bool
		replicas *int32
		a, b     *infrav1.NstanceShardGroup
		has      sizes
		status   []infrav1.PoolShard
		want     sizes
		limits   sizes
	}{
		"no groups yet":                   {false, ptr.To[int32](3), nil, nil, nil, nil, sizes{"a": 2, "b": 1}, sizes{}},
		"one is the default":              {false, nil, nil, nil, nil, nil, sizes{"a": 1, "b": 0}, sizes{}},
		"a sold-out shard":                {false, ptr.To[int32](8), group(4, 3, soldOut), group(4, 4), sizes{"a": 4, "b": 4}, nil, sizes{"a": 3, "b": 5}, sizes{"a": 3}},
		"an even split asks nevertheless": {true, ptr.To[int32](8), group(4, 3, soldOut), group(4, 4), sizes{"a": 4, "b": 4}, nil, sizes{"a": 4, "b": 4}, sizes{}},
		"it was sold out before":          {false, ptr.To[int32](8), group(3, 3), group(5, 5), sizes{"a": 3, "b": 5}, []infrav1.PoolShard{former}, sizes{"a": 3, "b": 5}, sizes{"a": 3}},
		"back to an even split":           {false, ptr.To[int32](6), group(5, 5), group(1, 1), sizes{"a": 5, "b": 1}, nil, sizes{"a": 5, "b": 3}, sizes{}},
		"one is chosen to go":             {false, ptr.To[int32](4), group(4, 4), group(0, 0), sizes{"a": 3, "b": 0}, nil, sizes{"a": 3, "b": 2}, sizes{}},
		"two never came":                  {false, ptr.To[int32](6), group(5, 3, soldOut), group(1, 1), sizes{"a": 5, "b": 1}, nil, sizes{"a": 3, "b": 3}, sizes{"a": 3}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &poolState{pool: &infrav1.NstanceMachinePool{}, owner: &clusterv1.MachinePool{}, groups: map[string]*infrav1.NstanceShardGroup{}, limits: map[string]*capacityLimit{}}
			if !c.even {
				s.pool.Spec.Distribution = infrav1.DistributionFailover
			}
			if c.a != nil {
				s.groups = map[string]*infrav1.NstanceShardGroup{"a": c.a, "b": c.b}
			}
			s.owner.Spec.Replicas, s.pool.Status.Shards = c.replicas, c.status
			require.Equal(t, c.want, s.sizes([]string{"a", "b"}, c.has, now))
			limits := sizes{}
			for name, l := range s.limits {
				limits[name] = l.machines
			}
			require.Equal(t, c.limits, limits)
		})
	}
}

// TestLimitOf has a limit begin with a hold for capacity, follow what the shard has, and
// end after a while.
func TestLimitOf(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	group := func(size, ready, booting int32, holds ...string) *infrav1.NstanceShardGroup {
		g := &infrav1.NstanceShardGroup{Status: infrav1.NstanceShardGroupStatus{Size: &size, Ready: &ready, Booting: &booting}}
		for _, kind := range holds {
			g.Status.Holds = append(g.Status.Holds, infrav1.Hold{Kind: kind})
		}
		return g
	}
	later, before := now.Add(time.Minute), &capacityLimit{3, now.Add(time.Minute)}
	outdated := group(5, 1, 0, holdCapacity)
	outdated.Generation = 2
	for name, c := range map[string]struct {
		group  *infrav1.NstanceShardGroup
		before *capacityLimit
		now    time.Time
		want   *capacityLimit
	}{
		"complete":                        {group(5, 5, 0), nil, now, nil},
		"short for another reason":        {group(5, 1, 0, "backoff"), nil, now, nil},
		"short of capacity":               {group(5, 1, 1, "budget", holdCapacity), nil, now, &capacityLimit{2, now.Add(capacityRetry)}},
		"every pool is avoided":           {group(5, 1, 1, holdAvoided), nil, now, &capacityLimit{2, now.Add(capacityRetry)}},
		"it has shrunk to what it has":    {group(3, 3, 0, holdCapacity), before, now, before},
		"it loses one":                    {group(3, 2, 0, holdCapacity), before, now, &capacityLimit{2, later}},
		"all are limited, and it has got": {group(5, 4, 0, holdCapacity), before, now, &capacityLimit{4, later}},
		"said of an earlier size":         {outdated, nil, now, nil},
		"time is up":                      {group(3, 3, 0), before, later, nil},
		"time is up, and it is short":     {group(3, 2, 0, holdCapacity), before, later, &capacityLimit{2, later.Add(capacityRetry)}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, limitOf(c.group, c.before, c.now))
		})
	}
}

// TestFormerLimit keeps a limit in the pool's status, for the next operator.
func TestFormerLimit(t *testing.T) {
	limit := &capacityLimit{2, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	at := infrav1.PoolShard{Name: "a"}
	limit.showOn(&at)
	s := &poolState{pool: &infrav1.NstanceMachinePool{Status: infrav1.NstanceMachinePoolStatus{Shards: []infrav1.PoolShard{at, {Name: "b", Size: ptr.To[int32](1)}}}}}
	require.Equal(t, limit, s.formerLimit("a"))
	require.Nil(t, s.formerLimit("b"))
	require.Nil(t, s.formerLimit("c"))
	require.Contains(t, at.Message, "retry at 2026-01-01T00:00:00Z")
}
