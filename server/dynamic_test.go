package server_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// pools are settings of a shard with a subnet pool for dynamic groups, and one
// that is not.
const pools = `"subnet_pools": {"open": ["s-1", "s-2"], "closed": ["s-3"]}, "dynamic_subnet_pools": ["open"],`

// refuses checks an error of the API: its code, the field that it names in words
// and in its details, and that it says what to do.
func refuses(t *testing.T, err error, code nstance.Code, field string) {
	t.Helper()
	require.ErrorIs(t, wire.ErrorOf(err), code)
	st := status.Convert(err)
	require.True(t, strings.HasPrefix(st.Message(), field+": "), st.Message())
	require.True(t, strings.HasSuffix(st.Message(), ")"), st.Message())
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			require.Equal(t, field, info.GetMetadata()["field"])
			return
		}
	}
	require.Fail(t, "no details", st.Message())
}

// groupsFile returns the entries of groups/{shard}.jsonc.
func (w *world) groupsFile() map[string]map[string]any {
	w.Helper()
	obj, err := w.store.Get(w.Context(), storage.GroupsKey(zone))
	require.NoError(w, err)
	var file struct {
		Groups map[string]map[string]any `json:"groups"`
	}
	require.NoError(w, json.Unmarshal(obj.Data, &file))
	return file.Groups
}

// listed reports whether a group is in the list.
func (w *world) listed(api apiv1.OperatorServiceClient, name string) bool {
	w.Helper()
	resp, err := api.ListGroups(w.Context(), &apiv1.ListGroupsRequest{})
	require.NoError(w, err)
	for _, g := range resp.GetGroups() {
		if g.GetGroup() == name {
			return true
		}
	}
	return false
}

// batch is a request for a dynamic group in which nothing is absent.
func batch() *apiv1.CreateGroupRequest {
	return &apiv1.CreateGroupRequest{
		Group: "batch", Template: "vm", Size: proto.Int32(2), InstanceTypes: []string{"small", "large"}, SubnetPool: "open",
		Vars: map[string]string{"colour": "green"}, Args: `{"boot_delay": "1ms"}`, DrainTimeout: durationpb.New(time.Minute),
		Rollout: &apiv1.Rollout{MaxSurge: "50%", MinReady: durationpb.New(time.Second), HaltAfter: proto.Int32(0)},
		Market:  &apiv1.Market{Type: "spot", MaxPrice: "0.05", Fallback: "on-demand", FallbackAfter: durationpb.New(time.Minute), ReturnAfter: durationpb.New(time.Hour), OnDemandBase: "1"},
	}
}

