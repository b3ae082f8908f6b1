package operator

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// TestChosenOfStaying: machines that are on their way out, or do not run, are no surplus.
func TestChosenOfStaying(t *testing.T) {
	for name, c := range map[string]struct {
		state    nstance.State
		deleting bool
		want     []string
	}{
		"all stay":             {nstance.Ready, false, []string{"a-1"}},
		"one does not run":     {nstance.Gone, false, nil},
		"one is drained":       {nstance.Draining, false, nil},
		"one is being deleted": {nstance.Ready, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := sizedPool(2, map[string]int32{"a": 3}, "a-1")
			s.members["a-2"].Status.State = string(c.state)
			if c.deleting {
				deleting(s.members["a-2"])
			}
			s.choose()
			require.Equal(t, c.want, s.chosen["a"])
		})
	}
}

// shownPool is a pool with two ready machines at shard a, which has accepted them.
func shownPool() *poolState {
	s := sizedPool(2, map[string]int32{"a": 2})
	for id, m := range s.members {
		m.Name, m.Spec.ProviderID = id, "sim:///"+id
	}
	g := s.groups["a"]
	g.Generation, g.Status.ObservedGeneration, g.Status.Ready = 3, 3, ptr.To[int32](2)
	conditions.Set(g, metav1.Condition{Type: infrav1.ConditionSynced, Status: metav1.ConditionTrue, Reason: reasonSynced})
	return s
}

// TestShowsPool: Cluster API deletes the Node of an ID that is missing, so members that leave are
// listed. What a shard has not taken over yet is not complete.
func TestShowsPool(t *testing.T) {
	unsynced := func(reason, message string) func(*poolState) {
		return func(s *poolState) {
			conditions.Set(s.groups["a"], metav1.Condition{Type: infrav1.ConditionSynced, Status: metav1.ConditionFalse, Reason: reason, Message: message})
		}
	}
	for name, c := range map[string]struct {
		change                func(*poolState)
		replicas              int32
		synced, ready, reason string
	}{
		"complete":             {func(*poolState) {}, 2, "True", "True", reasonSynced},
		"one leaves":           {func(s *poolState) { s.members["a-1"].Status.State = string(nstance.Draining) }, 1, "True", "True", reasonSynced},
		"one is missing":       {func(s *poolState) { s.groups["a"].Status.Ready = ptr.To[int32](1) }, 2, "True", "False", reasonSynced},
		"a spec on its way":    {func(s *poolState) { s.groups["a"].Generation = 4 }, 2, "False", "Unknown", reasonWaiting},
		"the shard is away":    {unsynced(reasonShardLost, "away"), 2, "False", "Unknown", reasonWaiting},
		"another owner has it": {unsynced(reasonOtherOwner, "it is theirs"), 2, "False", "Unknown", reasonOtherOwner},
	} {
		t.Run(name, func(t *testing.T) {
			s := shownPool()
			c.change(s)
			s.show([]string{"a"})
			require.Equal(t, []string{"sim:///a-0", "sim:///a-1"}, s.pool.Spec.ProviderIDList)
			require.Equal(t, c.replicas, *s.pool.Status.Replicas)
			synced, ready := conditions.Get(s.pool, infrav1.ConditionSynced), conditions.Get(s.pool, clusterv1.ReadyCondition)
			require.EqualValues(t, c.synced, synced.Status)
			require.Equal(t, c.reason, synced.Reason)
			require.EqualValues(t, c.ready, ready.Status)
			require.Equal(t, c.synced == "True", s.pool.Status.Ready)
		})
	}
}

