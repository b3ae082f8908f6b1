package server_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// held returns the hold of a kind, as soon as there is one.
func (w *world) held(api apiv1.OperatorServiceClient, group, kind string) *apiv1.Hold {
	w.Helper()
	var found *apiv1.Hold
	require.Eventually(w, func() bool {
		for _, h := range w.group(api, group).GetHolds() {
			if h.GetKind() == kind {
				found = h
			}
		}
		return found != nil
	}, eventually, 5*time.Millisecond)
	return found
}

func TestOrders(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	w.ready(w.machine(nstance.DefaultTenant))
	w.await(nstance.EventGroupReady, "")
	api := w.admin()

	t.Run("pretended", func(t *testing.T) {
		for name, call := range map[string]func() (*apiv1.Group, error){
			"pause": func() (*apiv1.Group, error) {
				resp, err := api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web", DryRun: true})
				return resp.GetGroup(), err
			},
			"undo": func() (*apiv1.Group, error) {
				resp, err := api.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: "web", Undo: true, DryRun: true})
				return resp.GetGroup(), err
			},
			"resume": func() (*apiv1.Group, error) {
				resp, err := api.ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web", DryRun: true})
				return resp.GetGroup(), err
			},
		} {
			g, err := call()
			require.NoError(t, err, name)
			require.Equal(t, "web", g.GetGroup())
			require.False(t, g.GetPaused())
		}
		_, err := api.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: "web", DryRun: true})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Conflict, "it says what would not work")
		require.ErrorContains(t, err, "configure the definition that you want")
		_, err = api.Freeze(t.Context(), &apiv1.FreezeRequest{DryRun: true})
		require.NoError(t, err)
		_, err = api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "web", DryRun: true})
		require.NoError(t, err)
		require.False(t, w.group(api, "web").GetFrozen())
	})
	t.Run("what makes no sense is refused", func(t *testing.T) {
		for code, group := range map[nstance.Code]string{nstance.NotFound: "nobody", nstance.Invalid: "We B"} {
			_, err := api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: group})
			require.ErrorIs(t, wire.ErrorOf(err), code)
			_, err = api.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: group, Undo: true})
			require.ErrorIs(t, wire.ErrorOf(err), code)
			_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{Group: group})
			require.ErrorIs(t, wire.ErrorOf(err), code)
		}
		_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Tenant: "blue"})
		require.ErrorContains(t, err, "name the group")
	})
	t.Run("another tenant's group does not exist", func(t *testing.T) {
		blue := w.client(nstance.RoleOperator, "blue").api()
		_, err := blue.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		_, err = blue.ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web", Tenant: "default"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		_, err = blue.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: "web", Tenant: "default"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		resp, err := blue.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "db"})
		require.NoError(t, err, "its own does")
		require.True(t, resp.GetGroup().GetPaused())
	})
	t.Run("a pause is seen, and survives the server", func(t *testing.T) {
		resp, err := api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web", Reason: "busy"})
		require.NoError(t, err)
		require.True(t, resp.GetGroup().GetPaused())
		hold := w.held(api, "web", plan.HoldPaused)
		require.Contains(t, hold.GetReason(), "busy")
		require.NotNil(t, hold.GetSince())
		require.Contains(t, w.status().Groups[1].Holds[0], "busy")

		w.successor(server.Options{})
		api := w.admin()
		require.True(t, w.group(api, "web").GetPaused())
		require.Equal(t, hold.GetSince().AsTime(), w.held(api, "web", plan.HoldPaused).GetSince().AsTime())
		resumed, err := api.ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web"})
		require.NoError(t, err)
		require.False(t, resumed.GetGroup().GetPaused())
		require.True(t, w.group(api, "db").GetPaused(), "each for itself")
	})
}

func TestGroupMessage(t *testing.T) {
	w := newWorld(t, setup{size: 0})
	g := w.group(w.admin(), "db")
	require.Equal(t, "1", g.GetRollout().GetMaxSurge())
	require.EqualValues(t, 2, g.GetRollout().GetHaltAfter())
	require.Equal(t, 5*time.Minute, g.GetDrainTimeout().AsDuration())
	require.NotEmpty(t, g.GetRuntimeHash())
	require.NotEmpty(t, g.GetInfraHash())
}

// TestBadImage: a bad image stops after halt_after with the group still
// serving, and an operator's command then holds under every leader.
// remembers returns what is durable of a group's state.
func (w *world) remembers(group string) (state struct {
	HaltedHash string `json:"halted_hash"`
}) {
	w.Helper()
	obj, err := w.store.Get(w.Context(), storage.StateKey(zone))
	if errors.Is(err, nstance.NotFound) {
		return state
	}
	require.NoError(w, err)
	var all struct {
		Groups map[string]json.RawMessage `json:"groups"`
	}
	require.NoError(w, json.Unmarshal(obj.Data, &all))
	if raw, ok := all.Groups[group]; ok {
		require.NoError(w, json.Unmarshal(raw, &state))
	}
	return state
}

