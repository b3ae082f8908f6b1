package server_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
)

func newRequestID(t *testing.T) string {
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	return string(id)
}

func TestCreateInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 0, shard: pools})
	api := w.admin()
	id := newRequestID(t)
	req := &apiv1.CreateInstanceRequest{Id: id, Group: "web", InstanceType: "large", Vars: map[string]string{"colour": "blue"}, Args: `{"boot_delay": "1ms"}`}
	resp, err := api.CreateInstance(t.Context(), req)
	require.NoError(t, err)
	require.True(t, resp.GetInstance().GetOnDemand())
	w.awaitEvent(nstance.EventCreated, nstance.InstanceID(id))
	spec, ok := w.cloud.Spec(nstance.InstanceID(id))
	require.True(t, ok)
	require.Equal(t, "large", spec.InstanceType)
	require.JSONEq(t, `{"boot_delay": "1ms"}`, string(spec.Args))
	w.connectReady(nstance.InstanceID(id))
	require.EqualValues(t, 1, w.getGroup(api, "web").GetOnDemand())
	require.Zero(t, w.getGroup(api, "web").GetReady())

	t.Run("repeated", func(t *testing.T) {
		again, err := api.CreateInstance(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, string(nstance.Ready), again.GetInstance().GetState())
		require.Equal(t, 1, w.countMachines("default"))
	})
	t.Run("repeated concurrently", func(t *testing.T) {
		fresh := newRequestID(t)
		var g errgroup.Group
		for range 8 {
			g.Go(func() error {
				_, err := api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: fresh, Group: "web"})
				return err
			})
		}
		require.NoError(t, g.Wait(), "each receives the same drain")
		w.awaitEvent(nstance.EventCreated, nstance.InstanceID(fresh))
		require.Equal(t, 2, w.countMachines("default"))
		_, err := api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: fresh, NoDrain: true})
		require.NoError(t, err)
	})
	t.Run("refusals", func(t *testing.T) {
		old, err := nstance.NewInstanceID("web", time.Now().Add(-time.Hour))
		require.NoError(t, err)
		kind, err := nstance.NewInstanceID("dbs", time.Now())
		require.NoError(t, err)
		for _, c := range []struct {
			code  nstance.Code
			field string
			req   *apiv1.CreateInstanceRequest
		}{
			{nstance.Conflict, "id", &apiv1.CreateInstanceRequest{Id: id, Group: "web"}},
			{nstance.Conflict, "id", &apiv1.CreateInstanceRequest{Id: id, Group: "web", InstanceType: "small", Vars: req.GetVars(), Args: req.GetArgs()}},
			{nstance.Conflict, "id", &apiv1.CreateInstanceRequest{Id: id, Group: "web", InstanceType: "large", Vars: map[string]string{"colour": "red"}, Args: req.GetArgs()}},
			{nstance.Conflict, "id", &apiv1.CreateInstanceRequest{Id: id, Group: "web", InstanceType: "large", Vars: req.GetVars(), Args: `{"boot_delay": "2ms"}`}},
			{nstance.Conflict, "id", &apiv1.CreateInstanceRequest{Id: id, Group: "web", InstanceType: "large", Vars: req.GetVars()}},
			{nstance.Conflict, "id", &apiv1.CreateInstanceRequest{Id: id, Tenant: "blue", Group: "db"}},
			{nstance.Invalid, "id", &apiv1.CreateInstanceRequest{Id: "web", Group: "web"}},
			{nstance.Invalid, "id", &apiv1.CreateInstanceRequest{Id: string(old), Group: "web"}},
			{nstance.Invalid, "id", &apiv1.CreateInstanceRequest{Id: string(kind), Group: "web"}},
			{nstance.Invalid, "args", &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", Args: "x"}},
			{nstance.Invalid, "args.a", &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", Args: `{"a": "{{"}`}},
			{nstance.Invalid, "vars", &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", Vars: map[string]string{"": "x"}}},
		} {
			_, err := api.CreateInstance(t.Context(), c.req)
			requireFieldError(t, err, c.code, c.field)
		}
		_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "missing"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
	})
	t.Run("a dry run creates nothing", func(t *testing.T) {
		next := newRequestID(t)
		dry, err := api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: next, Group: "web", DryRun: true})
		require.NoError(t, err)
		require.Equal(t, next, dry.GetInstance().GetId())
		_, err = api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: next})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
	})
	t.Run("a refused create is shown as failed", func(t *testing.T) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Invalid})
		bad := newRequestID(t)
		_, err := api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: bad, Group: "web"})
		require.NoError(t, err)
		e := w.awaitEvent(nstance.EventCreateFailed, nstance.InstanceID(bad))
		require.Equal(t, nstance.Invalid, e.Code)
		w.awaitEvent(nstance.EventDeleted, nstance.InstanceID(bad))
		require.Eventually(t, func() bool {
			got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: bad})
			return err == nil && got.GetInstance().GetState() == string(nstance.Failed)
		}, eventually, time.Millisecond)
	})
	t.Run("it survives the removal of its group", func(t *testing.T) {
		_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(0)})
		require.NoError(t, err)
		own := newRequestID(t)
		_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: own, Group: "batch"})
		require.NoError(t, err)
		_, err = api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "batch"})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return !w.groupListed(api, "batch") }, eventually, time.Millisecond)
		w.awaitEvent(nstance.EventCreated, nstance.InstanceID(own))
		_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: own, Group: "batch"})
		require.NoError(t, err, "what was accepted stands")
		require.Contains(t, w.storedGroups(), "default/batch", "its definition is kept for it")
		_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: own, NoDrain: true})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return w.storedGroups()["default/batch"] == nil }, eventually, time.Millisecond)
	})
}

