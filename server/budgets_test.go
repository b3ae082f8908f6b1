package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// endless are templates that would use a core for minutes, or unlimited memory.
var endless = []string{`{{range 15000000000}}{{end}}`, `{{range 400}}{{printf "%1000000d" 1}}{{end}}`}

// TestPlanTemplateBudget: a proposed configuration is rendered within a budget, and
// only administrators may send one.
func TestPlanTemplateBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin, operator := w.admin(), w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	for _, text := range endless {
		conf := replaceOnce(t, defaultConfig(1), `"content": "{{.Nonce}}"`, `"content": "`+strings.ReplaceAll(text, `"`, `\"`)+`"`)
		_, err := admin.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte(conf)})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
		require.ErrorContains(t, err, "templates.vm.userdata.content")
	}
	_, err := operator.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte(defaultConfig(1))})
	requireFieldError(t, err, nstance.Denied, "config")
	_, err = operator.Plan(t.Context(), &apiv1.PlanRequest{})
	require.NoError(t, err)
}

// TestRequestArgumentsAreNoTemplates: an argument with template syntax is refused
// before it is stored.
func TestRequestArgumentsAreNoTemplates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	api := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	for _, text := range append(endless, "{{.Instance.ID}}", "{{") {
		args := `{"disk": [{"name": "` + strings.ReplaceAll(text, `"`, `\"`) + `"}]}`
		_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1), Args: args})
		requireFieldError(t, err, nstance.Invalid, "args.disk[0].name")
		_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", Args: args})
		requireFieldError(t, err, nstance.Invalid, "args.disk[0].name")
	}
	_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(0), Args: `{"name": "a } b"}`})
	require.NoError(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Args: proto.String(`{"name": "{{.Nonce}}"}`)})
	requireFieldError(t, err, nstance.Invalid, "args.name")
	_, err = api.Plan(t.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: "batch", Args: proto.String(`{"name": "{{.Nonce}}"}`)}})
	requireFieldError(t, err, nstance.Invalid, "args.name")
	require.Equal(t, map[string]any{"name": "a } b"}, w.storedGroups()["default/batch"]["args"])
}

// TestOperatorsSeeNoShardSettings: operators see the effect of a configuration on
// their groups, and no value that they could not set.
func TestOperatorsSeeNoShardSettings(t *testing.T) {
	t.Parallel()
	pooled := fmt.Sprintf(configuration, pools, 1)
	pooled = replaceOnce(t, pooled, `"kind": "web",`, `"kind": "web", "subnet_pool": "open",`)
	w := newWorld(t, setup{config: pooled})
	w.connectReady(w.awaitMachine(nstance.DefaultTenant))
	w.conf.set(replaceOnce(t, pooled, `"s-2"`, `"s-9"`), nil)
	fields := func(api apiv1.OperatorServiceClient) map[string]*apiv1.FieldChange {
		resp, err := api.Plan(t.Context(), &apiv1.PlanRequest{})
		require.NoError(t, err)
		out := map[string]*apiv1.FieldChange{}
		for _, f := range planOfGroup(t, resp, "web").GetFields() {
			out[f.GetPath()] = f
		}
		return out
	}
	operator := fields(w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI())
	require.Contains(t, operator, "subnets")
	for _, f := range operator {
		require.NotContains(t, f.String(), "s-")
	}
	require.Contains(t, fields(w.admin())["subnets"].GetAfter(), "s-9")
}