// TestShowsShardsOfPool: a shard's first hold, or what else is wrong, and its limit are shown. A pool is
// provisioned once one shard has accepted its group.
func TestShowsShardsOfPool(t *testing.T) {
	s := shownPool()
	s.groups["a"].Status.Holds = []infrav1.Hold{{Kind: "budget", Message: "first"}, {Kind: "backoff", Message: "second"}}
	s.show([]string{"a"})
	require.Equal(t, "first", s.pool.Status.Shards[0].Message)
	require.True(t, *s.pool.Status.Initialization.Provisioned)
	s.limits["a"] = &capacityLimit{machines: 2, retryAt: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	s.show([]string{"a"})
	require.EqualValues(t, 2, *s.pool.Status.Shards[0].Limit)
	require.Contains(t, s.pool.Status.Shards[0].Message, "no capacity for more than 2 machines")
}

// TestRemovesPool: a Machine goes before the NstanceMachine, since Cluster API drains its node. The pool
// goes last.
func TestRemovesPool(t *testing.T) {
	named := func(s *poolState) {
		for id, machine := range s.shown {
			machine.Name = id
		}
	}
	for name, c := range map[string]struct {
		change func(*poolState)
		want   []string
		gone   bool
	}{
		"with Machines":            {named, []string{"Machine a-0", "Machine a-1"}, false},
		"one without Machine":      {func(s *poolState) { named(s); delete(s.shown, "a-1") }, []string{"Machine a-0", "NstanceMachine a-1"}, false},
		"only a Machine is left":   {func(s *poolState) { named(s); clear(s.members); clear(s.groups); delete(s.shown, "a-1") }, []string{"Machine a-0"}, false},
		"its Machines are deleted": {func(s *poolState) { named(s); deleting(s.shown["a-0"]); deleting(s.shown["a-1"]) }, nil, false},
		"nothing is left":          {func(s *poolState) { clear(s.members); clear(s.groups); clear(s.shown) }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := shownPool(), &diary{}
			s.pool.Finalizers = []string{infrav1.Finalizer}
			c.change(s)
			require.NoError(t, (&poolController{Client: d}).remove(t.Context(), s))
			slices.Sort(d.dropped)
			require.Equal(t, c.want, d.dropped)
			require.Equal(t, c.gone, len(s.pool.Finalizers) == 0)
		})
	}
}

// creator takes new objects, unless they exist.
type creator struct {
	client.Client
	exists bool
	made   []client.Object
}

func (c *creator) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	if c.exists {
		return apierrors.NewAlreadyExists(schema.GroupResource{}, obj.GetName())
	}
	c.made = append(c.made, obj)
	return nil
}

// TestMemberOfPool: the NstanceMachine of an instance is of the operator that the pool is of. One that
// the cache does not show yet is no error.
func TestMemberOfPool(t *testing.T) {
	for _, exists := range []bool{false, true} {
		s, c := shownPool(), &creator{exists: exists}
		s.cluster = &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "prod"}}
		s.owner.Name, s.pool.Name, s.pool.UID = "workers", "pool", "1"
		s.pool.Labels = map[string]string{clusterv1.WatchLabel: "blue"}
		require.NoError(t, (&poolController{Client: c}).member(t.Context(), s, "a", &apiv1.Instance{Id: "a-9", Group: "web", NodeProviderId: "sim:///9"}))
		require.Equal(t, exists, s.members["a-9"] == nil)
		if exists {
			continue
		}
		m := c.made[0].(*infrav1.NstanceMachine)
		require.Equal(t, map[string]string{clusterv1.ClusterNameLabel: "prod", clusterv1.MachinePoolNameLabel: "workers", clusterv1.WatchLabel: "blue"}, m.Labels)
		require.Nil(t, metav1.GetControllerOf(m), "that is the Machine")
		require.EqualValues(t, "1", m.OwnerReferences[0].UID)
		require.Equal(t, infrav1.NstanceMachineSpec{Group: "web", Shard: "a", InstanceID: "a-9", ProviderID: "sim:///9"}, m.Spec)
		require.Equal(t, []string{infrav1.Finalizer}, m.Finalizers)
	}
}

func TestUnhealthyMember(t *testing.T) {
	s := shownPool()
	require.Empty(t, s.departure("a-0", nil))
	require.Empty(t, s.departure("unknown", []string{"unknown"}))
	require.NotEmpty(t, s.departure("a-0", []string{"a-0"}))
	for _, name := range []string{clusterv1.MachineHealthCheckSucceededCondition, clusterv1.MachineOwnerRemediatedCondition} {
		conditions.Set(s.shown["a-1"], metav1.Condition{Type: name, Status: metav1.ConditionFalse, Reason: "X"})
	}
	require.Contains(t, s.departure("a-1", nil), "MachineHealthCheck")
}

// A drainAPI records which instances a shard is asked to drain.
type drainAPI struct {
	apiv1.OperatorServiceClient
	reasons []string
}

func (a *drainAPI) DrainInstance(_ context.Context, r *apiv1.DrainInstanceRequest, _ ...grpc.CallOption) (*apiv1.DrainInstanceResponse, error) {
	a.reasons = append(a.reasons, r.GetReason())
	return &apiv1.DrainInstanceResponse{}, nil
}

