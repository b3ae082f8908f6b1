package admin_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

func (w *world) CreateGroup(_ context.Context, req *apiv1.CreateGroupRequest) (*apiv1.CreateGroupResponse, error) {
	w.set(func() { w.asked = req })
	return &apiv1.CreateGroupResponse{Group: &apiv1.Group{
		Tenant: "default", Group: req.GetGroup(), Template: req.GetTemplate(), Size: req.GetSize(), Protect: req.GetProtect(),
	}}, nil
}

func (w *world) DeleteGroup(_ context.Context, req *apiv1.DeleteGroupRequest) (*apiv1.DeleteGroupResponse, error) {
	g, err := w.order("delete", req.GetTenant(), req.GetGroup(), req.GetDryRun(), func(g *apiv1.Group) { g.Removing = true })
	return &apiv1.DeleteGroupResponse{Group: g}, err
}

func (w *world) CreateInstance(_ context.Context, req *apiv1.CreateInstanceRequest) (*apiv1.CreateInstanceResponse, error) {
	w.set(func() { w.asked = req })
	return &apiv1.CreateInstanceResponse{Instance: &apiv1.Instance{
		Id: req.GetId(), Tenant: req.GetTenant(), Group: req.GetGroup(), State: "provisioning", OnDemand: true,
	}}, nil
}

// furnish gives the world a group.
func (w *world) furnish() {
	w.set(func() {
		w.groups = []*apiv1.Group{{Tenant: "blue", Group: "db", Size: 1}, {Tenant: "default", Group: "web", Template: "vm", Size: 3, Ready: 3}}
	})
}

// same compares requests.
func same(t *testing.T, want, got proto.Message) {
	t.Helper()
	require.True(t, proto.Equal(want, got), "want %s\n got %s", protojson.Format(want), protojson.Format(got))
}

func TestGroupCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "args.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"a": 1}`), 0o600))
	r := w.run("group", "create", "batch", "--tenant", "blue", "--template", "vm", "--size", "0", "--instance-type", "a,b", "--subnet-pool", "edge",
		"--var", "x=1=2", "--var", "y=", "--args", "@"+file, "--load-balancer", "front", "--drain-timeout", "90s", "--max-surge", "20%",
		"--min-ready", "10s", "--halt-after", "0", "--protect", "--dry-run", "--market", "spot", "--max-price", "0.05", "--fallback", "on-demand", "--fallback-after", "5m",
		"--return-after", "1h", "--on-demand-base", "20%", "--fallback-reclaims", "3", "--fallback-window", "1h", "--max-share", "34%", "--spread-by", "zone", "--on-reclaim", "cordon", "--on-rebalance", "replace", "--on-maintenance", "ignore", "--on-drain-timeout", "wait")
	require.Zero(t, r.code, r.errors)
	same(t, &apiv1.CreateGroupRequest{
		Group: "batch", Tenant: "blue", Template: "vm", Size: proto.Int32(0), InstanceTypes: []string{"a", "b"}, SubnetPool: "edge",
		Vars: map[string]string{"x": "1=2", "y": ""}, Args: `{"a": 1}`, LoadBalancers: []string{"front"}, DrainTimeout: durationpb.New(90 * time.Second),
		Rollout: &apiv1.Rollout{MaxSurge: "20%", MinReady: durationpb.New(10 * time.Second), HaltAfter: proto.Int32(0)}, Protect: true, DryRun: true,
		Market: &apiv1.Market{Type: "spot", MaxPrice: "0.05", Fallback: "on-demand", FallbackAfter: durationpb.New(5 * time.Minute), ReturnAfter: durationpb.New(time.Hour), OnDemandBase: "20%", FallbackWhen: &apiv1.ReclaimLimit{Reclaims: 3, Window: durationpb.New(time.Hour)}},
		Spread: &apiv1.Spread{By: "zone", MaxShare: "34%"}, OnReclaim: "cordon", OnRebalance: "replace", OnMaintenance: "ignore", OnDrainTimeout: "wait",
	}, w.asked)
	require.Contains(t, r.out, "group default/batch would be made:")

	r = w.run("group", "create", "batch", "--template", "vm")
	require.Zero(t, r.code, r.errors)
	same(t, &apiv1.CreateGroupRequest{Group: "batch", Template: "vm"}, w.asked)
	require.Contains(t, r.out, "group default/batch is made:")

	for _, bad := range [][]string{
		{"group", "create"}, {"group", "create", "x", "--var", "novalue"}, {"group", "create", "x", "--var", "=value"}, {"group", "create", "x", "--args", "@/nowhere"},
		{"group", "create", "x", "--size", "many"}, {"group", "update", "web", "--max-price", "0.05"}, {"group", "update", "web", "--on-demand-base", "1"},
	} {
		require.Equal(t, 2, w.run(bad...).code, bad)
	}
}