func TestCreateGroup(t *testing.T) {
	w := newWorld(t, setup{shard: pools})
	api := w.admin()
	made, err := api.CreateGroup(t.Context(), batch())
	require.NoError(t, err)
	g := made.GetGroup()
	require.False(t, g.GetIsStatic())
	require.Equal(t, "default", g.GetTenant())
	require.EqualValues(t, 2, g.GetSize())
	require.Equal(t, []string{"small", "large"}, g.GetInstanceTypes())
	require.Equal(t, "open", g.GetSubnetPool())
	require.Equal(t, "green", g.GetVars()["colour"])
	require.Equal(t, `{"boot_delay":"1ms"}`, g.GetArgs())
	require.Equal(t, time.Minute, g.GetDrainTimeout().AsDuration())
	require.Equal(t, "50%", g.GetRollout().GetMaxSurge())
	require.Zero(t, g.GetRollout().GetHaltAfter())
	require.True(t, proto.Equal(batch().GetMarket(), g.GetMarket()), "%v", g.GetMarket())
	require.Eventually(t, func() bool { return w.machines("default") == 2 }, eventually, time.Millisecond)
	require.Eventually(t, func() bool {
		list, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		return err == nil && slices.ContainsFunc(list.GetGroups(), func(v *apiv1.Group) bool {
			return v.GetGroup() == g.GetGroup() && v.GetOnDemandMarket() == 1 && v.GetSpotMarket() == 1
		})
	}, eventually, 10*time.Millisecond, "the base and the other member")

	t.Run("the same request again succeeds", func(t *testing.T) {
		again, err := api.CreateGroup(t.Context(), batch())
		require.NoError(t, err)
		require.Equal(t, "batch", again.GetGroup().GetGroup())
	})
	t.Run("another one for its name is refused by field", func(t *testing.T) {
		for field, change := range map[string]func(*apiv1.CreateGroupRequest){
			"size":           func(r *apiv1.CreateGroupRequest) { r.Size = proto.Int32(3) },
			"market":         func(r *apiv1.CreateGroupRequest) { r.Market.MaxPrice = "0.06" },
			"instance_types": func(r *apiv1.CreateGroupRequest) { r.InstanceTypes = []string{"small"} },
			"vars":           func(r *apiv1.CreateGroupRequest) { r.Vars = nil },
			"args":           func(r *apiv1.CreateGroupRequest) { r.Args = `{"boot_delay": "2ms"}` },
			"drain_timeout":  func(r *apiv1.CreateGroupRequest) { r.DrainTimeout = durationpb.New(0) },
			"rollout":        func(r *apiv1.CreateGroupRequest) { r.Rollout.MaxSurge = "1" },
			"protect":        func(r *apiv1.CreateGroupRequest) { r.Protect = true },
			"subnet_pool":    func(r *apiv1.CreateGroupRequest) { r.SubnetPool = "" },
		} {
			req := batch()
			change(req)
			_, err := api.CreateGroup(t.Context(), req)
			refuses(t, err, nstance.Conflict, field)
		}
	})
	t.Run("what makes no sense is refused by field", func(t *testing.T) {
		for _, c := range []struct {
			field string
			code  nstance.Code
			req   *apiv1.CreateGroupRequest
		}{
			{"group", nstance.Conflict, &apiv1.CreateGroupRequest{Group: "web", Template: "vm"}},
			{"group", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "We B", Template: "vm"}},
			{"template", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "x"}},
			{"template", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "x", Template: "vn"}},
			{"size", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "x", Template: "vm"}},
			{"size", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "x", Template: "vm", Size: proto.Int32(-1)}},
			{"subnet_pool", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "x", Template: "vm", Size: proto.Int32(1), SubnetPool: "closed"}},
			{"subnet_pool", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "x", Template: "vm", Size: proto.Int32(1), SubnetPool: "none"}},
			{"args", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "x", Template: "vm", Size: proto.Int32(1), Args: "[]"}},
			{"rollout.max_surge", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "x", Template: "vm", Size: proto.Int32(1), Rollout: &apiv1.Rollout{MaxSurge: "all"}}},
		} {
			_, err := api.CreateGroup(t.Context(), c.req)
			refuses(t, err, c.code, c.field)
		}
		require.False(t, w.listed(api, "x"))
	})
	t.Run("a dry run makes nothing", func(t *testing.T) {
		dry, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "x", Template: "vm", Size: proto.Int32(1), DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 1, dry.GetGroup().GetSize())
		require.False(t, w.listed(api, "x"))
		require.NotContains(t, w.groupsFile(), "default/x")
	})
	t.Run("every field may be changed", func(t *testing.T) {
		resp, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{
			Group: "batch", Size: proto.Int32(1), InstanceTypes: &apiv1.Strings{Values: []string{"large"}}, Vars: &apiv1.Vars{}, Template: proto.String("vm"),
			Args: proto.String("{}"), DrainTimeout: durationpb.New(0), Rollout: &apiv1.Rollout{MaxSurge: "3"}, Protect: proto.Bool(true),
		})
		require.NoError(t, err)
		g := resp.GetGroup()
		require.EqualValues(t, 1, g.GetSize())
		require.Equal(t, []string{"large"}, g.GetInstanceTypes())
		require.Equal(t, "red", g.GetVars()["colour"])
		require.Empty(t, g.GetArgs())
		require.Zero(t, g.GetDrainTimeout().AsDuration())
		require.Equal(t, "3", g.GetRollout().GetMaxSurge())
		require.Equal(t, time.Second, g.GetRollout().GetMinReady().AsDuration(), "what is absent stays")
		require.True(t, g.GetProtect())
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", SubnetPool: proto.String("closed")})
		refuses(t, err, nstance.Invalid, "subnet_pool")
	})
	t.Run("it outlives the server", func(t *testing.T) {
		require.NoError(t, w.stop())
		second := newWorld(t, setup{shard: pools, store: w.store, over: w.cloud})
		require.EqualValues(t, 1, second.group(second.admin(), "batch").GetSize())
	})
}

