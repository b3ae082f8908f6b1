package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/storage"
)

// defaultConfig is the default configuration with the size of default/web.
func defaultConfig(size int) string { return fmt.Sprintf(configuration, "", size) }

func replaceOnce(t *testing.T, s, old, with string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(s, old), old)
	return strings.Replace(s, old, with, 1)
}

// getGroup returns a group from the operators' API.
func (w *world) getGroup(api apiv1.OperatorServiceClient, name string) *apiv1.Group {
	w.Helper()
	resp, err := api.ListGroups(w.Context(), &apiv1.ListGroupsRequest{})
	require.NoError(w, err)
	for _, g := range resp.GetGroups() {
		if g.GetGroup() == name {
			return g
		}
	}
	require.FailNow(w, "no group", name)
	return nil
}

func (w *world) countMachines(tenant nstance.TenantID) (n int) {
	for _, m := range w.cloud.Machines() {
		if m.Owner.Tenant == tenant {
			n++
		}
	}
	return n
}

func TestUpdateGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 2})
	api := w.admin()
	update := func(req *apiv1.UpdateGroupRequest) *apiv1.Group {
		t.Helper()
		if req.Group == "" {
			req.Group = "web"
		}
		resp, err := api.UpdateGroup(t.Context(), req)
		require.NoError(t, err)
		return resp.GetGroup()
	}

	t.Run("unset fields stay", func(t *testing.T) {
		g := update(&apiv1.UpdateGroupRequest{Vars: &apiv1.Vars{Values: map[string]string{"colour": "green"}}})
		require.EqualValues(t, 2, g.GetSize())
		require.Equal(t, "green", g.GetVars()["colour"])
		g = update(&apiv1.UpdateGroupRequest{InstanceType: proto.String("large")})
		require.EqualValues(t, 2, g.GetSize())
		require.Equal(t, "green", g.GetVars()["colour"])
		require.Equal(t, []string{"large"}, g.GetInstanceTypes())
		update(&apiv1.UpdateGroupRequest{})
		require.EqualValues(t, 2, w.getGroup(api, "web").GetSize())
	})
	t.Run("variables can be removed", func(t *testing.T) {
		require.Equal(t, "red", update(&apiv1.UpdateGroupRequest{Vars: &apiv1.Vars{}}).GetVars()["colour"])
		require.Equal(t, "red", w.getGroup(api, "web").GetVars()["colour"])
	})
	t.Run("a dry run changes nothing", func(t *testing.T) {
		members := func(g *apiv1.Group) int32 { return g.GetReady() + g.GetBooting() + g.GetLeaving() }
		require.Eventually(t, func() bool { return members(w.getGroup(api, "web")) > 0 }, eventually, time.Millisecond)
		dry := update(&apiv1.UpdateGroupRequest{Size: proto.Int32(7), DryRun: true})
		require.EqualValues(t, 7, dry.GetSize())
		require.NotZero(t, members(dry), "with the members that there are")
		require.EqualValues(t, 2, w.getGroup(api, "web").GetSize())
		_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(-1), DryRun: true})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid, "but it is checked")
	})
	t.Run("size zero is valid", func(t *testing.T) {
		update(&apiv1.UpdateGroupRequest{Size: proto.Int32(0)})
		require.Eventually(t, func() bool { return w.countMachines("default") == 0 }, eventually, time.Millisecond)
	})
	t.Run("invalid requests are refused", func(t *testing.T) {
		for field, req := range map[string]*apiv1.UpdateGroupRequest{
			"size": {Group: "web", Size: proto.Int32(-1)}, "instance_type": {Group: "web", InstanceType: proto.String("")},
			"group": {Group: "We B"}, "vars": {Group: "web", Vars: &apiv1.Vars{Values: map[string]string{"": "x"}}},
		} {
			_, err := api.UpdateGroup(t.Context(), req)
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid, field)
			require.ErrorContains(t, err, field)
		}
		_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "missing"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
	})
	t.Run("concurrent changes are all kept", func(t *testing.T) {
		for round := range int32(5) {
			var g errgroup.Group
			for _, req := range []*apiv1.UpdateGroupRequest{
				{Group: "web", Size: proto.Int32(round)}, {Group: "db", Tenant: "blue", Size: proto.Int32(round + 1)},
				{Group: "web", Vars: &apiv1.Vars{Values: map[string]string{"colour": fmt.Sprint(round)}}},
				{Group: "db", Tenant: "blue", InstanceType: proto.String(fmt.Sprint("t", round))},
			} {
				g.Go(func() error { _, err := api.UpdateGroup(t.Context(), req); return err })
			}
			require.NoError(t, g.Wait())
			web, db := w.getGroup(api, "web"), w.getGroup(api, "db")
			require.EqualValues(t, round, web.GetSize())
			require.Equal(t, fmt.Sprint(round), web.GetVars()["colour"])
			require.EqualValues(t, round+1, db.GetSize())
			require.Equal(t, fmt.Sprint("t", round), db.GetInstanceTypes()[0])
		}
	})
	t.Run("changes survive restarts and configuration changes", func(t *testing.T) {
		require.NoError(t, w.stopServer())
		second := newWorld(t, setup{webSize: 50, store: w.store, provider: w.cloud})
		require.EqualValues(t, 4, second.getGroup(second.admin(), "web").GetSize())
	})
}