// TestFollowsInstance: members of the group with a machine are shown, once. Instances by request are
// of other Machines, and no health check shall replace what stands by. What leaves is not drained again.
func TestFollowsInstance(t *testing.T) {
	for name, c := range map[string]struct {
		instance *apiv1.Instance
		why      string
		shown    bool
		drained  bool
	}{
		"a member":           {&apiv1.Instance{Id: "a-9", State: "booting", NodeProviderId: "sim:///9"}, "", true, false},
		"known":              {&apiv1.Instance{Id: "a-0", State: "ready", NodeProviderId: "sim:///0"}, "", false, false},
		"without a machine":  {&apiv1.Instance{Id: "a-9", State: "provisioning"}, "", false, false},
		"made by request":    {&apiv1.Instance{Id: "a-9", State: "ready", NodeProviderId: "sim:///9", OnDemand: true}, "", false, false},
		"standing by":        {&apiv1.Instance{Id: "a-9", State: "parked", NodeProviderId: "sim:///9", Standby: true}, "", false, false},
		"to be replaced":     {&apiv1.Instance{Id: "a-0", State: "ready", NodeProviderId: "sim:///0"}, "unhealthy", false, true},
		"about to be parked": {&apiv1.Instance{Id: "a-0", State: "ready", NodeProviderId: "sim:///0", Drain: &apiv1.Drain{}}, "unhealthy", false, false},
		"being deleted":      {&apiv1.Instance{Id: "a-0", State: "deleting", NodeProviderId: "sim:///0"}, "unhealthy", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, made, api := shownPool(), &creator{}, &drainAPI{}
			s.cluster = &clusterv1.Cluster{}
			require.NoError(t, (&poolController{Client: made}).followInstance(t.Context(), s, api, "a", c.instance, c.why))
			require.Equal(t, c.shown, len(made.made) == 1)
			require.Equal(t, c.drained, slices.Equal(api.reasons, []string{c.why}))
		})
	}
}

// TestFollowsOwnGroup: nothing is shown of a group that the shard has not accepted for the pool, nor
// of one at a shard that is away.
func TestFollowsOwnGroup(t *testing.T) {
	r, servers := newCertificateRig(t, "a")
	ids := r.machines(servers[0], 1)
	for name, c := range map[string]struct {
		shard    string
		observed int64
		want     bool
	}{
		"accepted":           {"a", 1, true},
		"not accepted":       {"a", 0, false},
		"of an absent shard": {"b", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, made := sizedPool(1, map[string]int32{c.shard: 0}), &creator{}
			s.pool.Spec.Group, s.cluster, s.claimant = "web", r.cluster, "us"
			s.groups[c.shard].Status.ObservedGeneration = c.observed
			require.NoError(t, (&poolController{Client: made, fleets: r.fleets}).follow(t.Context(), s, c.shard))
			require.Equal(t, c.want, s.members[string(ids[0])] != nil)
		})
	}
}

// A groupAPI records which requests for groups a shard gets.
type groupAPI struct {
	apiv1.OperatorServiceClient
	err    error
	asked  []string
	update *apiv1.UpdateGroupRequest
}

func (a *groupAPI) CreateGroup(context.Context, *apiv1.CreateGroupRequest, ...grpc.CallOption) (*apiv1.CreateGroupResponse, error) {
	a.asked = append(a.asked, "create")
	return &apiv1.CreateGroupResponse{Group: &apiv1.Group{}}, a.err
}

func (a *groupAPI) UpdateGroup(_ context.Context, r *apiv1.UpdateGroupRequest, _ ...grpc.CallOption) (*apiv1.UpdateGroupResponse, error) {
	a.asked, a.update = append(a.asked, "update"), r
	return &apiv1.UpdateGroupResponse{Group: &apiv1.Group{}}, a.err
}

func (a *groupAPI) DeleteGroup(context.Context, *apiv1.DeleteGroupRequest, ...grpc.CallOption) (*apiv1.DeleteGroupResponse, error) {
	a.asked = append(a.asked, "delete")
	return &apiv1.DeleteGroupResponse{}, a.err
}

// bootstrapSecret is the only object.
type bootstrapSecret struct{ client.Reader }

func (bootstrapSecret) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	obj.(*corev1.Secret).Data = map[string][]byte{"value": []byte("data")}
	return nil
}