// TestReplacedAsAWhole: a setting of what is replaced as a whole is not accepted alone, since it
// would end the others.
func TestReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.furnish()
	for whole, flags := range map[string][]string{
		"--market":    {"max-price=1", "fallback=on-demand", "fallback-after=1m", "return-after=1m", "on-demand-base=1", "fallback-reclaims=1", "fallback-window=1m"},
		"--warm-pool": {"warm-mode=running", "warm-max-age=1h", "warm-once"},
	} {
		for _, flag := range flags {
			for _, args := range [][]string{{"group", "update", "web"}, {"group", "create", "new", "--template", "vm"}} {
				r := w.run(append(args, "--"+flag)...)
				require.Equal(t, 2, r.code, flag)
				require.Contains(t, r.errors, "add "+whole+": it is replaced as a whole")
			}
		}
	}
	require.Nil(t, w.asked)
}

// TestUpdateSendsWhatIsGiven: each flag is in the request, and nothing else.
func TestUpdateSendsWhatIsGiven(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.furnish()
	w.set(func() { w.groups[0].Owner = "uid-1" })
	for flags, want := range map[string]*apiv1.UpdateGroupRequest{
		"":                             {},
		"--dry-run --size 0":           {DryRun: true, Size: proto.Int32(0)},
		"--remove-first a,b":           {RemoveFirst: []string{"a", "b"}},
		"--drain-timeout 0s":           {DrainTimeout: durationpb.New(0)},
		"--load-balancer a,b":          {LoadBalancers: &apiv1.Strings{Values: []string{"a", "b"}}},
		"--subnet-pool edge":           {SubnetPool: proto.String("edge")},
		"--order cheapest":             {Order: "cheapest"},
		"--owner uid-2":                {Owner: "uid-2"},
		"--owner=":                     {Owner: "uid-1", Release: true},
		"--warm-pool 0":                {WarmPool: &apiv1.WarmPool{Return: proto.Bool(true)}},
		"--spread-by zone":             {Spread: &apiv1.Spread{By: "zone"}},
		"--halt-after 0":               {Rollout: &apiv1.Rollout{HaltAfter: proto.Int32(0)}},
		"--instance-type=":             {InstanceTypes: &apiv1.Strings{}},
		"--market spot":                {Market: &apiv1.Market{Type: "spot"}},
		"--on-drain-timeout wait":      {OnDrainTimeout: "wait"},
		"--on-maintenance ignore":      {OnMaintenance: "ignore"},
		"--on-rebalance cordon":        {OnRebalance: "cordon"},
		"--on-reclaim cordon":          {OnReclaim: "cordon"},
		"--protect":                    {Protect: proto.Bool(true)},
		"--template other":             {Template: proto.String("other")},
		"--size 1 --template vm -y":    {Size: proto.Int32(1), Template: proto.String("vm")},
		"--max-surge 1 --min-ready 1s": {Rollout: &apiv1.Rollout{MaxSurge: "1", MinReady: durationpb.New(time.Second)}},
		"--market spot --fallback none --fallback-window 1m": {Market: &apiv1.Market{Type: "spot", FallbackWhen: &apiv1.ReclaimLimit{Window: durationpb.New(time.Minute)}}},
		"--warm-pool 2 --warm-mode hibernated --warm-max-age 24h --warm-once": {
			WarmPool: &apiv1.WarmPool{Size: 2, Mode: "hibernated", MaxAge: durationpb.New(24 * time.Hour), Return: proto.Bool(false)}},
	} {
		want.Tenant, want.Group = "blue", "db" // the tenant is found by the name
		r := w.run(append([]string{"group", "update", "db"}, strings.Fields(flags)...)...)
		require.Zero(t, r.code, "%s: %s", flags, r.errors)
		same(t, want, w.asked)
	}
	w.web(func(g *apiv1.Group) { g.Size = 3 })
	require.Equal(t, 2, w.run("group", "update", "web", "--size", "1", "--template", "vm").code, "fewer members are asked about")
}