func TestUnreadableOverlays(t *testing.T) {
	t.Parallel()
	key := layout.GroupsKey(zone)
	t.Run("nothing is planned until overlays can be read", func(t *testing.T) {
		store := storage.NewMemory()
		damaged, err := store.PutIfAbsent(t.Context(), key, []byte(`{"groups": {`))
		require.NoError(t, err)
		w := newWorld(t, setup{webSize: 2, store: store})
		api := w.admin()
		shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		require.Contains(t, strings.Join(shard.GetProblems(), "\n"), key)
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(3)})
		require.ErrorContains(t, err, key)
		require.Empty(t, w.cloud.Machines())

		_, err = store.PutIfMatch(t.Context(), key, []byte(`{"format": "1.0", "groups": {"default/web": {"size": 1}}}`), damaged)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(w.cloud.Machines()) == 2 }, eventually, time.Millisecond)
		require.Equal(t, 1, w.countMachines("default"))
		require.Zero(t, w.attentionOfKind("groups_file"))
	})
	t.Run("an invalid overlay affects its group only", func(t *testing.T) {
		store := storage.NewMemory()
		_, err := store.PutIfAbsent(t.Context(), key, []byte(`{"format": "1.0", "groups": {"default/web": {"size": -1}}}`))
		require.NoError(t, err)
		w := newWorld(t, setup{webSize: 2, store: store})
		w.awaitMachine("blue")
		require.Zero(t, w.countMachines("default"))
		require.Equal(t, 1, w.attentionOfKind("groups_file").Count)
	})
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	api := w.admin()
	operator := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	before, err := api.GetConfigStatus(t.Context(), &apiv1.GetConfigStatusRequest{})
	require.NoError(t, err)

	for name, change := range map[string]struct{ text, says string }{
		"broken":            {`{"cluster": `, "shard.jsonc:1:"},
		"another cluster":   {replaceOnce(t, defaultConfig(1), `"cluster": {"id": "c1"}`, `"cluster": {"id": "c2"}`), "cluster.id"},
		"another provider":  {replaceOnce(t, defaultConfig(1), `"kind": "sim"`, `"kind": "local"`), "shard.provider.kind"},
		"another zone":      {replaceOnce(t, defaultConfig(1), `"kind": "sim"`, `"kind": "sim", "zone": "z"`), "shard.provider.zone"},
		"another port":      {replaceOnce(t, defaultConfig(1), `"http": "127.0.0.1:0"`, `"http": "127.0.0.1:1"`), "shard.bind"},
		"an unknown field":  {replaceOnce(t, defaultConfig(1), `"size": 1}`+"},\n\t\t\"blue\"", `"siez": 1}`+"},\n\t\t\"blue\""), "size"},
		"a broken template": {replaceOnce(t, defaultConfig(1), `"content": "{{.Nonce}}"`, `"content": "{{.Nonce"`), "userdata"},
	} {
		t.Run("refused and reported: "+name, func(t *testing.T) {
			w.conf.set(change.text, nil)
			_, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
			require.ErrorContains(t, err, change.says)
			now, err := api.GetConfigStatus(t.Context(), &apiv1.GetConfigStatusRequest{})
			require.NoError(t, err)
			require.Equal(t, before.GetDigest(), now.GetDigest())
			require.Contains(t, now.GetRejectedError(), change.says)
			require.NotNil(t, now.GetRejectedAt())
			theirs, err := operator.GetConfigStatus(t.Context(), &apiv1.GetConfigStatusRequest{})
			require.NoError(t, err)
			require.NotNil(t, theirs.GetRejectedAt())
			require.NotContains(t, theirs.GetRejectedError(), change.says, "it may name other tenants' groups")
		})
	}
	t.Run("an unreadable source changes nothing", func(t *testing.T) {
		w.conf.set("", nstance.Errorf(nstance.NotFound, "no such object"))
		_, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		require.EqualValues(t, 1, w.getGroup(api, "web").GetSize())
	})
	t.Run("a valid configuration is in force at once and clears the refusal", func(t *testing.T) {
		w.conf.set(defaultConfig(3), nil)
		resp, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
		require.NoError(t, err)
		require.True(t, resp.GetChanged())
		now, err := api.GetConfigStatus(t.Context(), &apiv1.GetConfigStatusRequest{})
		require.NoError(t, err)
		require.Equal(t, resp.GetDigest(), now.GetDigest())
		require.NotEqual(t, before.GetDigest(), now.GetDigest())
		require.Nil(t, now.GetRejectedAt())
		require.Eventually(t, func() bool { return w.countMachines("default") == 3 }, eventually, time.Millisecond)
	})
	t.Run("the same configuration changes nothing", func(t *testing.T) {
		resp, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
		require.NoError(t, err)
		require.False(t, resp.GetChanged())
	})
	t.Run("concurrent refreshes end with the newest", func(t *testing.T) {
		var g errgroup.Group
		for range 8 {
			g.Go(func() error { _, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{}); return err })
		}
		w.conf.set(defaultConfig(2), nil)
		g.Go(func() error { _, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{}); return err })
		require.NoError(t, g.Wait())
		require.EqualValues(t, 2, w.getGroup(api, "web").GetSize())
	})
}

// TestRefusedUpdateNamesNothing: what a refused request names to go first has no effect on a
// later one.
func TestRefusedUpdateNamesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 2})
	api := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	ids := w.awaitMachines(2)
	slices.Sort(ids)
	for _, id := range ids {
		w.connectReady(id)
	}
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: new(int32(1)), Template: new("none"), RemoveFirst: []string{string(ids[1])}})
	require.Error(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: new(int32(1))})
	require.NoError(t, err)
	w.awaitEvent(nstance.EventDrainStarted, ids[0]) // the older one
}