func TestBadImage(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	w.await(nstance.EventGroupReady, "")
	api := w.admin()
	bad := replace(t, ordinary(1), `"content": "{{.Nonce}}"`, `"content": "broken {{.Nonce}}"`)
	bad = replace(t, bad, `"kind": "web",`, `"kind": "web", "registration_timeout": "100ms",`)
	w.conf.set(bad, nil)
	_, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.group(api, "web").GetHalted() != "" }, eventually, time.Millisecond) // the other group halts too
	require.Eventually(t, func() bool { return w.remembers("default/web").HaltedHash != "" }, eventually, time.Millisecond)
	g := w.group(api, "web")
	require.EqualValues(t, 2, g.GetFailures())
	require.EqualValues(t, 1, g.GetReady(), "the group serves")
	require.NotEmpty(t, g.GetLastGoodHash())
	k.acked(k.report())

	hold := w.held(api, "web", plan.HoldHalted)
	w.successor(server.Options{})
	api = w.admin()
	require.Eventually(t, func() bool { return w.group(api, "web").GetHalted() != "" }, eventually, time.Millisecond)
	require.Equal(t, hold.GetSince().AsTime(), w.held(api, "web", plan.HoldHalted).GetSince().AsTime())

	resp, err := api.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: "web"})
	require.NoError(t, err)
	require.True(t, resp.GetGroup().GetRolledBack())
	require.Equal(t, g.GetLastGoodHash(), resp.GetGroup().GetInfraHash())
	w.successor(server.Options{})
	api = w.admin()
	now := w.group(api, "web")
	require.True(t, now.GetRolledBack())
	require.Empty(t, now.GetHalted())
	require.Zero(t, now.GetStale())
	w.held(api, "web", plan.HoldRolledBack)
	again := k.holder.connect()
	again.acked(again.report())
	got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
	require.NoError(t, err)
	require.Equal(t, string(nstance.Ready), got.GetInstance().GetState(), "it has served all the while")

	back, err := api.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: "web", Undo: true})
	require.NoError(t, err)
	require.False(t, back.GetGroup().GetRolledBack())
	require.NotEmpty(t, back.GetGroup().GetHalted(), "what was halted is halted still")
}

func TestFreezing(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	api := w.admin()
	_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Reason: "audit"})
	require.NoError(t, err)

	t.Run("it is seen", func(t *testing.T) {
		shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		require.Regexp(t, `^audit \(asked for by admin-\w+\)$`, shard.GetFrozen())
		require.NotNil(t, shard.GetFrozenAt())
		require.Equal(t, plan.HoldFrozen, shard.GetHolds()[0].GetKind())
		require.Contains(t, strings.Join(shard.GetProblems(), "\n"), "the shard is frozen")
		require.Contains(t, w.shown(plan.HoldFrozen).Why, "the shard is frozen")
		require.True(t, w.group(api, "web").GetFrozen())
		require.True(t, w.group(api, "db").GetFrozen())
		require.Contains(t, w.held(api, "web", plan.HoldFrozen).GetReason(), "audit")
	})
	t.Run("what would change something is refused", func(t *testing.T) {
		for name, call := range map[string]func() error{
			"drain": func() error {
				_, err := api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id)})
				return err
			},
			"delete": func() error {
				_, err := api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id)})
				return err
			},
			"interrupt": func() error {
				_, err := api.Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(id)})
				return err
			},
		} {
			err := call()
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Conflict, name)
			require.ErrorContains(t, err, "nstance-admin thaw shard", name)
		}
	})
	t.Run("a notice is acknowledged, and waits", func(t *testing.T) {
		k.acked(k.notice(reclaim("e1", time.Hour)))
		got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		require.Nil(t, got.GetInstance().GetDrain())
		require.Contains(t, got.GetInstance().GetConditions(), "notice:reclaim")
	})
	t.Run("the next leader keeps it, and acts after the thaw", func(t *testing.T) {
		w.successor(server.Options{})
		api := w.admin()
		require.True(t, w.group(api, "web").GetFrozen())
		operator := w.client(nstance.RoleOperator, "blue").api()
		_, err := operator.Thaw(t.Context(), &apiv1.ThawRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
		_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{})
		require.NoError(t, err)
		require.Equal(t, "e1", w.await(nstance.EventDrainStarted, id).Drain.Causes[0].EventID)
		w.await(nstance.EventReplacementRequested, "")
	})
	t.Run("of one group", func(t *testing.T) {
		w := newWorld(t, setup{size: 0})
		api := w.admin()
		_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "db", Tenant: "blue"})
		require.NoError(t, err)
		require.True(t, w.group(api, "db").GetFrozen())
		require.False(t, w.group(api, "web").GetFrozen())
		_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{Group: "db", Tenant: "blue"})
		require.NoError(t, err)
		require.False(t, w.group(api, "db").GetFrozen())
	})
}
