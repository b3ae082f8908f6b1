package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// twoArchs are options of a cloud with instance types of both architectures.
var twoArchs = simcloud.Options{Types: map[string][]nstance.Arch{"small": {nstance.AMD64}, "large": {nstance.AMD64}, "arm": {nstance.ARM64}}}

// awaitCounted waits until n members of a group count.
func (w *world) awaitCounted(api apiv1.OperatorServiceClient, group string, n int32) {
	w.Helper()
	require.Eventually(w, func() bool { g := w.getGroup(api, group); return g.GetReady()+g.GetBooting() == n }, eventually, 5*time.Millisecond)
}

// TestInstanceTypesOfAnotherArchitecture: they are refused before anything is
// written, also types that were never looked up.
func TestInstanceTypesOfAnotherArchitecture(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{cloud: twoArchs, webSize: 1})
	api := w.admin()
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	for name, ask := range map[string]func() error{
		"update": func() error {
			_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", InstanceType: proto.String("arm")})
			return err
		},
		"several": func() error {
			_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", InstanceTypes: &apiv1.Strings{Values: []string{"large", "arm"}}})
			return err
		},
		"create": func() error {
			_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1), InstanceTypes: []string{"arm"}})
			return err
		},
		"plan": func() error {
			_, err := api.Plan(t.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: "web", InstanceType: proto.String("arm")}})
			return err
		},
		"instance": func() error {
			_, err := api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: string(id), Group: "web", InstanceType: "arm"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := ask()
			requireFieldError(t, err, nstance.Invalid, "instance_type")
			require.ErrorContains(t, err, `"arm" does not run amd64`)
		})
	}
	require.NotContains(t, w.storedGroups(), "default/batch")
	require.NotContains(t, w.storedGroups()["default/web"], "instance_type")
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", InstanceType: proto.String("large")})
	require.NoError(t, err)
}

// TestPendingDefinition: a group whose definition is pending keeps the last one, under
// the next leader too, takes its size and drain timeout, and has a hold that says why.
func TestPendingDefinition(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	w := newWorld(t, setup{store: store, cloud: twoArchs, webSize: 1})
	api := w.admin()
	w.awaitCounted(api, "web", 1)
	hash := w.getGroup(api, "web").GetInfraHash()
	text := replaceOnce(t, defaultConfig(1), `"instance_type": "small"`, `"instance_types": ["small", "arm"]`)
	w.applyConfig(text)
	h := w.awaitHold(api, "web", plan.HoldPending)
	require.Contains(t, h.GetReason(), `"arm" does not run amd64`)
	require.NotNil(t, h.GetSince())

	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(3)})
	require.NoError(t, err)
	w.awaitCounted(api, "web", 3)
	w.applyConfig(replaceOnce(t, text, `"web": {"template"`, `"web": {"drain_timeout": "7m", "template"`))
	require.Equal(t, 7*time.Minute, w.getGroup(api, "web").GetDrainTimeout().AsDuration())
	require.Equal(t, hash, w.getGroup(api, "web").GetInfraHash(), "what it is made from stays")
	require.Equal(t, h.GetSince(), w.awaitHold(api, "web", plan.HoldPending).GetSince())

	require.NoError(t, w.stopServer())
	next := newWorld(t, setup{store: store, provider: w.cloud, config: text})
	next.cloud.Close()
	next.cloud = w.cloud
	api = next.admin()
	next.awaitHold(api, "web", plan.HoldPending)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(4)})
	require.NoError(t, err)
	next.awaitCounted(api, "web", 4)
	require.Equal(t, hash, next.getGroup(api, "web").GetInfraHash(), "under another leader, too")

	next.applyConfig(defaultConfig(1))
	require.Empty(t, next.getGroup(api, "web").GetHolds())
}

