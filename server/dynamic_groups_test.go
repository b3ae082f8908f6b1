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
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// pools are settings with a subnet pool that dynamic groups may use, and one that
// they may not.
const pools = `"subnet_pools": {"open": ["s-1", "s-2"], "closed": ["s-3"]}, "dynamic_subnet_pools": ["open"],`

// requireFieldError checks an error of the API: its code, the field in its text and
// details, and that it tells what to do.
func requireFieldError(t *testing.T, err error, code nstance.Code, field string) {
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

// storedGroups returns the entries of groups/{shard}.jsonc.
func (w *world) storedGroups() map[string]map[string]any {
	w.Helper()
	obj, err := w.store.Get(w.Context(), layout.GroupsKey(zone))
	require.NoError(w, err)
	var file struct {
		Groups map[string]map[string]any `json:"groups"`
	}
	require.NoError(w, json.Unmarshal(obj.Data, &file))
	return file.Groups
}

// groupListed reports whether ListGroups returns a group.
func (w *world) groupListed(api apiv1.OperatorServiceClient, name string) bool {
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

// newGroupRequest is a complete request for a dynamic group.
func newGroupRequest() *apiv1.CreateGroupRequest {
	return &apiv1.CreateGroupRequest{
		Group: "batch", Template: "vm", Size: proto.Int32(2), InstanceTypes: []string{"small", "large"}, SubnetPool: "open",
		Vars: map[string]string{"colour": "green"}, Args: `{"boot_delay": "1ms"}`, DrainTimeout: durationpb.New(time.Minute),
		Rollout: &apiv1.Rollout{MaxSurge: "50%", MinReady: durationpb.New(time.Second), HaltAfter: proto.Int32(0)},
		Market:  &apiv1.Market{Type: "spot", MaxPrice: "0.05", Fallback: "on-demand", FallbackAfter: durationpb.New(time.Minute), ReturnAfter: durationpb.New(time.Hour), OnDemandBase: "1", FallbackWhen: &apiv1.ReclaimLimit{Reclaims: 3, Window: durationpb.New(time.Hour)}},
		Spread:  &apiv1.Spread{By: "pool", MaxShare: "50%"}, OnReclaim: "cordon",
	}
}

func TestCreateGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{shard: pools})
	api := w.admin()
	made, err := api.CreateGroup(t.Context(), newGroupRequest())
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
	require.True(t, proto.Equal(newGroupRequest().GetMarket(), g.GetMarket()), "%v", g.GetMarket())
	require.Equal(t, "cordon", g.GetOnReclaim())
	require.True(t, proto.Equal(newGroupRequest().GetSpread(), g.GetSpread()), "%v", g.GetSpread())
	require.Eventually(t, func() bool { return w.countMachines("default") == 2 }, eventually, time.Millisecond)
	require.Eventually(t, func() bool {
		list, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		return err == nil && slices.ContainsFunc(list.GetGroups(), func(v *apiv1.Group) bool {
			return v.GetGroup() == g.GetGroup() && v.GetOnDemandMarket() == 1 && v.GetSpotMarket() == 1
		})
	}, eventually, 10*time.Millisecond, "the base and the other member")

	t.Run("the same request again succeeds", func(t *testing.T) {
		again, err := api.CreateGroup(t.Context(), newGroupRequest())
		require.NoError(t, err)
		require.Equal(t, "batch", again.GetGroup().GetGroup())
	})
	t.Run("another definition for its name is refused by field", func(t *testing.T) {
		for field, change := range map[string]func(*apiv1.CreateGroupRequest){
			"size":             func(r *apiv1.CreateGroupRequest) { r.Size = proto.Int32(3) },
			"market":           func(r *apiv1.CreateGroupRequest) { r.Market.MaxPrice = "0.06" },
			"instance_types":   func(r *apiv1.CreateGroupRequest) { r.InstanceTypes = []string{"small"} },
			"vars":             func(r *apiv1.CreateGroupRequest) { r.Vars = nil },
			"args":             func(r *apiv1.CreateGroupRequest) { r.Args = `{"boot_delay": "2ms"}` },
			"drain_timeout":    func(r *apiv1.CreateGroupRequest) { r.DrainTimeout = durationpb.New(0) },
			"rollout":          func(r *apiv1.CreateGroupRequest) { r.Rollout.MaxSurge = "1" },
			"on_reclaim":       func(r *apiv1.CreateGroupRequest) { r.OnReclaim = "" },
			"spread":           func(r *apiv1.CreateGroupRequest) { r.Spread = nil },
			"order":            func(r *apiv1.CreateGroupRequest) { r.Order = "steadiest" },
			"on_rebalance":     func(r *apiv1.CreateGroupRequest) { r.OnRebalance = "replace" },
			"on_maintenance":   func(r *apiv1.CreateGroupRequest) { r.OnMaintenance = "ignore" },
			"on_drain_timeout": func(r *apiv1.CreateGroupRequest) { r.OnDrainTimeout = "wait" },
			"protect":          func(r *apiv1.CreateGroupRequest) { r.Protect = true },
			"subnet_pool":      func(r *apiv1.CreateGroupRequest) { r.SubnetPool = "" },
		} {
			req := newGroupRequest()
			change(req)
			_, err := api.CreateGroup(t.Context(), req)
			requireFieldError(t, err, nstance.Conflict, field)
		}
	})
	t.Run("an invalid request is refused by field", func(t *testing.T) {
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
			{"spread.by", nstance.Invalid, &apiv1.CreateGroupRequest{Group: "x", Template: "vm", Size: proto.Int32(1), Spread: &apiv1.Spread{By: "host", MaxShare: "1"}}},
		} {
			_, err := api.CreateGroup(t.Context(), c.req)
			requireFieldError(t, err, c.code, c.field)
		}
		require.False(t, w.groupListed(api, "x"))
	})
	t.Run("a dry run creates nothing", func(t *testing.T) {
		dry, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "x", Template: "vm", Size: proto.Int32(1), DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 1, dry.GetGroup().GetSize())
		require.False(t, w.groupListed(api, "x"))
		require.NotContains(t, w.storedGroups(), "default/x")
	})
	t.Run("every field may be changed", func(t *testing.T) {
		resp, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{
			Group: "batch", Size: proto.Int32(1), InstanceTypes: &apiv1.Strings{Values: []string{"large"}}, Vars: &apiv1.Vars{}, Template: proto.String("vm"),
			Args: proto.String("{}"), DrainTimeout: durationpb.New(0), Rollout: &apiv1.Rollout{MaxSurge: "3"}, Protect: proto.Bool(true),
			Spread: &apiv1.Spread{MaxShare: "2"}, OnRebalance: "cordon", OnMaintenance: "ignore", OnDrainTimeout: "wait",
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
		require.True(t, proto.Equal(&apiv1.Spread{By: "pool", MaxShare: "2"}, g.GetSpread()), "%v", g.GetSpread())
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", SubnetPool: proto.String("closed")})
		requireFieldError(t, err, nstance.Invalid, "subnet_pool")
	})
	t.Run("the next server has the group", func(t *testing.T) {
		require.NoError(t, w.stopServer())
		second := newWorld(t, setup{shard: pools, store: w.store, provider: w.cloud})
		require.EqualValues(t, 1, second.getGroup(second.admin(), "batch").GetSize())
		require.Equal(t, "2", second.getGroup(second.admin(), "batch").GetSpread().GetMaxShare())
		require.Equal(t, "cordon", second.getGroup(second.admin(), "batch").GetOnReclaim())
		require.Equal(t, "cordon", second.getGroup(second.admin(), "batch").GetOnRebalance())
		require.Equal(t, "ignore", second.getGroup(second.admin(), "batch").GetOnMaintenance())
		require.Equal(t, "wait", second.getGroup(second.admin(), "batch").GetOnDrainTimeout())
	})
}