func TestStaticGroupsAreRestricted(t *testing.T) {
	w := newWorld(t, setup{size: 1, shard: pools})
	api := w.admin()
	refused := map[string]*apiv1.UpdateGroupRequest{
		"template": {Template: proto.String("vm")}, "subnet_pool": {SubnetPool: proto.String("open")}, "args": {Args: proto.String(`{"a": 1}`)},
		"load_balancers": {LoadBalancers: &apiv1.Strings{Values: []string{"x"}}}, "drain_timeout": {DrainTimeout: durationpb.New(0)},
		"rollout": {Rollout: &apiv1.Rollout{MaxSurge: "1"}}, "protect": {Protect: proto.Bool(true)}, "market": {Market: &apiv1.Market{Type: "on-demand"}},
	}
	for field, req := range refused {
		req.Group = "web"
		_, err := api.UpdateGroup(t.Context(), req)
		refuses(t, err, nstance.Invalid, field)
	}
	fields := (&apiv1.UpdateGroupRequest{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := string(fields.Get(i).Name())
		if !slices.Contains([]string{"group", "tenant", "dry_run", "size", "instance_type", "instance_types", "vars"}, name) {
			require.Contains(t, refused, name, "say whether it may be changed of a static group")
		}
	}
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", InstanceTypes: &apiv1.Strings{Values: []string{"a", "b"}}})
	require.NoError(t, err)
	require.True(t, w.group(api, "web").GetHasOverlay())
	require.False(t, w.group(api, "db").GetHasOverlay())
}

func TestDeleteGroup(t *testing.T) {
	w := newWorld(t, setup{size: 1, shard: pools})
	api := w.admin()
	remove := func(req *apiv1.DeleteGroupRequest) (*apiv1.Group, error) {
		resp, err := api.DeleteGroup(t.Context(), req)
		return resp.GetGroup(), err
	}
	t.Run("a static group's changes go, and it returns to its values", func(t *testing.T) {
		_, err := remove(&apiv1.DeleteGroupRequest{Group: "web"})
		refuses(t, err, nstance.Invalid, "group")
		require.ErrorContains(t, err, "remove it from the configuration")
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(3)})
		require.NoError(t, err)
		g, err := remove(&apiv1.DeleteGroupRequest{Group: "web", DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 1, g.GetSize())
		require.EqualValues(t, 3, w.group(api, "web").GetSize())
		g, err = remove(&apiv1.DeleteGroupRequest{Group: "web"})
		require.NoError(t, err)
		require.EqualValues(t, 1, g.GetSize())
		require.False(t, g.GetHasOverlay())
	})
	_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1), Protect: true})
	require.NoError(t, err)
	id := w.machineOf("batch")
	w.await(nstance.EventCreated, id)
	k := w.ready(id)
	t.Run("a protected one stays", func(t *testing.T) {
		_, err := remove(&apiv1.DeleteGroupRequest{Group: "batch"})
		refuses(t, err, nstance.Conflict, "protect")
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Protect: proto.Bool(false)})
		require.NoError(t, err)
	})
	t.Run("a dry run removes nothing", func(t *testing.T) {
		g, err := remove(&apiv1.DeleteGroupRequest{Group: "batch", DryRun: true})
		require.NoError(t, err)
		require.True(t, g.GetRemoving())
		require.False(t, w.group(api, "batch").GetRemoving())
	})
	t.Run("its members are drained, and it takes no orders meanwhile", func(t *testing.T) {
		g, err := remove(&apiv1.DeleteGroupRequest{Group: "batch"})
		require.NoError(t, err)
		require.True(t, g.GetRemoving())
		require.NotNil(t, k.hear().GetDrain(), "the agent is asked to drain")
		_, err = remove(&apiv1.DeleteGroupRequest{Group: "batch"})
		require.NoError(t, err, "again is fine")
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(9)})
		refuses(t, err, nstance.Conflict, "group")
		_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1)})
		refuses(t, err, nstance.Conflict, "group")
	})
	t.Run("a restart in the middle changes nothing", func(t *testing.T) {
		require.NoError(t, w.stop())
		second := newWorld(t, setup{size: 1, shard: pools, store: w.store, over: w.cloud})
		api := second.admin()
		require.True(t, second.group(api, "batch").GetRemoving())
		_, err := api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
		require.NoError(t, err)
		second.await(nstance.EventGroupRemoved, "")
		require.Eventually(t, func() bool { return !second.listed(api, "batch") }, eventually, time.Millisecond)
		require.Eventually(t, func() bool { return second.groupsFile()["default/batch"] == nil }, eventually, time.Millisecond, "its entry goes with it")
		_, err = api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "batch"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(0)})
		require.NoError(t, err, "its name is free")
	})
}

