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

// endless are templates that would take a core for minutes, or memory without end.
var endless = []string{`{{range 15000000000}}{{end}}`, `{{range 400}}{{printf "%1000000d" 1}}{{end}}`}

// TestTemplatesInAPlanAreBounded: a proposed configuration is rendered within a
// budget, and only administrators send one.
func TestTemplatesInAPlanAreBounded(t *testing.T) {
	w := newWorld(t, setup{})
	admin, operator := w.admin(), w.client(nstance.RoleOperator, nstance.DefaultTenant).api()
	for _, text := range endless {
		conf := replace(t, ordinary(1), `"content": "{{.Nonce}}"`, `"content": "`+strings.ReplaceAll(text, `"`, `\"`)+`"`)
		_, err := admin.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte(conf)})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
		require.ErrorContains(t, err, "templates.vm.userdata.content")
	}
	_, err := operator.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte(ordinary(1))})
	refuses(t, err, nstance.Denied, "config")
	_, err = operator.Plan(t.Context(), &apiv1.PlanRequest{})
	require.NoError(t, err)
}

// TestArgumentsOfRequestsAreData: what looks like a template is refused before it
// is durable.
func TestArgumentsOfRequestsAreData(t *testing.T) {
	w := newWorld(t, setup{})
	api := w.client(nstance.RoleOperator, nstance.DefaultTenant).api()
	for _, text := range append(endless, "{{.Instance.ID}}", "{{") {
		args := `{"disk": [{"name": "` + strings.ReplaceAll(text, `"`, `\"`) + `"}]}`
		_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1), Args: args})
		refuses(t, err, nstance.Invalid, "args.disk[0].name")
		_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newID(t), Group: "web", Args: args})
		refuses(t, err, nstance.Invalid, "args.disk[0].name")
	}
	_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(0), Args: `{"name": "a } b"}`})
	require.NoError(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Args: proto.String(`{"name": "{{.Nonce}}"}`)})
	refuses(t, err, nstance.Invalid, "args.name")
	_, err = api.Plan(t.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: "batch", Args: proto.String(`{"name": "{{.Nonce}}"}`)}})
	refuses(t, err, nstance.Invalid, "args.name")
	require.Equal(t, map[string]any{"name": "a } b"}, w.groupsFile()["default/batch"]["args"])
}

// TestOperatorsSeeNoSettings: of a change of the configuration they are told
// what happens to their groups, and no value that they could not set.
func TestOperatorsSeeNoSettings(t *testing.T) {
	pooled := fmt.Sprintf(configuration, pools, 1)
	pooled = replace(t, pooled, `"kind": "web",`, `"kind": "web", "subnet_pool": "open",`)
	w := newWorld(t, setup{text: pooled})
	w.ready(w.machine(nstance.DefaultTenant))
	w.conf.set(replace(t, pooled, `"s-2"`, `"s-9"`), nil)
	fields := func(api apiv1.OperatorServiceClient) map[string]*apiv1.FieldChange {
		resp, err := api.Plan(t.Context(), &apiv1.PlanRequest{})
		require.NoError(t, err)
		out := map[string]*apiv1.FieldChange{}
		for _, f := range planned(t, resp, "web").GetFields() {
			out[f.GetPath()] = f
		}
		return out
	}
	operator := fields(w.client(nstance.RoleOperator, nstance.DefaultTenant).api())
	require.Contains(t, operator, "subnets")
	for _, f := range operator {
		require.NotContains(t, f.String(), "s-")
	}
	require.Contains(t, fields(w.admin())["subnets"].GetAfter(), "s-9")
}
