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
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server"
)

// awaitHold waits for a hold of the kind and returns it.
func (w *world) awaitHold(api apiv1.OperatorServiceClient, group string, kind plan.HoldKind) *apiv1.Hold {
	w.Helper()
	var found *apiv1.Hold
	require.Eventually(w, func() bool {
		for _, h := range w.getGroup(api, group).GetHolds() {
			if h.GetKind() == string(kind) {
				found = h
			}
		}
		return found != nil
	}, eventually, 5*time.Millisecond)
	return found
}

func TestRolloutCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	w.connectReady(w.awaitMachine(nstance.DefaultTenant))
	w.awaitEvent(nstance.EventGroupReady, "")
	api := w.admin()

	t.Run("dry run", func(t *testing.T) {
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
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Conflict, "it names what would fail")
		require.ErrorContains(t, err, "configure the definition that you want")
		_, err = api.Freeze(t.Context(), &apiv1.FreezeRequest{DryRun: true})
		require.NoError(t, err)
		_, err = api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "web", DryRun: true})
		require.NoError(t, err)
		require.False(t, w.getGroup(api, "web").GetFrozen())
	})
	t.Run("invalid requests are refused", func(t *testing.T) {
		for code, group := range map[nstance.Code]string{nstance.NotFound: "missing", nstance.Invalid: "We B"} {
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
		blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
		_, err := blue.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		_, err = blue.ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web", Tenant: "default"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		_, err = blue.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: "web", Tenant: "default"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		resp, err := blue.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "db"})
		require.NoError(t, err, "its own group does")
		require.True(t, resp.GetGroup().GetPaused())
	})
	t.Run("a pause is shown and survives a restart", func(t *testing.T) {
		resp, err := api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web", Reason: "busy"})
		require.NoError(t, err)
		require.True(t, resp.GetGroup().GetPaused())
		hold := w.awaitHold(api, "web", plan.HoldPaused)
		require.Contains(t, hold.GetReason(), "busy")
		require.NotNil(t, hold.GetSince())
		require.Contains(t, w.status().Groups[1].Holds[0].Reason, "busy")

		w.startSuccessor(server.Options{})
		api := w.admin()
		require.True(t, w.getGroup(api, "web").GetPaused())
		require.Equal(t, hold.GetSince().AsTime(), w.awaitHold(api, "web", plan.HoldPaused).GetSince().AsTime())
		resumed, err := api.ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web"})
		require.NoError(t, err)
		require.False(t, resumed.GetGroup().GetPaused())
		require.True(t, w.getGroup(api, "db").GetPaused(), "each for itself")
	})
}

func TestGroupMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 0})
	g := w.getGroup(w.admin(), "db")
	require.Equal(t, "1", g.GetRollout().GetMaxSurge())
	require.EqualValues(t, 2, g.GetRollout().GetHaltAfter())
	require.Equal(t, 5*time.Minute, g.GetDrainTimeout().AsDuration())
	require.NotEmpty(t, g.GetRuntimeHash())
	require.NotEmpty(t, g.GetInfraHash())
}

