package server_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// planConfig calls Plan for a configuration and checks that this changes nothing.
func (w *world) planConfig(api apiv1.OperatorServiceClient, text string) *apiv1.PlanResponse {
	w.Helper()
	before, machines := w.configStatus(api), w.cloud.Machines()
	resp, err := api.Plan(w.Context(), &apiv1.PlanRequest{Config: []byte(text)})
	require.NoError(w, err)
	after := w.configStatus(api)
	require.True(w, proto.Equal(before, after))
	require.Equal(w, machines, w.cloud.Machines())
	return resp
}

func planOfGroup(t *testing.T, resp *apiv1.PlanResponse, group string) *apiv1.GroupPlan {
	t.Helper()
	for _, p := range resp.GetGroups() {
		if p.GetGroup() == group {
			return p
		}
	}
	require.FailNow(t, "nothing is planned", group)
	return nil
}

func TestPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	w.connectReady(id)
	w.awaitMachine("blue")
	w.awaitEvent(nstance.EventGroupReady, "")
	api := w.admin()

	t.Run("the configuration in force", func(t *testing.T) {
		resp := w.planConfig(api, defaultConfig(1))
		require.Empty(t, resp.GetGroups())
		require.False(t, resp.GetHeld())
		require.Equal(t, w.configStatus(api).GetDigest(), resp.GetDigest())
	})
	t.Run("another definition", func(t *testing.T) {
		resp := w.planConfig(api, replaceOnce(t, defaultConfig(1), `"content": "{{.Nonce}}"`, `"content": "new {{.Nonce}}"`))
		p := planOfGroup(t, resp, "web")
		require.Equal(t, "changed", p.GetChange())
		require.Len(t, p.GetInstances(), 1)
		require.Equal(t, string(id), p.GetInstances()[0].GetId())
		require.Equal(t, "replace", p.GetInstances()[0].GetAction())
		require.Contains(t, p.GetInstances()[0].GetReason(), "userdata.content")
		require.EqualValues(t, 1, p.GetCreates())
		require.Equal(t, "userdata.content", p.GetFields()[0].GetPath())
		require.Equal(t, "replace", p.GetFields()[0].GetEffect())
		require.Positive(t, p.GetEstimate().AsDuration())
		require.Contains(t, p.GetEstimateBasis(), "the slowest of the last 1 launches")
		require.Len(t, planOfGroup(t, resp, "db").GetInstances(), 1)
	})
	t.Run("an added and a removed group", func(t *testing.T) {
		text := replaceOnce(t, defaultConfig(1), `"blue": {"db": {`, `"blue": {"cache": {`)
		resp := w.planConfig(api, text)
		require.Len(t, resp.GetGroups(), 2)
		require.Equal(t, "released", planOfGroup(t, resp, "db").GetChange())
		require.Empty(t, planOfGroup(t, resp, "db").GetInstances())
		p := planOfGroup(t, resp, "cache")
		require.Equal(t, "added", p.GetChange())
		require.EqualValues(t, 1, p.GetCreates())
		require.Equal(t, 15*time.Minute, p.GetEstimate().AsDuration())
		require.Contains(t, p.GetEstimateBasis(), "upper bound")
	})
	t.Run("changes through the API count", func(t *testing.T) {
		_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "db", Tenant: "blue", Vars: &apiv1.Vars{Values: map[string]string{"colour": "blue"}}})
		require.NoError(t, err)
		resp := w.planConfig(api, replaceOnce(t, defaultConfig(1), `"colour": "red"`, `"colour": "green"`))
		require.Len(t, resp.GetGroups(), 1, "the other one's is laid over it")
		p := planOfGroup(t, resp, "web")
		require.Equal(t, "vars.colour", p.GetFields()[0].GetPath())
		require.Equal(t, [2]string{"red", "green"}, [2]string{p.GetFields()[0].GetBefore(), p.GetFields()[0].GetAfter()})
		require.Equal(t, "push", p.GetFields()[0].GetEffect())
		require.Equal(t, "push", p.GetInstances()[0].GetAction())
		require.Nil(t, p.GetEstimate())
	})
	t.Run("an invalid overlay releases nothing", func(t *testing.T) {
		store := storage.NewMemory()
		_, err := store.PutIfAbsent(t.Context(), layout.GroupsKey(zone), []byte(`{"format": "1.0", "groups": {"default/web": {"size": -1}}}`))
		require.NoError(t, err)
		w := newWorld(t, setup{webSize: 2, store: store})
		w.awaitMachine("blue") // creates of the other group are not caused by the plan
		p := planOfGroup(t, w.planConfig(w.admin(), defaultConfig(3)), "web")
		require.Equal(t, "added", p.GetChange(), "the server has no such group")
		require.Empty(t, p.GetInstances())
		require.Zero(t, p.GetCreates())
		require.Equal(t, string(plan.HoldPending), p.GetHolds()[0].GetKind())
	})
	t.Run("the configuration that a refresh would read", func(t *testing.T) {
		w.conf.set(defaultConfig(3), nil)
		defer w.conf.set(defaultConfig(1), nil)
		p := planOfGroup(t, w.planConfig(api, ""), "web")
		require.Equal(t, [2]int32{1, 3}, [2]int32{p.GetSizeBefore(), p.GetSizeAfter()})
		require.EqualValues(t, 2, p.GetCreates())
	})
	t.Run("a change above the limit", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 3, shard: `"max_change": 1,`})
		require.Eventually(t, func() bool { return w.countMachines("default") == 3 }, eventually, time.Millisecond)
		api := w.admin()
		text := func(size int) string { return fmt.Sprintf(configuration, `"max_change": 1,`, size) }
		require.True(t, w.planConfig(api, text(1)).GetHeld())
		require.False(t, w.planConfig(api, text(2)).GetHeld())
	})
	t.Run("refused as a refresh would be", func(t *testing.T) {
		for says, text := range map[string]string{
			"proposed configuration:1:": `{"cluster": `,
			"shard.provider.kind":       replaceOnce(t, defaultConfig(1), `"kind": "sim"`, `"kind": "local"`),
		} {
			_, err := api.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte(text)})
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
			require.ErrorContains(t, err, says)
		}
		_, err := api.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte("{}"), Group: &apiv1.UpdateGroupRequest{Group: "web"}})
		require.ErrorContains(t, err, "one at a time")
	})
	t.Run("of one group", func(t *testing.T) {
		resp, err := api.Plan(t.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: "web", InstanceType: proto.String("large")}})
		require.NoError(t, err)
		p := planOfGroup(t, resp, "web")
		require.Equal(t, "instance_types", p.GetFields()[0].GetPath())
		require.Len(t, p.GetInstances(), 1)
		require.Equal(t, []string{"small"}, w.getGroup(api, "web").GetInstanceTypes(), "nothing has changed")

		blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
		_, err = blue.Plan(t.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(2)}})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		resp, err = blue.Plan(t.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: "db", Size: proto.Int32(2)}})
		require.NoError(t, err)
		require.EqualValues(t, 1, planOfGroup(t, resp, "db").GetCreates())
	})
	t.Run("an operator sees its own groups", func(t *testing.T) {
		blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
		text := replaceOnce(t, defaultConfig(1), `"content": "{{.Nonce}}"`, `"content": "new {{.Nonce}}"`)
		_, err := blue.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte(text)})
		requireFieldError(t, err, nstance.Denied, "config")
		w.conf.set(text, nil)
		resp, err := blue.Plan(t.Context(), &apiv1.PlanRequest{})
		require.NoError(t, err)
		require.Len(t, resp.GetGroups(), 1)
		require.Equal(t, "blue", resp.GetGroups()[0].GetTenant())
		w.conf.set(replaceOnce(t, text, `"web": {`, `"w e b": {`), nil)
		defer w.conf.set(defaultConfig(1), nil)
		_, err = blue.Plan(t.Context(), &apiv1.PlanRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
		require.NotContains(t, err.Error(), "w e b")
	})
	t.Run("an instance's drift", func(t *testing.T) {
		_, err := api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web"})
		require.NoError(t, err)
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", InstanceType: proto.String("large")})
		require.NoError(t, err)
		got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		require.True(t, got.GetInstance().GetDrifted())
		require.Len(t, got.GetInstance().GetDrift(), 1)
		require.Equal(t, `["small"]`, got.GetInstance().GetDrift()[0].GetBefore())
		require.Equal(t, `["large"]`, got.GetInstance().GetDrift()[0].GetAfter())
	})
}