func TestStaticGroupsAreRestricted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1, shard: pools})
	api := w.admin()
	refused := map[string]*apiv1.UpdateGroupRequest{
		"template": {Template: proto.String("vm")}, "subnet_pool": {SubnetPool: proto.String("open")}, "args": {Args: proto.String(`{"a": 1}`)},
		"load_balancers": {LoadBalancers: &apiv1.Strings{Values: []string{"x"}}}, "drain_timeout": {DrainTimeout: durationpb.New(0)},
		"rollout": {Rollout: &apiv1.Rollout{MaxSurge: "1"}}, "protect": {Protect: proto.Bool(true)}, "market": {Market: &apiv1.Market{Type: "on-demand"}},
		"spread": {Spread: &apiv1.Spread{MaxShare: "1"}}, "on_reclaim": {OnReclaim: "cordon"},
		"order": {Order: "cheapest"}, "warm_pool": {WarmPool: &apiv1.WarmPool{Size: 1}}, "on_rebalance": {OnRebalance: "replace"}, "on_maintenance": {OnMaintenance: "ignore"},
		"on_drain_timeout": {OnDrainTimeout: "wait"},
	}
	for field, req := range refused {
		req.Group = "web"
		_, err := api.UpdateGroup(t.Context(), req)
		requireFieldError(t, err, nstance.Invalid, field)
	}
	fields := (&apiv1.UpdateGroupRequest{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := string(fields.Get(i).Name())
		if !slices.Contains([]string{"group", "tenant", "dry_run", "size", "instance_type", "instance_types", "vars", "bootstrap_data", "remove_first", "owner", "release"}, name) {
			require.Contains(t, refused, name, "say whether it may be changed of a static group")
		}
	}
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", InstanceTypes: &apiv1.Strings{Values: []string{"a", "b"}}})
	require.NoError(t, err)
	require.True(t, w.getGroup(api, "web").GetHasOverlay())
	require.False(t, w.getGroup(api, "db").GetHasOverlay())
}

func TestDeleteGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1, shard: pools})
	api := w.admin()
	remove := func(req *apiv1.DeleteGroupRequest) (*apiv1.Group, error) {
		resp, err := api.DeleteGroup(t.Context(), req)
		return resp.GetGroup(), err
	}
	t.Run("a static group returns to its configured values", func(t *testing.T) {
		_, err := remove(&apiv1.DeleteGroupRequest{Group: "web"})
		requireFieldError(t, err, nstance.Invalid, "group")
		require.ErrorContains(t, err, "remove it from the configuration")
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(3)})
		require.NoError(t, err)
		g, err := remove(&apiv1.DeleteGroupRequest{Group: "web", DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 1, g.GetSize())
		require.EqualValues(t, 3, w.getGroup(api, "web").GetSize())
		g, err = remove(&apiv1.DeleteGroupRequest{Group: "web"})
		require.NoError(t, err)
		require.EqualValues(t, 1, g.GetSize())
		require.False(t, g.GetHasOverlay())
	})
	_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1), Protect: true})
	require.NoError(t, err)
	id := w.awaitMachineOf("batch")
	w.awaitEvent(nstance.EventCreated, id)
	k := w.connectReady(id)
	t.Run("a protected group stays", func(t *testing.T) {
		_, err := remove(&apiv1.DeleteGroupRequest{Group: "batch"})
		requireFieldError(t, err, nstance.Conflict, "protect")
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Protect: proto.Bool(false)})
		require.NoError(t, err)
	})
	t.Run("a dry run removes nothing", func(t *testing.T) {
		g, err := remove(&apiv1.DeleteGroupRequest{Group: "batch", DryRun: true})
		require.NoError(t, err)
		require.True(t, g.GetRemoving())
		require.False(t, w.getGroup(api, "batch").GetRemoving())
	})
	t.Run("its members are drained, and other changes are refused meanwhile", func(t *testing.T) {
		g, err := remove(&apiv1.DeleteGroupRequest{Group: "batch"})
		require.NoError(t, err)
		require.True(t, g.GetRemoving())
		require.NotNil(t, k.nextMessage().GetDrain(), "the agent is asked to drain")
		_, err = remove(&apiv1.DeleteGroupRequest{Group: "batch"})
		require.NoError(t, err, "again is fine")
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(9)})
		requireFieldError(t, err, nstance.Conflict, "group")
		_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1)})
		requireFieldError(t, err, nstance.Conflict, "group")
	})
	t.Run("a restart continues the removal", func(t *testing.T) {
		require.NoError(t, w.stopServer())
		second := newWorld(t, setup{webSize: 1, shard: pools, store: w.store, provider: w.cloud})
		api := second.admin()
		require.True(t, second.getGroup(api, "batch").GetRemoving())
		_, err := api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
		require.NoError(t, err)
		second.awaitEvent(nstance.EventGroupRemoved, "")
		require.Eventually(t, func() bool { return !second.groupListed(api, "batch") }, eventually, time.Millisecond)
		require.Eventually(t, func() bool { return second.storedGroups()["default/batch"] == nil }, eventually, time.Millisecond, "its entry goes with it")
		_, err = api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "batch"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(0)})
		require.NoError(t, err, "its name is free")
	})
}