// storedGroupState returns a group's stored state.
func (w *world) storedGroupState(group string) (state struct {
	HaltedHash string `json:"halted_hash"`
}) {
	w.Helper()
	obj, err := w.store.Get(w.Context(), layout.StateKey(zone))
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

// TestBadImageHaltsRollout: a bad image halts the rollout after halt_after members
// while the group still serves. A command of an operator holds under every leader.
func TestBadImageHaltsRollout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	w.awaitEvent(nstance.EventGroupReady, "")
	api := w.admin()
	bad := replaceOnce(t, defaultConfig(1), `"content": "{{.Nonce}}"`, `"content": "broken {{.Nonce}}"`)
	bad = replaceOnce(t, bad, `"kind": "web",`, `"kind": "web", "registration_timeout": "1s",`)
	w.conf.set(bad, nil)
	_, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.getGroup(api, "web").GetHalted() != "" }, eventually, time.Millisecond) // not the other group's halt
	require.Eventually(t, func() bool { return w.storedGroupState("default/web").HaltedHash != "" }, eventually, time.Millisecond)
	g := w.getGroup(api, "web")
	require.EqualValues(t, 2, g.GetFailures())
	require.EqualValues(t, 1, g.GetReady(), "the group serves")
	require.NotEmpty(t, g.GetLastGoodHash())
	k.awaitAck(k.sendReport())

	hold := w.awaitHold(api, "web", plan.HoldHalted)
	w.startSuccessor(server.Options{})
	api = w.admin()
	require.Eventually(t, func() bool { return w.getGroup(api, "web").GetHalted() != "" }, eventually, time.Millisecond)
	require.Equal(t, hold.GetSince().AsTime(), w.awaitHold(api, "web", plan.HoldHalted).GetSince().AsTime())

	resp, err := api.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: "web"})
	require.NoError(t, err)
	require.True(t, resp.GetGroup().GetRolledBack())
	require.Equal(t, g.GetLastGoodHash(), resp.GetGroup().GetInfraHash())
	w.startSuccessor(server.Options{})
	api = w.admin()
	now := w.getGroup(api, "web")
	require.True(t, now.GetRolledBack())
	require.Empty(t, now.GetHalted())
	require.Eventually(t, func() bool { return w.getGroup(api, "web").GetStale() == 0 }, eventually, time.Millisecond, "what is left of the bad image goes")
	w.awaitHold(api, "web", plan.HoldRolledBack)
	again := k.client.connect()
	again.awaitAck(again.sendReport())
	got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
	require.NoError(t, err)
	require.Equal(t, string(nstance.Ready), got.GetInstance().GetState(), "it served all the time")

	back, err := api.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: "web", Undo: true, DryRun: true})
	require.NoError(t, err)
	require.True(t, back.GetGroup().GetRolledBack(), "a dry run undoes nothing")
	require.True(t, w.getGroup(api, "web").GetRolledBack())
	back, err = api.RollbackGroup(t.Context(), &apiv1.RollbackGroupRequest{Group: "web", Undo: true})
	require.NoError(t, err)
	require.False(t, back.GetGroup().GetRolledBack())
	require.NotEmpty(t, back.GetGroup().GetHalted(), "what was halted is halted still")
}

func TestFreeze(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	api := w.admin()
	_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Reason: "audit"})
	require.NoError(t, err)

	t.Run("it is shown", func(t *testing.T) {
		shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		require.Regexp(t, `^audit \(asked for by admin-\w+\)$`, shard.GetFrozen())
		require.NotNil(t, shard.GetFrozenAt())
		require.Equal(t, string(plan.HoldFrozen), shard.GetHolds()[0].GetKind())
		require.Contains(t, strings.Join(shard.GetProblems(), "\n"), "the shard is frozen")
		require.Contains(t, w.attentionOfKind(string(plan.HoldFrozen)).Why, "the shard is frozen")
		require.True(t, w.getGroup(api, "web").GetFrozen())
		require.True(t, w.getGroup(api, "db").GetFrozen())
		require.Contains(t, w.awaitHold(api, "web", plan.HoldFrozen).GetReason(), "audit")
	})
	t.Run("changes are refused", func(t *testing.T) {
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
	t.Run("a notice is acknowledged and waits for the thaw", func(t *testing.T) {
		k.awaitAck(k.sendNotice(reclaimNotice("e1", time.Hour)))
		got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		require.Nil(t, got.GetInstance().GetDrain())
		require.Contains(t, got.GetInstance().GetConditions(), "notice:reclaim")
	})
	t.Run("the next leader keeps the freeze and acts after the thaw", func(t *testing.T) {
		w.startSuccessor(server.Options{})
		api := w.admin()
		require.True(t, w.getGroup(api, "web").GetFrozen())
		operator := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
		_, err := operator.Thaw(t.Context(), &apiv1.ThawRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
		_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{})
		require.NoError(t, err)
		require.Equal(t, "e1", w.awaitEvent(nstance.EventDrainStarted, id).Drain.Causes[0].EventID)
		w.awaitEvent(nstance.EventReplacementRequested, "")
	})
	t.Run("freeze of one group", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 0})
		api := w.admin()
		_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "db", Tenant: "blue"})
		require.NoError(t, err)
		require.True(t, w.getGroup(api, "db").GetFrozen())
		require.False(t, w.getGroup(api, "web").GetFrozen())
		_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{Group: "db", Tenant: "blue"})
		require.NoError(t, err)
		require.False(t, w.getGroup(api, "db").GetFrozen())
	})
}