// requireEmptyPlan checks that the plan of the configuration in force is empty.
func (w *world) requireEmptyPlan(text string) {
	w.Helper()
	api := w.admin()
	require.Eventually(w, func() bool { // all look-ups are done, and earlier members are deleted
		g := w.getGroup(api, "web")
		return len(g.GetHolds()) == 0 && g.GetBooting() == 1 && g.GetStale()+g.GetLeaving() == 0 && w.countMachines(nstance.DefaultTenant) == 1
	}, eventually, time.Millisecond)
	require.Empty(w, w.planConfig(api, text).GetGroups())
	resp, err := api.Plan(w.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(2)}})
	require.NoError(w, err)
	p := planOfGroup(w.T, resp, "web")
	require.Empty(w, p.GetInstances())
	require.EqualValues(w, 1, p.GetCreates())
	require.Len(w, p.GetFields(), 1)
	require.Equal(w, "size", p.GetFields()[0].GetPath())
	require.Empty(w, p.GetHolds())
}

func TestPlanResolvesNewNames(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	t.Run("images", func(t *testing.T) {
		slowCloud := simcloud.Options{Latency: simcloud.Delay{Min: 50 * time.Millisecond}} // Plan waits for the image
		w := newWorld(t, setup{cloud: slowCloud})
		w.cloud.SetImages(simcloud.Image{ID: "img-1", Owner: "me", Name: "base-1"})
		text := configWithTemplate(1, `"image": "base", "track": ["image"], `, `"images": {"base": {"owner": "me", "name": "base-*"}}, `)
		w.applyConfig(text)
		w.requireEmptyPlan(text)
		resp := w.planConfig(w.admin(), replaceOnce(t, text, `"base-*"`, `"other-*"`))
		p := planOfGroup(t, resp, "web")
		require.Empty(t, p.GetInstances(), "it is not known yet whether it is another image")
		require.Zero(t, p.GetCreates())
		require.Equal(t, "changed", p.GetChange())
		require.Len(t, p.GetHolds(), 1)
		require.Equal(t, string(plan.HoldPending), p.GetHolds()[0].GetKind())
		require.Contains(t, p.GetHolds()[0].GetReason(), "image base is not known yet")
		require.NotNil(t, p.GetHolds()[0].GetSince())
	})
	t.Run("user data", func(t *testing.T) {
		page, url := newUserDataPage(t)
		page.serve("one")
		w := newWorld(t, setup{})
		text := configWithTemplate(1, fmt.Sprintf(`"track": ["userdata"], "userdata": {"source": "url", "content": %q}, `, url), "")
		w.applyConfig(text)
		w.requireEmptyPlan(text)
	})
	t.Run("secrets", func(t *testing.T) {
		store := storage.NewMemory()
		_, err := store.PutIfAbsent(t.Context(), layout.SecretKey("db"), []byte("first"))
		require.NoError(t, err)
		text := configWithFiles(1, "", red, "", password, `, "track": ["secrets"]`)
		newWorld(t, setup{store: store, config: text}).requireEmptyPlan(text)
	})
}

func TestPlanChecksAbilities(t *testing.T) {
	t.Parallel()
	cloud := simcloud.New(nil)
	defer cloud.Close()
	api := newWorld(t, setup{provider: struct{ nstance.Provider }{cloud}}).admin()
	for top, field := range map[string]string{
		`"images": {"base": {"name": "x"}}, `:         "images.base.name",
		`"load_balancers": {"front": {"id": "lb"}}, `: "load_balancers.front",
	} {
		_, err := api.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte(configWithTemplate(0, "", top))})
		requireFieldError(t, err, nstance.Invalid, field)
	}
}