// awaitMachineOf waits for a group's machine.
func (w *world) awaitMachineOf(group string) (id nstance.InstanceID) {
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

// configWithoutBlue is the default configuration without group blue/db.
func configWithoutBlue(t *testing.T) string {
	return replaceOnce(t, defaultConfig(1), `,
		"blue": {"db": {"template": "vm", "size": 1, "vars": {"shape": "round"}}}`, "")
}

func TestReleasedAtARefresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	api := w.admin()
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Tenant: "blue", Group: "db", Vars: &apiv1.Vars{Values: map[string]string{"mark": "own"}}})
	require.NoError(t, err)
	id := w.awaitMachine("blue")
	before := w.getGroup(api, "db")
	require.True(t, before.GetIsStatic())

	// The template is removed too: the group keeps its definition.
	text := replaceOnce(t, configWithoutBlue(t), `"templates": {"vm": {`, `"templates": {"other": {`)
	w.conf.set(replaceOnce(t, text, `{"web": {"template": "vm"`, `{"web": {"template": "other"`), nil)
	_, err = api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.NoError(t, err)
	released := w.getGroup(api, "db")
	require.False(t, released.GetIsStatic())
	require.Equal(t, before.GetInfraHash(), released.GetInfraHash(), "nothing is rotated")
	require.Equal(t, before.GetRuntimeHash(), released.GetRuntimeHash())
	require.Equal(t, before.GetVars(), released.GetVars())
	require.EqualValues(t, 1, released.GetSize())
	require.Equal(t, id, w.awaitMachine("blue"))
	require.Empty(t, server.Problems(w.server))

	// The group is a dynamic one now.
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Tenant: "blue", Group: "db", Size: proto.Int32(2), DrainTimeout: durationpb.New(0)})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.countMachines("blue") == 2 }, eventually, time.Millisecond)
	require.Eventually(t, func() bool { return w.storedGroups()["blue/db"]["dynamic"] == true }, eventually, time.Millisecond)

	t.Run("the next leader keeps it", func(t *testing.T) {
		require.NoError(t, w.stopServer())
		second := newWorld(t, setup{config: w.conf.text, store: w.store, provider: w.cloud})
		api := second.admin()
		require.EqualValues(t, 2, second.getGroup(api, "db").GetSize())
		require.Eventually(t, func() bool { return second.getGroup(api, "db").GetInfraHash() != "" }, eventually, time.Millisecond, "its type has been looked up")
		require.Equal(t, before.GetInfraHash(), second.getGroup(api, "db").GetInfraHash())

		// A group that is configured again follows the configuration.
		second.conf.set(defaultConfig(1), nil)
		_, err = api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
		require.NoError(t, err)
		g := second.getGroup(api, "db")
		require.True(t, g.GetIsStatic())
		require.False(t, g.GetHasOverlay())
		require.EqualValues(t, 1, g.GetSize())
		require.NotContains(t, g.GetVars(), "mark")
		require.Eventually(t, func() bool { return second.storedGroups()["blue/db"]["dynamic"] == nil }, eventually, time.Millisecond)
	})
}

// TestReleasedGroupIsProtected: a group that is removed from the configuration stays
// protected, under the next leader too.
func TestReleasedGroupIsProtected(t *testing.T) {
	t.Parallel()
	protected := func(text string) string {
		return strings.Replace(text, `"db": {"template": "vm"`, `"db": {"protect": true, "template": "vm"`, 1)
	}
	w := newWorld(t, setup{config: protected(defaultConfig(1))})
	api := w.admin()
	remove := func() error {
		_, err := api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Tenant: "blue", Group: "db"})
		return err
	}
	w.awaitMachine("blue")
	w.conf.set(configWithoutBlue(t), nil)
	require.NoError(t, w.refreshConfig(api))
	require.False(t, w.getGroup(api, "db").GetIsStatic())
	requireFieldError(t, remove(), nstance.Conflict, "protect")
	require.NoError(t, w.stopServer())
	w = newWorld(t, setup{config: configWithoutBlue(t), store: w.store, provider: w.cloud})
	api = w.admin()
	require.True(t, w.getGroup(api, "db").GetProtect())
	requireFieldError(t, remove(), nstance.Conflict, "protect")
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Tenant: "blue", Group: "db", Protect: proto.Bool(false)})
	require.NoError(t, err)
	require.NoError(t, remove())
}

func TestReleasedAtATakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine("blue")
	before := w.getGroup(w.admin(), "db")
	require.Eventually(t, func() bool { return w.storedGroups()["blue/db"]["effective"] != nil }, eventually, time.Millisecond)
	require.NoError(t, w.stopServer())

	// The next leader knows neither the group nor the accepted configuration.
	obj, err := w.store.Get(t.Context(), layout.AcceptedKey(zone))
	require.NoError(t, err)
	require.NoError(t, w.store.DeleteIfMatch(t.Context(), layout.AcceptedKey(zone), obj.Version))
	second := newWorld(t, setup{store: w.store, provider: w.cloud, config: configWithoutBlue(t)})
	api := second.admin()
	g := second.getGroup(api, "db")
	require.False(t, g.GetIsStatic())
	require.EqualValues(t, 1, g.GetSize())
	require.Equal(t, before.GetInfraHash(), g.GetInfraHash())
	_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
	require.NoError(t, err)
	require.Eventually(t, func() bool { m := w.cloud.Machines(); return len(m) == 2 && m[0].ID != id && m[1].ID != id }, eventually, time.Millisecond, "a loss is replaced")
}

// TestGroupsChangeOnlyWhenDurable: a configuration changes no group until all are
// durable.
func TestGroupsChangeOnlyWhenDurable(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	faulty := storagetest.NewFaulty(storage.NewMemory())
	w := newWorld(t, setup{webSize: 1, store: faulty})
	api := w.admin()
	id := w.awaitMachine("blue")
	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "groups/", Times: -1})
	w.conf.set(configWithoutBlue(t), nil)
	_, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.NoError(t, err)
	require.True(t, w.getGroup(api, "db").GetIsStatic(), "the group in effect stays")
	w.awaitProblem("does not follow the configuration yet")
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(3)})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
	require.EqualValues(t, 1, w.getGroup(api, "web").GetSize())
	faulty.ClearFaults()
	require.Eventually(t, func() bool { return !w.getGroup(api, "db").GetIsStatic() }, eventually, 5*time.Millisecond)
	require.Equal(t, id, w.awaitMachine("blue"))
}

// TestConcurrentGroupWriters: the second writer applies its change to the stored
// state, and a lost answer is no error.
func TestConcurrentGroupWriters(t *testing.T) {
	t.Parallel()
	memory := storage.NewMemory()
	faulty := storagetest.NewFaulty(memory)
	w := newWorld(t, setup{webSize: 1, store: faulty})
	api := w.admin()
	key := layout.GroupsKey(zone)
	require.Eventually(t, func() bool { return w.storedGroups()["default/web"]["effective"] != nil }, eventually, time.Millisecond)
	type groups struct {
		records.Header
		Groups map[string]map[string]any `json:"groups"`
	}
	other := records.NewDoc[groups](memory, key, nil)
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
	require.EqualValues(t, 3, w.getGroup(api, "web").GetSize())
	require.EqualValues(t, 4, w.getGroup(api, "db").GetSize(), "nothing of the other's is lost")

	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: key, Mode: storagetest.LoseAnswer, Err: nstance.Errorf(nstance.Ambiguous, "lost")})
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(2)})
	require.NoError(t, err)
	require.EqualValues(t, 2, w.getGroup(api, "web").GetSize())

	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: key, Times: -1})
	_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1)})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
	require.False(t, w.groupListed(api, "batch"))
	faulty.ClearFaults()

	// Concurrent changes.
	var g errgroup.Group
	for i := range 8 {
		g.Go(func() error {
			_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: fmt.Sprint("g", i), Template: "vm", Size: proto.Int32(0)})
			return err
		})
	}
	require.NoError(t, g.Wait())
	for i := range 8 {
		require.True(t, w.groupListed(api, fmt.Sprint("g", i)))
	}
}
