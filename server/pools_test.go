package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server"
)

// avoidSpot asks for the avoidance of spot.
func avoidSpot(d time.Duration) *apiv1.AvoidPoolRequest {
	return &apiv1.AvoidPoolRequest{Pool: &apiv1.Pool{Market: "spot"}, Duration: durationpb.New(d), Reason: "trouble"}
}

func TestAvoidedPools(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	eve := w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
	api := eve.operatorAPI()
	blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	id := w.awaitMachine("default")
	w.connectReady(id)

	t.Run("what would happen", func(t *testing.T) {
		req := avoidSpot(time.Hour)
		req.DryRun, req.Drain = true, true
		resp, err := api.AvoidPool(t.Context(), req)
		require.NoError(t, err)
		require.True(t, resp.GetAvoided().GetDrain())
		require.Len(t, resp.GetGroups(), 2)
		g := resp.GetGroups()[1]
		require.Equal(t, "web", g.GetGroup())
		require.Equal(t, []int32{0, 1, 0}, []int32{g.GetLeft(), g.GetMembers(), g.GetReplaced()}, "nothing else is permitted")
		require.Equal(t, "small", g.GetLost()[0].GetInstanceType())
		list, err := api.ListAvoidedPools(t.Context(), &apiv1.ListAvoidedPoolsRequest{})
		require.NoError(t, err)
		require.Empty(t, list.GetPools())
	})
	for name, bad := range map[string]*apiv1.AvoidPoolRequest{
		"pool: ":     {Duration: durationpb.New(time.Hour)},
		"market: ":   {Pool: &apiv1.Pool{Market: "free"}, Duration: durationpb.New(time.Hour)},
		"duration: ": avoidSpot(721 * time.Hour),
	} {
		_, err := api.AvoidPool(t.Context(), bad)
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
		require.ErrorContains(t, wire.ErrorOf(err), name)
	}

	resp, err := api.AvoidPool(t.Context(), avoidSpot(time.Hour))
	require.NoError(t, err)
	require.Equal(t, eve.identity().Subject, resp.GetAvoided().GetBy())
	require.WithinDuration(t, time.Now().Add(time.Hour), resp.GetAvoided().GetUntil().AsTime(), 10*time.Second)
	_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		for _, h := range w.getGroup(api, "web").GetHolds() {
			if h.GetKind() == string(plan.HoldAvoided) {
				return strings.Contains(h.GetReason(), "market=spot") && strings.Contains(h.GetReason(), "trouble") && h.GetUntil() != nil
			}
		}
		return false
	}, eventually, 10*time.Millisecond, "a loss waits")

	t.Run("operators of all tenants see it", func(t *testing.T) {
		list, err := blue.ListAvoidedPools(t.Context(), &apiv1.ListAvoidedPoolsRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetPools(), 1)
		status, err := blue.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		require.Equal(t, string(plan.HoldAvoided), status.GetHolds()[0].GetKind())
		require.Equal(t, "nstance-admin pool release market=spot", listAttention(t, blue)[string(plan.HoldAvoided)][0].GetRemedy())
		_, err = blue.ReleasePool(t.Context(), &apiv1.ReleasePoolRequest{Pool: &apiv1.Pool{Market: "spot"}})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	})
	t.Run("the next leader keeps it, until it is released", func(t *testing.T) {
		w.startSuccessor(server.Options{})
		api := w.admin()
		list, err := api.ListAvoidedPools(t.Context(), &apiv1.ListAvoidedPoolsRequest{})
		require.NoError(t, err)
		require.Equal(t, "trouble", list.GetPools()[0].GetReason())
		creates := w.cloud.Count(simcloud.OpCreate)
		released, err := api.ReleasePool(t.Context(), &apiv1.ReleasePoolRequest{Pool: &apiv1.Pool{Market: "spot"}, DryRun: true})
		require.NoError(t, err)
		require.False(t, released.GetUnchanged())
		require.Equal(t, creates, w.cloud.Count(simcloud.OpCreate))
		_, err = api.ReleasePool(t.Context(), &apiv1.ReleasePoolRequest{Pool: &apiv1.Pool{Market: "spot"}})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return w.cloud.Count(simcloud.OpCreate) > creates }, eventually, 10*time.Millisecond)
	})
}
