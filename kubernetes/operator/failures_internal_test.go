package operator

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/identity"
)

// picky is an API server without objects, which refuses to change what refused names.
type picky struct {
	client.Client
	listed  []infrav1.NstanceShardGroup
	refused string
	changed *[]string
}

func (picky) Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(infrav1.AddToScheme(s), clusterv1.AddToScheme(s)); err != nil {
		panic(err)
	}
	return s
}

func (picky) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (p picky) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*infrav1.NstanceShardGroupList).Items = p.listed //nolint:forcetypeassert // the test fails
	return nil
}

func (p picky) change(o client.Object) error {
	if o.GetName() == p.refused {
		return apierrors.NewForbidden(schema.GroupResource{}, o.GetName(), errors.New("a policy says so"))
	}
	*p.changed = append(*p.changed, o.GetName())
	return nil
}

func (p picky) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	return p.change(o)
}

func (p picky) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	return p.change(o)
}

// TestOneGroupRefused: a group of one shard that cannot be changed keeps no other from it.
func TestOneGroupRefused(t *testing.T) {
	for _, refused := range []string{"a", "b", "c"} {
		var changed []string
		s := sizedPool(3, nil)
		s.pool.Name, s.cluster, s.pool.Spec.Group = "workers", &clusterv1.Cluster{}, "workers"
		s.pool.Namespace, s.pool.UID = "default", "1"
		c := &poolController{Client: picky{refused: ShardGroupName("workers", nstance.ShardID(refused)), changed: &changed}}
		err := c.divide(t.Context(), s, []string{"a", "b", "c"})
		require.ErrorContains(t, err, "a policy says so")
		require.Len(t, changed, 2)
		require.Len(t, s.groups, 2)
		require.Nil(t, s.groups[refused], "nothing follows from a size that has not changed")
		for _, g := range s.groups {
			require.EqualValues(t, 1, *g.Spec.Size)
		}
	}
}

// TestLeavesShards: a shard that is no pool's any more has its group deleted, once.
func TestLeavesShards(t *testing.T) {
	var changed []string
	s := sizedPool(1, map[string]int32{"b": 1, "c": 1})
	s.pool.Name, s.cluster, s.pool.Spec.Group, s.pool.UID = "workers", &clusterv1.Cluster{}, "workers", "1"
	for name, g := range s.groups {
		g.Name = name
	}
	deleting(s.groups["c"])
	require.NoError(t, (&poolController{Client: picky{changed: &changed}}).divide(t.Context(), s, []string{"a"}))
	require.Equal(t, []string{ShardGroupName("workers", "a"), "b"}, changed)
}

// TestOneGroupStays: nor does one that cannot be deleted with its cluster.
func TestOneGroupStays(t *testing.T) {
	var changed []string
	group := func(name string) infrav1.NstanceShardGroup {
		return infrav1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1"}}
	}
	ends := group("d")
	deleting(&ends)
	api := picky{listed: []infrav1.NstanceShardGroup{group("a"), group("b"), group("c"), ends}, refused: "a", changed: &changed}
	c := &clusterController{Client: api, keeper: identity.Keeper{Client: api}}
	_, err := c.remove(t.Context(), &infrav1.NstanceCluster{})
	require.ErrorContains(t, err, "a policy says so")
	require.Equal(t, []string{"b", "c"}, changed)
}