// machineOf waits for a group's machine.
func (w *world) machineOf(group string) (id nstance.InstanceID) {
	w.Helper()
	require.Eventually(w, func() bool {
		for _, m := range w.cloud.Machines() {
			if string(m.Group) == group {
				id = m.ID
			}
		}
		return id != ""
	}, eventually, time.Millisecond)
	return id
}

// without is the ordinary configuration without group blue/db.
func without(t *testing.T) string {
	return replace(t, ordinary(1), `,
		"blue": {"db": {"template": "vm", "size": 1, "vars": {"shape": "round"}}}`, "")
}

func TestReleasedAtARefresh(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	api := w.admin()
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Tenant: "blue", Group: "db", Vars: &apiv1.Vars{Values: map[string]string{"mark": "own"}}})
	require.NoError(t, err)
	id := w.machine("blue")
	before := w.group(api, "db")
	require.True(t, before.GetIsStatic())

	// The template goes too: what is left is the definition itself.
	text := replace(t, without(t), `"templates": {"vm": {`, `"templates": {"other": {`)
	w.conf.set(replace(t, text, `{"web": {"template": "vm"`, `{"web": {"template": "other"`), nil)
	_, err = api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.NoError(t, err)
	released := w.group(api, "db")
	require.False(t, released.GetIsStatic())
	require.Equal(t, before.GetInfraHash(), released.GetInfraHash(), "nothing is rotated")
	require.Equal(t, before.GetRuntimeHash(), released.GetRuntimeHash())
	require.Equal(t, before.GetVars(), released.GetVars())
	require.EqualValues(t, 1, released.GetSize())
	require.Equal(t, id, w.machine("blue"))
	require.Empty(t, server.Problems(w.server))

	// It is a dynamic group like any other.
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Tenant: "blue", Group: "db", Size: proto.Int32(2), DrainTimeout: durationpb.New(0)})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.machines("blue") == 2 }, eventually, time.Millisecond)
	require.Eventually(t, func() bool { return w.groupsFile()["blue/db"]["dynamic"] == true }, eventually, time.Millisecond)

	t.Run("and under the next leader", func(t *testing.T) {
		require.NoError(t, w.stop())
		second := newWorld(t, setup{text: w.conf.text, store: w.store, over: w.cloud})
		api := second.admin()
		require.EqualValues(t, 2, second.group(api, "db").GetSize())
		require.Eventually(t, func() bool { return second.group(api, "db").GetInfraHash() != "" }, eventually, time.Millisecond, "its type is known")
		require.Equal(t, before.GetInfraHash(), second.group(api, "db").GetInfraHash())

		// The configuration brings it back: it is what that says.
		second.conf.set(ordinary(1), nil)
		_, err = api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
		require.NoError(t, err)
		g := second.group(api, "db")
		require.True(t, g.GetIsStatic())
		require.False(t, g.GetHasOverlay())
		require.EqualValues(t, 1, g.GetSize())
		require.NotContains(t, g.GetVars(), "mark")
		require.Eventually(t, func() bool { return second.groupsFile()["blue/db"]["dynamic"] == nil }, eventually, time.Millisecond)
	})
}

// TestReleasedGroupIsProtected: taking a group out of the configuration lifts no
// protection, under the next leader too.
func TestReleasedGroupIsProtected(t *testing.T) {
	protected := func(text string) string {
		return strings.Replace(text, `"db": {"template": "vm"`, `"db": {"protect": true, "template": "vm"`, 1)
	}
	w := newWorld(t, setup{text: protected(ordinary(1))})
	api := w.admin()
	remove := func() error {
		_, err := api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Tenant: "blue", Group: "db"})
		return err
	}
	w.machine("blue")
	w.conf.set(without(t), nil)
	require.NoError(t, w.refresh(api))
	require.False(t, w.group(api, "db").GetIsStatic())
	refuses(t, remove(), nstance.Conflict, "protect")
	require.NoError(t, w.stop())
	w = newWorld(t, setup{text: without(t), store: w.store, over: w.cloud})
	api = w.admin()
	require.True(t, w.group(api, "db").GetProtect())
	refuses(t, remove(), nstance.Conflict, "protect")
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Tenant: "blue", Group: "db", Protect: proto.Bool(false)})
	require.NoError(t, err)
	require.NoError(t, remove())
}

