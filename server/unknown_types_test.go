package server_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// unknownTypes returns names of instance types that do not exist.
func unknownTypes(set, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("invented-%d-%d", set, i))
	}
	return names
}

// TestUnknownInstanceTypesAreBounded: however many unknown instance types a tenant
// names, the cached types of all groups stay.
func TestUnknownInstanceTypesAreBounded(t *testing.T) {
	t.Parallel()
	const sets, each = 40, 30
	w := newWorld(t, setup{webSize: 1, cloud: simcloud.Options{Types: map[string][]nstance.Arch{"small": {nstance.AMD64}, "arm": {nstance.ARM64}}}})
	api, admin := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI(), w.admin()
	resolved := func() {
		t.Helper()
		resp, err := admin.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		for _, g := range resp.GetGroups() {
			for _, h := range g.GetHolds() {
				require.NotEqual(t, string(plan.HoldPending), h.GetKind(), "%s: %s", g.GetGroup(), h.GetReason())
			}
		}
	}
	for i := range sets {
		_, err := api.Plan(t.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{
			Group: "web", InstanceTypes: &apiv1.Strings{Values: unknownTypes(i, each)},
		}})
		require.NoError(t, err)
		resolved()
	}
	for i := range sets {
		_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{
			Group: fmt.Sprint("g", i), Template: "vm", Size: proto.Int32(0), InstanceTypes: unknownTypes(i, each),
		})
		require.NoError(t, err)
		resolved()
	}
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", InstanceType: proto.String("arm")})
	requireFieldError(t, err, nstance.Invalid, "instance_type")
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", InstanceTypes: &apiv1.Strings{Values: unknownTypes(0, 65)}})
	requireFieldError(t, err, nstance.Invalid, "instance_types")
}