// TestSyncsGroup: a shard is asked for what differs, and for nothing else. Bootstrap data that it did
// not accept is sent again.
func TestSyncsGroup(t *testing.T) {
	has := func(change func(*apiv1.Group)) *apiv1.Group {
		g := &apiv1.Group{Group: "web", Size: 2, Owner: "us", IsStatic: true}
		change(g)
		return g
	}
	known := digestOf([]byte("data"))
	for name, c := range map[string]struct {
		now    *apiv1.Group
		secret string
		digest string
		err    error
		want   []string
		after  string // the digest
		data   bool
	}{
		"none":                     {nil, "", "", nil, []string{"create"}, "", false},
		"one that is removed":      {has(func(g *apiv1.Group) { g.Removing = true }), "", "", nil, []string{"create"}, "", false},
		"as it shall be":           {has(func(*apiv1.Group) {}), "", "", nil, nil, "", false},
		"another size":             {has(func(g *apiv1.Group) { g.Size = 1 }), "", "", nil, []string{"update"}, "", false},
		"without owner":            {has(func(g *apiv1.Group) { g.Owner = "" }), "", "", nil, []string{"update"}, "", false},
		"the data it has":          {has(func(*apiv1.Group) {}), "s", known, nil, nil, known, false},
		"other data":               {has(func(*apiv1.Group) {}), "s", "former", nil, []string{"update"}, known, true},
		"other data, not accepted": {has(func(*apiv1.Group) {}), "s", "former", nstance.Errorf(nstance.Unavailable, "away"), []string{"update"}, "former", true},
		"other size, the data":     {has(func(g *apiv1.Group) { g.Size = 1 }), "s", known, nil, []string{"update"}, known, false},
	} {
		t.Run(name, func(t *testing.T) {
			sg := &infrav1.NstanceShardGroup{Spec: infrav1.NstanceShardGroupSpec{Group: "web", Size: ptr.To[int32](2), BootstrapSecretName: c.secret}}
			sg.Status.BootstrapDigest = c.digest
			api := &groupAPI{err: c.err}
			_, err := (&shardGroupController{secrets: bootstrapSecret{}}).sync(t.Context(), sg, shardCopy{api: api, now: c.now, owner: "us"})
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, api.asked)
			require.Equal(t, c.after, sg.Status.BootstrapDigest)
			if api.update != nil {
				require.Equal(t, "us", api.update.GetOwner())
				require.Equal(t, c.data, api.update.GetBootstrapData() != nil)
			}
		})
	}
}

// TestRemovesGroup: a group that another owner has, or that this one never had, is left alone. One of
// which it is not known whether machines are left stays.
func TestRemovesGroup(t *testing.T) {
	notFound := nstance.Errorf(nstance.NotFound, "no")
	for name, c := range map[string]struct {
		now      *apiv1.Group
		observed int64
		err      error
		want     []string
		gone     bool
		failed   bool
	}{
		"another owner's":              {&apiv1.Group{Owner: "them", Size: 3}, 1, nil, nil, true, false},
		"none's, and never ours":       {&apiv1.Group{IsStatic: true, Size: 3}, 0, nil, nil, true, false},
		"of a server without owners":   {&apiv1.Group{IsStatic: true, Size: 3}, 1, nil, []string{"update"}, false, false},
		"ours":                         {&apiv1.Group{Owner: "us", Size: 3}, 1, nil, []string{"delete"}, false, false},
		"ours, that is removed":        {&apiv1.Group{Owner: "us", Size: 3, Removing: true}, 1, nil, nil, false, false},
		"ours, that has just gone":     {&apiv1.Group{Owner: "us", Size: 3}, 1, notFound, []string{"delete"}, false, false},
		"of the shard's, of size 0":    {&apiv1.Group{Owner: "us", IsStatic: true}, 1, nil, nil, false, false},
		"the shard does not answer":    {&apiv1.Group{Owner: "us", Size: 3}, 1, nstance.Errorf(nstance.Unavailable, "away"), []string{"delete"}, false, true},
		"unknown, and the copy is old": {nil, 1, nil, nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			sg := &infrav1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{infrav1.Finalizer}}, Spec: infrav1.NstanceShardGroupSpec{Group: "web"}}
			sg.Status.ObservedGeneration = c.observed
			api := &groupAPI{err: c.err}
			at := shardCopy{Shard: shards.New(shards.Options{}), api: api, now: c.now, owner: "us"} // not synced
			_, err := (&shardGroupController{}).remove(t.Context(), sg, &clusterv1.Cluster{}, at)
			require.Equal(t, c.failed, err != nil)
			require.Equal(t, c.want, api.asked)
			require.Equal(t, c.gone, len(sg.Finalizers) == 0)
		})
	}
}