// TestInvalidOverride: a dynamic group loses the subnet pool that its override names.
// It keeps its definition, under the next leader too, and its size can be changed.
func TestInvalidOverride(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	w := newWorld(t, setup{store: store, shard: pools, webSize: 0})
	api := w.admin()
	_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(2), SubnetPool: "open", DrainTimeout: durationpb.New(7 * time.Minute)})
	require.NoError(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(3)})
	require.NoError(t, err)
	w.awaitCounted(api, "batch", 3)
	hash := w.getGroup(api, "batch").GetInfraHash()
	text := defaultConfig(0)
	w.applyConfig(text)
	require.Contains(t, w.awaitHold(api, "batch", plan.HoldPending).GetReason(), `subnet pool "open" is not in shard.subnet_pools`)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(4)})
	require.NoError(t, err)
	w.awaitCounted(api, "batch", 4)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(-1)})
	requireFieldError(t, err, nstance.Invalid, "size")
	require.NoError(t, w.stopServer())

	machines := w.cloud.Machines()
	asked := w.cloud.Count(simcloud.OpCreate)
	next := newWorld(t, setup{store: store, provider: w.cloud, config: text})
	next.cloud.Close()
	next.cloud = w.cloud
	api = next.admin()
	next.awaitHold(api, "batch", plan.HoldPending)
	i := slices.IndexFunc(machines, func(m nstance.Machine) bool { return m.Group == "batch" })
	_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(machines[i].ID)})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.cloud.Count(simcloud.OpCreate) > asked }, eventually, 5*time.Millisecond, "a loss is replaced")
	next.awaitCounted(api, "batch", 4)
	g := next.getGroup(api, "batch")
	require.Equal(t, hash, g.GetInfraHash())
	require.Equal(t, 7*time.Minute, g.GetDrainTimeout().AsDuration())
	for _, m := range slices.Delete(machines, i, i+1) {
		_, err := w.cloud.Get(t.Context(), m.ID)
		require.NoError(t, err, "no other member goes")
	}

	next.applyConfig(fmt.Sprintf(configuration, strings.ReplaceAll(pools, "open", "other"), 0))
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", SubnetPool: proto.String("third")})
	requireFieldError(t, err, nstance.Invalid, "subnet_pool")
	dry, err := api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "batch", DryRun: true})
	require.NoError(t, err)
	require.Equal(t, 7*time.Minute, dry.GetGroup().GetDrainTimeout().AsDuration())
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", SubnetPool: proto.String("other")})
	require.NoError(t, err, "what is invalid can be corrected")
	require.Empty(t, next.getGroup(api, "batch").GetHolds())
	next.awaitCounted(api, "batch", 4)

	next.applyConfig(text)
	next.awaitHold(api, "batch", plan.HoldPending)
	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Times: -1, Code: nstance.Internal})
	_, err = api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "batch"})
	require.NoError(t, err)
	require.True(t, next.getGroup(api, "batch").GetRemoving())
	require.Equal(t, 7*time.Minute, next.getGroup(api, "batch").GetDrainTimeout().AsDuration(), "the drain timeout stays")
	w.cloud.ClearFaults()
}

// TestGroupWithoutDefinition: a group whose first definition is pending is listed with
// the reason, can be changed and deleted, and creates nothing.
func TestGroupWithoutDefinition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: configWithTemplate(0, `"image": "base", `, `"images": {"base": {"owner": "me", "name": "base-*"}}, `)})
	api := w.admin()
	create := func(name string) *apiv1.Group {
		resp, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: name, Template: "vm", Size: proto.Int32(2), DrainTimeout: durationpb.New(time.Minute)})
		require.NoError(t, err)
		return resp.GetGroup()
	}
	g := create("batch")
	require.Len(t, g.GetHolds(), 1)
	require.Equal(t, string(plan.HoldPending), g.GetHolds()[0].GetKind())
	require.Contains(t, g.GetHolds()[0].GetReason(), "image base is not known yet")
	require.EqualValues(t, 2, g.GetSize())
	require.True(t, w.groupListed(api, "batch"))
	require.True(t, w.groupListed(api, "web"), "so is one of the configuration")
	_, err := api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "batch"})
	require.NoError(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(1)})
	require.NoError(t, err)
	require.EqualValues(t, 1, w.getGroup(api, "batch").GetSize())

	foretold := func() []string {
		resp, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "later", Template: "vm", Size: proto.Int32(1), DryRun: true})
		require.NoError(t, err)
		return holdReasons(resp.GetGroup(), plan.HoldPending)
	}
	require.Len(t, foretold(), 1)
	require.Contains(t, foretold()[0], "image base is not known yet")
	dry, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(5), DryRun: true})
	require.NoError(t, err)
	require.Equal(t, w.awaitHold(api, "batch", plan.HoldPending).GetSince(), dry.GetGroup().GetHolds()[0].GetSince(), "it goes on")
	gone, err := api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "batch", DryRun: true})
	require.NoError(t, err)
	require.Empty(t, holdReasons(gone.GetGroup(), plan.HoldPending), "a group that is removed needs no definition")

	create("doomed")
	_, err = api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "doomed"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !w.groupListed(api, "doomed") && w.storedGroups()["default/doomed"] == nil }, eventually, 5*time.Millisecond)

	w.cloud.SetImages(simcloud.Image{ID: "img-1", Owner: "me", Name: "base-1"})
	_, err = api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.NoError(t, err)
	w.awaitCounted(api, "batch", 1)
	require.Empty(t, foretold())
	require.Eventually(t, func() bool {
		return w.getGroup(api, "batch").GetPaused() && len(w.getGroup(api, "batch").GetHolds()) == 1
	}, eventually, 5*time.Millisecond)
}