func TestReleasedAtATakeover(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine("blue")
	before := w.group(w.admin(), "db")
	require.Eventually(t, func() bool { return w.groupsFile()["blue/db"]["effective"] != nil }, eventually, time.Millisecond)
	require.NoError(t, w.stop())

	// The next leader has never heard of the group, nor of what was accepted.
	obj, err := w.store.Get(t.Context(), storage.AcceptedKey(zone))
	require.NoError(t, err)
	require.NoError(t, w.store.DeleteIfMatch(t.Context(), storage.AcceptedKey(zone), obj.Version))
	second := newWorld(t, setup{store: w.store, over: w.cloud, text: without(t)})
	api := second.admin()
	g := second.group(api, "db")
	require.False(t, g.GetIsStatic())
	require.EqualValues(t, 1, g.GetSize())
	require.Equal(t, before.GetInfraHash(), g.GetInfraHash())
	_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
	require.NoError(t, err)
	require.Eventually(t, func() bool { m := w.cloud.Machines(); return len(m) == 2 && m[0].ID != id && m[1].ID != id }, eventually, time.Millisecond, "a loss is replaced")
}

// TestGroupsFollowWhatIsDurable: a configuration whose groups cannot be made durable
// changes none of them until they can.
func TestGroupsFollowWhatIsDurable(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	faulty := storagetest.NewFaulty(storage.NewMemory())
	w := newWorld(t, setup{size: 1, store: faulty})
	api := w.admin()
	id := w.machine("blue")
	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "groups/", Times: -1})
	w.conf.set(without(t), nil)
	_, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.NoError(t, err)
	require.True(t, w.group(api, "db").GetIsStatic(), "the group in effect stays")
	w.problem("does not follow the configuration yet")
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(3)})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
	require.EqualValues(t, 1, w.group(api, "web").GetSize())
	faulty.ClearFaults()
	require.Eventually(t, func() bool { return !w.group(api, "db").GetIsStatic() }, eventually, 5*time.Millisecond)
	require.Equal(t, id, w.machine("blue"))
}

// TestTwoWriters: the second writer lays its change over what is stored, and a lost
// answer is no failure.
func TestTwoWriters(t *testing.T) {
	memory := storage.NewMemory()
	faulty := storagetest.NewFaulty(memory)
	w := newWorld(t, setup{size: 1, store: faulty})
	api := w.admin()
	key := storage.GroupsKey(zone)
	require.Eventually(t, func() bool { return w.groupsFile()["default/web"]["effective"] != nil }, eventually, time.Millisecond)
	type groups struct {
		storage.Header
		Groups map[string]map[string]any `json:"groups"`
	}
	other := storage.NewDoc[groups](memory, key, nil)
	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: key, Pass: true, Do: func() {
		_, err := other.Update(t.Context(), func(f *groups) error {
			f.Groups = maps.Clone(f.Groups)
			f.Groups["blue/db"] = map[string]any{"size": 4, "effective": f.Groups["blue/db"]["effective"]}
			return nil
		})
		require.NoError(t, err)
	}})
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(3)})
	require.NoError(t, err)
	require.EqualValues(t, 3, w.group(api, "web").GetSize())
	require.EqualValues(t, 4, w.group(api, "db").GetSize(), "nothing of the other's is lost")

	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: key, Mode: storagetest.LoseAnswer, Err: nstance.Errorf(nstance.Ambiguous, "lost")})
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(2)})
	require.NoError(t, err)
	require.EqualValues(t, 2, w.group(api, "web").GetSize())

	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: key, Times: -1})
	_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1)})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
	require.False(t, w.listed(api, "batch"))
	faulty.ClearFaults()

	// Many at once.
	var g errgroup.Group
	for i := range 8 {
		g.Go(func() error {
			_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: fmt.Sprint("g", i), Template: "vm", Size: proto.Int32(0)})
			return err
		})
	}
	require.NoError(t, g.Wait())
	for i := range 8 {
		require.True(t, w.listed(api, fmt.Sprint("g", i)))
	}
}

