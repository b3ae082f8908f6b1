package webhooks

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// usedShards is a namespace with groups and machines of shards.
type usedShards struct {
	client.Reader
	groups, machines []string
	err, machinesErr error
	namespaces       *[]string // that were listed
}

func (u usedShards) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	*u.namespaces = append(*u.namespaces, o.Namespace)
	switch l := list.(type) {
	case *infrav1.NstanceShardGroupList:
		for _, shard := range u.groups {
			l.Items = append(l.Items, infrav1.NstanceShardGroup{Spec: infrav1.NstanceShardGroupSpec{Shard: shard}})
		}
	case *infrav1.NstanceMachineList:
		for _, shard := range u.machines {
			l.Items = append(l.Items, infrav1.NstanceMachine{Spec: infrav1.NstanceMachineSpec{Shard: shard}})
		}
		return u.machinesErr
	}
	return u.err
}

// TestRemovedShards: a shard stays while a group or a machine needs it, unless it is given up or the
// whole cluster goes. Nothing is read where no shard is taken out.
func TestRemovedShards(t *testing.T) {
	cluster := func(shards ...string) *infrav1.NstanceCluster {
		nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}}}
		for _, name := range shards {
			nc.Spec.Shards = append(nc.Spec.Shards, infrav1.Shard{Name: name})
		}
		return nc
	}
	abandoned, deleted := cluster("a"), cluster("a")
	abandoned.Annotations = map[string]string{infrav1.AnnotationAbandonedShards: "x, b"}
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for name, c := range map[string]struct {
		changed *infrav1.NstanceCluster
		used    usedShards
		refused string
		reads   bool
	}{
		"nothing is taken out":   {cluster("b", "a"), usedShards{groups: []string{"b"}}, "", false},
		"one that is not used":   {cluster("a"), usedShards{groups: []string{"a"}, machines: []string{"a"}}, "", true},
		"one with a group":       {cluster("a"), usedShards{groups: []string{"b"}}, "1 NstanceShardGroups and 0 NstanceMachines", true},
		"one with machines":      {cluster("a"), usedShards{machines: []string{"b", "a", "b"}}, "0 NstanceShardGroups and 2 NstanceMachines", true},
		"one that is given up":   {abandoned, usedShards{groups: []string{"b"}}, "", false},
		"of a cluster that goes": {deleted, usedShards{groups: []string{"b"}}, "", false},
		"it cannot be read":      {cluster("a"), usedShards{err: errors.New("no answer")}, "no answer", true},
		"half of it cannot":      {cluster("a"), usedShards{machinesErr: errors.New("no answer")}, "no answer", true},
	} {
		t.Run(name, func(t *testing.T) {
			var namespaces []string
			c.used.namespaces = &namespaces
			r := clusterRules{rules[*infrav1.NstanceCluster]{kind: "NstanceCluster"}, c.used}
			_, err := r.ValidateUpdate(t.Context(), cluster("a", "b"), c.changed)
			if c.refused == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.refused)
			}
			require.Equal(t, c.reads, len(namespaces) > 0)
			for _, namespace := range namespaces {
				require.Equal(t, "ns", namespace, "others have clusters of that name")
			}
		})
	}
}

// TestDeletedObjects: what is being deleted may be changed in any way, such as by a finalizer of
// others that repairs it.
func TestDeletedObjects(t *testing.T) {
	r := rules[*infrav1.NstanceMachine]{kind: "NstanceMachine", always: machineRules, update: machineUpdate}
	old, changed := &infrav1.NstanceMachine{}, &infrav1.NstanceMachine{}
	old.Spec.Group, changed.Spec.Group, changed.DeletionTimestamp = "web", "api", &metav1.Time{Time: time.Now()}
	_, err := r.ValidateUpdate(t.Context(), old, changed)
	require.NoError(t, err)
}

// TestGivenUpStates: an instance may be given up for another one while its machine starts, and not
// once it was ready or in a state that is not known.
func TestGivenUpStates(t *testing.T) {
	for state, starts := range map[string]bool{
		"pending": true, "provisioning": true, "booting": true, "failed": true,
		"": false, "ready": false, "draining": false, "deleting": false, "deleted": false, "gone": false, "parked": false,
	} {
		t.Run(state, func(t *testing.T) {
			old := &infrav1.NstanceMachine{Spec: infrav1.NstanceMachineSpec{InstanceID: "i", ProviderID: "sim:///1"}}
			old.Status.State = state
			givenUp := old.DeepCopy()
			givenUp.Spec.InstanceID, givenUp.Spec.ProviderID = "", ""
			require.Equal(t, starts, len(machineUpdate(old, givenUp)) == 0)
			exchanged := old.DeepCopy()
			exchanged.Spec.InstanceID = "j"
			require.NotEmpty(t, machineUpdate(old, exchanged), "but never exchanged")
		})
	}
}

// TestGroupOfPoolStays: the group of a pool that names none has the pool's name.
func TestGroupOfPoolStays(t *testing.T) {
	for name, c := range map[string]struct {
		before, now string
		stays       bool
	}{
		"none named": {"", "", true}, "its own name": {"", "workers", true}, "not named any more": {"workers", "", true},
		"another one": {"", "web", false}, "another one than named": {"web", "api", false}, "its own, which was another": {"web", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := func(group string) *infrav1.NstanceMachinePool {
				return &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "workers"}, Spec: infrav1.NstanceMachinePoolSpec{Group: group}}
			}
			require.Equal(t, c.stays, len(poolUpdate(pool(c.before), pool(c.now))) == 0)
		})
	}
}

// TestNoDrainTime: a group may be without a drain, and not with less.
func TestNoDrainTime(t *testing.T) {
	for timeout, good := range map[time.Duration]bool{-time.Second: false, 0: true, time.Second: true} {
		p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}
		p.Spec.Template, p.Spec.DrainTimeout = "node", ptr.To(metav1.Duration{Duration: timeout})
		require.Equal(t, good, len(poolRules(p)) == 0, timeout)
	}
}

// TestGroupNames: a group has a name that shards take, whichever object names it.
func TestGroupNames(t *testing.T) {
	for group, good := range map[string]bool{"web": true, "a-b": true, "a--b": false, "Web": false, "a.b": false} {
		t.Run(group, func(t *testing.T) {
			p, pt, g := &infrav1.NstanceMachinePool{}, &infrav1.NstanceMachinePoolTemplate{}, &infrav1.NstanceShardGroup{}
			p.Name, p.Spec.Group, pt.Spec.Template.Spec.Group, g.Spec.Group, g.Spec.Shard = "pool", group, group, group, "a"
			require.Equal(t, good, len(poolRules(p)) == 0)
			require.Equal(t, good, len(poolTemplateRules(pt)) == 0)
			require.Equal(t, good, len(shardGroupRules(g)) == 0)
		})
	}
	require.Empty(t, poolTemplateRules(&infrav1.NstanceMachinePoolTemplate{}), "one that names none")
}
