package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// TestActionsSurviveLeaders: the next leader knows who changed what under the one before,
// and no secret.
func TestActionsSurviveLeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	w.awaitMachine(nstance.DefaultTenant)
	before := timestamppb.Now()
	eve := w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
	api := eve.operatorAPI()
	size := int32(2)
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Tenant: "default", Size: &size, DryRun: true})
	require.NoError(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Tenant: "default", Size: &size, Vars: &apiv1.Vars{Values: map[string]string{"token": "s3cret"}}})
	require.NoError(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "no", Tenant: "default", Size: &size})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
	_, err = api.ListInstances(t.Context(), &apiv1.ListInstancesRequest{})
	require.NoError(t, err)
	operator := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	_, err = operator.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web"})
	require.NoError(t, err)
	_, err = api.Freeze(t.Context(), &apiv1.FreezeRequest{Reason: "audit"})
	require.NoError(t, err)
	require.NoError(t, w.stopServer())

	next := newWorld(t, setup{store: w.store, provider: w.cloud, webSize: 1})
	api = next.admin()
	list := func(req *apiv1.ListActionsRequest) (methods []string, resp *apiv1.ListActionsResponse) {
		resp, err := api.ListActions(t.Context(), req)
		require.NoError(t, err)
		require.Empty(t, resp.GetProblems())
		for _, a := range resp.GetActions() {
			methods = append(methods, a.GetMethod())
		}
		return methods, resp
	}
	methods, resp := list(&apiv1.ListActionsRequest{})
	require.Equal(t, []string{"Freeze", "PauseGroup", "UpdateGroup"}, methods)
	first, update := resp.GetActions()[0], resp.GetActions()[2]
	require.Contains(t, first.GetRequest(), "audit")
	require.Equal(t, "admin", update.GetRole())
	require.Equal(t, "default", update.GetTenant())
	require.Regexp(t, "^admin-", update.GetBy())
	require.Equal(t, "operator", resp.GetActions()[1].GetRole())
	require.JSONEq(t, `{"group": "web", "tenant": "default", "size": 2, "vars": {"values": {"token": ""}}}`, update.GetRequest())
	require.Empty(t, update.GetCode())
	require.False(t, update.GetAt().AsTime().Before(before.AsTime()))

	methods, _ = list(&apiv1.ListActionsRequest{By: update.GetBy(), Since: before})
	require.Equal(t, []string{"Freeze", "UpdateGroup"}, methods)
	methods, _ = list(&apiv1.ListActionsRequest{Method: "PauseGroup"})
	require.Equal(t, []string{"PauseGroup"}, methods)
	methods, _ = list(&apiv1.ListActionsRequest{Until: before})
	require.Empty(t, methods)
	var all []string
	for page := ""; ; {
		methods, resp := list(&apiv1.ListActionsRequest{Limit: 1, Page: page})
		all = append(all, methods...)
		if page = resp.GetNextPage(); page == "" {
			break
		}
	}
	require.Equal(t, []string{"Freeze", "PauseGroup", "UpdateGroup"}, all, "page by page")
	_, err = api.ListActions(t.Context(), &apiv1.ListActionsRequest{Limit: 1001})
	requireFieldError(t, err, nstance.Invalid, "limit")
	_, err = api.ListActions(t.Context(), &apiv1.ListActionsRequest{Page: "x"})
	requireFieldError(t, err, nstance.Invalid, "page")
	_, err = next.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI().ListActions(t.Context(), &apiv1.ListActionsRequest{})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
}