// holdReasons returns the reasons of a group's holds of a kind.
func holdReasons(g *apiv1.Group, kind plan.HoldKind) (out []string) {
	for _, h := range g.GetHolds() {
		if h.GetKind() == string(kind) {
			out = append(out, h.GetReason())
		}
	}
	return out
}

// TestNewTypeIsLookedUpFirst: new instance types are looked up before the
// configuration is in force, so no definition is pending meanwhile.
func TestNewTypeIsLookedUpFirst(t *testing.T) {
	t.Parallel()
	cloud := twoArchs
	cloud.Latency = simcloud.Delay{Min: 100 * time.Millisecond}
	w := newWorld(t, setup{webSize: 1, cloud: cloud})
	api := w.admin()
	w.awaitCounted(api, "web", 1)
	stream, err := api.WatchGroups(t.Context(), &apiv1.WatchGroupsRequest{Group: "web"})
	require.NoError(t, err)
	w.applyConfig(replaceOnce(t, defaultConfig(1), `"instance_type": "small"`, `"instance_type": "large"`))
	for {
		m, err := stream.Recv()
		require.NoError(t, err)
		g := m.GetChanged().GetGroup()
		if g == nil {
			g = m.GetSnapshot()
		}
		require.Empty(t, holdReasons(g, plan.HoldPending))
		if len(g.GetInstanceTypes()) > 0 && g.GetInstanceTypes()[0] == "large" {
			return
		}
	}
}

// TestGroupWithoutTemplate: a group without template and definition shows the reason
// and can be deleted.
func TestGroupWithoutTemplate(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	_, err := store.PutIfAbsent(t.Context(), layout.GroupsKey(zone), []byte(`{"format": "1.0", "groups": {"default/lost": {"template": "gone", "size": 2, "dynamic": true}}}`))
	require.NoError(t, err)
	w := newWorld(t, setup{store: store})
	api := w.admin()
	require.True(t, strings.Contains(w.awaitHold(api, "lost", plan.HoldPending).GetReason(), `template "gone" is not defined`))
	_, err = api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "lost"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !w.groupListed(api, "lost") && w.storedGroups()["default/lost"] == nil }, eventually, 5*time.Millisecond)
}

// TestUnknownTypesAreAccepted: a type is not refused while the provider does not answer
// which architectures it runs.
func TestUnknownTypesAreAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: fmt.Sprintf(configuration, `"image_refresh": "1m",`, 1), cloud: twoArchs})
	api := w.admin()
	w.awaitCounted(api, "web", 1)
	w.cloud.Inject(simcloud.Fault{Op: "type_archs", Times: -1, Code: nstance.Denied})
	_, err := api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web"})
	require.NoError(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", InstanceType: proto.String("arm")})
	require.NoError(t, err)
	w.cloud.ClearFaults()
	_, err = api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.NoError(t, err)
	w.awaitHold(api, "web", plan.HoldPending)
}