// TestLoadBalancersOfInstancesOnDemand: an instance joins its group's load balancers
// or its own, and is deleted after it has left them.
func TestLoadBalancersOfInstancesOnDemand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{
		cloud:  simcloud.Options{Balancers: []string{"lb-1", "lb-2"}},
		config: configWithTemplate(0, `"userdata": {"content": "{{.Nonce}}"}, "load_balancers": ["front"], `, `"load_balancers": {"front": {"id": "lb-1"}, "side": {"id": "lb-2"}}, `),
	})
	api := w.admin()
	talks := map[nstance.InstanceID]*agentSession{}
	order := func(balancers ...string) nstance.InstanceID {
		t.Helper()
		req := &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", LoadBalancers: balancers}
		for range 2 { // the second is a repeated request
			_, err := api.CreateInstance(t.Context(), req)
			require.NoError(t, err)
		}
		id := nstance.InstanceID(req.GetId())
		w.awaitEvent(nstance.EventCreated, id)
		talks[id] = w.connectReady(id)
		return id
	}
	balanced := func(lb string, ids ...nstance.InstanceID) {
		t.Helper()
		var want []string
		for _, m := range w.cloud.Machines() {
			if slices.Contains(ids, m.ID) {
				want = append(want, m.ProviderID)
			}
		}
		require.Len(t, want, len(ids))
		require.Eventually(t, func() bool {
			got := slices.Sorted(slices.Values(w.cloud.AttachedTo(lb)))
			return slices.Equal(got, slices.Sorted(slices.Values(want)))
		}, eventually, time.Millisecond, lb)
	}
	ordinary, own := order(), order("side")
	balanced("lb-1", ordinary)
	balanced("lb-2", own)

	require.NoError(t, w.stopServer())
	for _, lb := range []string{"lb-1", "lb-2"} {
		w.cloud.SetBalancer(lb, false)
		w.cloud.SetBalancer(lb, true) // empty
	}
	w.startSuccessor(server.Options{})
	api = w.admin()
	for _, k := range talks {
		next := k.client.connect()
		next.awaitAck(next.sendReport())
	}
	balanced("lb-1", ordinary)
	balanced("lb-2", own)

	leaving, left := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(left) })
	t.Cleanup(release)
	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, Keep: true, Do: func() { close(leaving); <-left }})
	_, err := api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(own), NoDrain: true})
	require.NoError(t, err)
	receive(t, leaving)
	_, there := w.cloud.Spec(own)
	require.True(t, there, "it may still be sent traffic")
	release()
	w.awaitEvent(nstance.EventDeleted, own)
	balanced("lb-2")
	balanced("lb-1", ordinary)
	require.Empty(t, w.cloud.DeletedWhileMember())

	_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", LoadBalancers: []string{"fornt"}})
	requireFieldError(t, err, nstance.Invalid, "load_balancers")
	operator := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	w.applyConfig(replaceOnce(t, w.conf.text, `"groups": {`, `"tenants": {"default": {"load_balancers": ["front"]}}, "groups": {`))
	_, err = operator.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", LoadBalancers: []string{"side"}})
	requireFieldError(t, err, nstance.Denied, "load_balancers")
}