func TestGroupUpdate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.furnish()
	w.web(func(g *apiv1.Group) { g.Size = 3 })
	r := w.run("group", "update", "web", "--instance-type", "a", "--var", "x=1", "--args", "{}", "--protect=false", "--template", "vm", "--max-surge", "2")
	require.Zero(t, r.code, r.errors)
	same(t, &apiv1.UpdateGroupRequest{
		Tenant: "default", Group: "web", InstanceTypes: &apiv1.Strings{Values: []string{"a"}}, Vars: &apiv1.Vars{Values: map[string]string{"x": "1"}},
		Args: proto.String("{}"), Protect: proto.Bool(false), Template: proto.String("vm"), Rollout: &apiv1.Rollout{MaxSurge: "2"},
	}, w.asked)
	r = w.run("group", "update", "web", "--market", "on-demand")
	require.Zero(t, r.code, r.errors)
	same(t, &apiv1.UpdateGroupRequest{Tenant: "default", Group: "web", Market: &apiv1.Market{Type: "on-demand"}}, w.asked)
	r = w.run("group", "update", "web", "--var", "")
	require.Zero(t, r.code, r.errors)
	same(t, &apiv1.UpdateGroupRequest{Tenant: "default", Group: "web", Vars: &apiv1.Vars{}}, w.asked)
	require.Equal(t, 3, w.run("group", "update", "nobody", "--size", "1").code)

	w.web(func(g *apiv1.Group) { g.Size = 3 })
	w.done()
	r = w.run("group", "update", "web", "--size", "1")
	require.Equal(t, 2, r.code, "fewer members are asked about")
	require.Empty(t, w.done())
	require.Zero(t, w.run("group", "update", "web", "--size", "1", "-y").code)
	require.Equal(t, []string{"size default/web 1 dry=false"}, w.done())
}

func TestGroupDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.furnish()
	w.web(func(g *apiv1.Group) { g.IsStatic = false })
	r := w.run("group", "delete", "web")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.errors, "drains and deletes")
	r = w.run("group", "delete", "web", "-y", "-o", "json")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, `"removing": true`)
	w.web(func(g *apiv1.Group) {
		g.Removing, g.Vars, g.Rollout = true, map[string]string{"b": "2", "a": "1"}, &apiv1.Rollout{MaxSurge: "1"}
	})
	require.Contains(t, w.run("group", "list").out, "api, going")
	got := w.run("group", "get", "web")
	require.Contains(t, got.out, "api, going")
	require.Contains(t, got.out, "a=1, b=2")
	require.Equal(t, 3, w.run("group", "get", "nobody").code)
}

func TestInstanceCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.furnish()
	w.web(func(g *apiv1.Group) { g.Kind = "web" })
	r := w.run("instance", "create", "web", "--instance-type", "large", "--var", "x=1", "--args", `{"a": 1}`)
	require.Zero(t, r.code, r.errors)
	req := w.asked.(*apiv1.CreateInstanceRequest)
	id, err := nstance.ParseInstanceID(req.GetId())
	require.NoError(t, err)
	require.Equal(t, nstance.InstanceKind("web"), id.Kind())
	require.WithinDuration(t, time.Now(), id.Time(), time.Minute)
	same(t, &apiv1.CreateInstanceRequest{
		Id: string(id), Tenant: "default", Group: "web", InstanceType: "large", Vars: map[string]string{"x": "1"}, Args: `{"a": 1}`,
	}, req)
	require.True(t, strings.HasPrefix(r.out, "instance "+string(id)+" of group default/web is provisioning"), r.out)
	r = w.run("instance", "create", "web", "--id", string(webA), "--dry-run")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "would be made")
	require.Equal(t, string(webA), w.asked.(*apiv1.CreateInstanceRequest).GetId())
	require.Equal(t, 3, w.run("instance", "create", "nobody").code)
	require.Zero(t, w.run("instance", "create", "db", "--id", string(webA), "--dry-run").code)
	got := w.asked.(*apiv1.CreateInstanceRequest)
	require.Equal(t, "blue", got.GetTenant(), "of the group that has the name")
	require.True(t, got.GetDryRun())
}