// tenanted is the ordinary configuration with what tenants may name.
func tenanted(t *testing.T) string {
	return strings.Replace(fmt.Sprintf(configuration, pools, 1), `"templates": {`, `"tenants": {
		"blue": {"templates": ["vm"], "subnet_pools": ["open"], "instance_types": ["small"], "max_instances": 3, "allow_args": ["disk.size"]}
	},
	"templates": {"vm2": {"kind": "web", "arch": "amd64"}, `, 1)
}

// TestLimitsCountWhatMakesNoSense: a group that has lost its subnet pool keeps its
// members, so they count.
func TestLimitsCountWhatMakesNoSense(t *testing.T) {
	w := newWorld(t, setup{text: tenanted(t)})
	blue := w.client(nstance.RoleOperator, "blue").api()
	group := &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(2), SubnetPool: "open"}
	_, err := blue.CreateGroup(t.Context(), group)
	require.NoError(t, err)
	w.adopt(strings.NewReplacer(pools, "", `"subnet_pools": ["open"], `, "").Replace(tenanted(t)))
	w.held(blue, "batch", plan.HoldPending)
	_, err = blue.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "more", Template: "vm", Size: proto.Int32(1)})
	refuses(t, err, nstance.Quota, "size")
}

func TestTenantLimits(t *testing.T) {
	w := newWorld(t, setup{text: tenanted(t)})
	blue, red := w.client(nstance.RoleOperator, "blue").api(), w.client(nstance.RoleOperator, "red").api()
	free := w.client(nstance.RoleOperator, "default").api()
	group := func(change func(*apiv1.CreateGroupRequest)) *apiv1.CreateGroupRequest {
		req := &apiv1.CreateGroupRequest{
			Group: "batch", Template: "vm", Size: proto.Int32(1), InstanceTypes: []string{"small"}, SubnetPool: "open", Args: `{"disk": {"size": 1}}`,
		}
		if change != nil {
			change(req)
		}
		return req
	}
	t.Run("what is not listed is refused by field", func(t *testing.T) {
		for field, change := range map[string]func(*apiv1.CreateGroupRequest){
			"template":       func(r *apiv1.CreateGroupRequest) { r.Template = "vm2" },
			"instance_types": func(r *apiv1.CreateGroupRequest) { r.InstanceTypes = []string{"small", "large"} },
			"subnet_pool":    func(r *apiv1.CreateGroupRequest) { r.SubnetPool = "closed" },
			"args.role":      func(r *apiv1.CreateGroupRequest) { r.Args = `{"role": "admin"}` },
		} {
			_, err := blue.CreateGroup(t.Context(), group(change))
			refuses(t, err, nstance.Denied, field)
		}
		_, err := blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "db", InstanceType: proto.String("large")})
		refuses(t, err, nstance.Denied, "instance_type")
		_, err = blue.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newID(t), Group: "db", InstanceType: "large"})
		refuses(t, err, nstance.Denied, "instance_type")
		_, err = red.CreateGroup(t.Context(), group(nil))
		refuses(t, err, nstance.Denied, "template")
	})
	t.Run("what is listed is not, and who is not limited may all", func(t *testing.T) {
		_, err := blue.CreateGroup(t.Context(), group(nil))
		require.NoError(t, err)
		_, err = free.CreateGroup(t.Context(), group(func(r *apiv1.CreateGroupRequest) { r.InstanceTypes = []string{"any"} }))
		require.NoError(t, err)
		_, err = w.admin().CreateGroup(t.Context(), group(func(r *apiv1.CreateGroupRequest) { r.Tenant, r.InstanceTypes = "red", []string{"any"} }))
		require.NoError(t, err)
	})
	t.Run("the number of instances counts sizes and instances by request", func(t *testing.T) {
		_, err := blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(3)})
		refuses(t, err, nstance.Quota, "size")
		_, err = blue.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newID(t), Group: "db"})
		require.NoError(t, err)
		_, err = blue.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newID(t), Group: "db"})
		refuses(t, err, nstance.Quota, "id")
		_, err = blue.CreateGroup(t.Context(), group(func(r *apiv1.CreateGroupRequest) { r.Group = "more" }))
		refuses(t, err, nstance.Quota, "size")
		_, err = blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(2)})
		refuses(t, err, nstance.Quota, "size")
		_, err = blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(0)})
		require.NoError(t, err, "fewer are never too many")
	})
}
