package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// TestVariablesAreNotInterpretedInScripts: the content of a variable that is set
// through the API is never executed on a machine.
func TestVariablesAreNotInterpretedInScripts(t *testing.T) {
	t.Parallel()
	const raw, safe = `"content": "#!/bin/sh\necho {{.Vars.colour}}"`, `"content": "#!/bin/sh\necho {{quote .Vars.colour}}"`
	with := func(content string) string {
		return replaceOnce(t, defaultConfig(1), `"content": "{{.Nonce}}"`, content)
	}
	w := newWorld(t, setup{config: with(raw)})
	api := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	evil := map[string]string{"colour": "red; $(reboot)\n"}

	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Vars: &apiv1.Vars{Values: evil}})
	requireFieldError(t, err, nstance.Invalid, "vars.colour")
	_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1), Vars: evil})
	requireFieldError(t, err, nstance.Invalid, "vars.colour")
	_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", Vars: evil})
	requireFieldError(t, err, nstance.Invalid, "vars.colour")
	_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", Vars: map[string]string{"colour": "dark-red"}})
	require.NoError(t, err)

	w.applyConfig(with(safe))
	_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1), Vars: evil})
	require.NoError(t, err)
	id := w.awaitMachineOf("batch")
	spec, ok := w.cloud.Spec(id)
	require.True(t, ok)
	require.Equal(t, "#!/bin/sh\necho 'red; $(reboot)\n'", string(spec.UserData))

	w.applyConfig(with(raw))
	require.Contains(t, w.awaitHold(api, "batch", plan.HoldPending).GetReason(), "vars.colour")
}