// TestDeletesUndrained: with their cluster the members of a group are deleted, each once and without a
// drain. Instances by request are not its members.
func TestDeletesUndrained(t *testing.T) {
	members := []*apiv1.Instance{{Id: "a-0", State: "ready"}, {Id: "a-1", State: "draining"}, {Id: "a-2", State: "deleting"}, {Id: "a-3", State: "ready", OnDemand: true}}
	for name, c := range map[string]struct {
		answer error
		failed bool
	}{
		"accepted":                  {nil, false},
		"they have just ended":      {nstance.Errorf(nstance.NotFound, "no"), false},
		"the shard does not answer": {nstance.Errorf(nstance.Unavailable, "away"), true},
	} {
		t.Run(name, func(t *testing.T) {
			api := &requestAPI{err: c.answer}
			require.Equal(t, c.failed, deleteUndrained(t.Context(), api, members) != nil)
			require.Len(t, api.deleted, 2)
			for i, r := range api.deleted {
				require.Equal(t, members[i].GetId(), r.GetId())
				require.True(t, r.GetNoDrain())
			}
		})
	}
	r, servers := newCertificateRig(t, "a")
	ids := r.machines(servers[0], 1)
	for _, ends := range []bool{false, true} {
		sg, cluster, api := &infrav1.NstanceShardGroup{Spec: infrav1.NstanceShardGroupSpec{Group: "web"}}, &clusterv1.Cluster{}, &requestAPI{}
		if ends {
			deleting(cluster)
		}
		at := shardCopy{Shard: r.connection(servers[0]).Shard, api: api, now: &apiv1.Group{Owner: "us", Removing: true}, owner: "us"}
		_, err := (&shardGroupController{}).remove(t.Context(), sg, cluster, at)
		require.NoError(t, err)
		require.Equal(t, ends, len(api.deleted) == 1 && api.deleted[0].GetId() == string(ids[0]))
	}
}

// TestReleasesGroup: a group of the shard's own configuration has no owner and no machines any more. One
// that was made from a template is gone, also if the copy of the shard does not have it yet.
func TestReleasesGroup(t *testing.T) {
	r, servers := newCertificateRig(t, "a")
	for name, c := range map[string]struct {
		now      *apiv1.Group
		template string
		err      error
		want     []string
		gone     bool
	}{
		"of the configuration":          {&apiv1.Group{Owner: "us", IsStatic: true}, "", nil, []string{"update"}, true},
		"of the configuration, unowned": {&apiv1.Group{IsStatic: true}, "", nil, nil, true},
		"made from a template":          {&apiv1.Group{Owner: "us", Removing: true}, "vm", nil, nil, true},
		"made, and not seen yet":        {nil, "vm", nil, []string{"delete"}, true},
		"made, and gone":                {nil, "vm", nstance.Errorf(nstance.NotFound, "no"), []string{"delete"}, true},
		"made by another owner":         {nil, "vm", nstance.Errorf(nstance.Conflict, "no"), []string{"delete"}, false},
		"never made":                    {nil, "", nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			sg := &infrav1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{infrav1.Finalizer}}, Spec: infrav1.NstanceShardGroupSpec{Group: "none", Template: c.template}}
			sg.Status.ObservedGeneration = 1
			api := &groupAPI{err: c.err}
			_, err := (&shardGroupController{}).remove(t.Context(), sg, &clusterv1.Cluster{}, shardCopy{Shard: r.connection(servers[0]).Shard, api: api, now: c.now, owner: "us"})
			require.NoError(t, err)
			require.Equal(t, c.want, api.asked)
			if api.update != nil {
				require.True(t, api.update.GetRelease())
				require.Equal(t, ptr.To[int32](0), api.update.Size, "the copy's size may be old")
			}
			require.Equal(t, c.gone, len(sg.Finalizers) == 0)
		})
	}
}

// TestRetryOfCapacity: a limit is over at its time, and not asked for in a storm before.
func TestRetryOfCapacity(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &poolState{limits: map[string]*capacityLimit{}}
	require.Zero(t, s.nextRetry(now))
	s.limits["a"] = &capacityLimit{1, now.Add(time.Minute)}
	require.Equal(t, time.Minute, s.nextRetry(now))
	s.limits["b"] = &capacityLimit{1, now}
	require.Equal(t, time.Second, s.nextRetry(now))
	refused := &infrav1.NstanceShardGroup{Status: infrav1.NstanceShardGroupStatus{Size: ptr.To[int32](3), Holds: []infrav1.Hold{{Kind: holdRefused}}}}
	require.Equal(t, &capacityLimit{0, now.Add(capacityRetry)}, limitOf(refused, nil, now), "every shape is refused")
}
