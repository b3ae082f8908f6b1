package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/server"
)

// everyField fails unless every field of a message is set, to something else than the
// zero value where it has presence, but for those that are excepted.
func everyField(t *testing.T, m protoreflect.Message, except ...protoreflect.Name) {
	t.Helper()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if strings.Contains(string(f.FullName()), "google.protobuf") {
			continue
		}
		excepted := false
		for _, name := range except {
			excepted = excepted || f.Name() == name
		}
		if excepted {
			continue
		}
		require.True(t, m.Has(f), "%s: the test must set every field", f.FullName())
		if f.Kind() == protoreflect.MessageKind && !f.IsMap() && !f.IsList() {
			everyField(t, m.Get(f).Message(), except...)
		}
	}
}

// sameFields fails unless what a request asks for is what the group has.
func sameFields(t *testing.T, asked, has proto.Message) {
	t.Helper()
	a, h := asked.ProtoReflect(), has.ProtoReflect()
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		g := h.Descriptor().Fields().ByName(f.Name())
		if g == nil || !a.Has(f) {
			continue
		}
		show := func(m protoreflect.Message, f protoreflect.FieldDescriptor) string {
			one := m.New()
			one.Set(f, m.Get(f))
			return prototext.MarshalOptions{}.Format(one.Interface())
		}
		want, got := a.Get(f), h.Get(g)
		switch v := a.Get(f).Message; {
		case f.Kind() == protoreflect.MessageKind && !f.IsMap() && !f.IsList() && strings.HasSuffix(string(f.Message().Name()), "s") && f.Message().Fields().ByName("values") != nil:
			want = v().Get(f.Message().Fields().ByName("values")) // Strings and Vars
		}
		require.True(t, want.Equal(got), "%s: asked for %s, has %s", f.Name(), show(a, f), show(h, g))
	}
}

// TestEveryFieldOfAGroup: what is asked of a group is what it has, as it was created, after
// a change of every field, and under the next leader.
func TestEveryFieldOfAGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: strings.NewReplacer("%s", `"subnet_pools": {"a": ["sn-a"], "b": ["sn-b"]}, "dynamic_subnet_pools": ["a", "b"],`, "%d", "0", `"templates"`, `"load_balancers": {"l1": {"id": "lb-1"}, "l2": {"id": "lb-2"}}, "templates"`).Replace(configuration)})
	api := w.admin()
	exempt := []protoreflect.Name{"tenant", "dry_run", "bootstrap_data", "remove_first", "release"}

	created := &apiv1.CreateGroupRequest{
		Group: "job", Template: "vm", Size: new(int32(3)), InstanceTypes: []string{"small", "large"}, SubnetPool: "a", Vars: map[string]string{"colour": "blue", "x": "1"},
		Args: `{"labels":{"a":"1"}}`, LoadBalancers: []string{"l1"}, DrainTimeout: durationpb.New(7 * time.Minute), Protect: true,
		Rollout: &apiv1.Rollout{MaxSurge: "2", MinReady: durationpb.New(3 * time.Second), HaltAfter: new(int32(5))},
		Market: &apiv1.Market{
			Type: "spot", MaxPrice: "0.5", Fallback: "on-demand", FallbackAfter: durationpb.New(6 * time.Minute), ReturnAfter: durationpb.New(50 * time.Minute), OnDemandBase: "1",
			FallbackWhen: &apiv1.ReclaimLimit{Reclaims: 4, Window: durationpb.New(20 * time.Minute)},
		},
		Spread: &apiv1.Spread{By: "type", MaxShare: "60%"}, OnReclaim: "cordon", OnRebalance: "replace", OnMaintenance: "ignore", OnDrainTimeout: "wait", Order: "cheapest",
		WarmPool: &apiv1.WarmPool{Size: 2, Mode: "stopped", MaxAge: durationpb.New(5 * time.Hour), Return: new(false)}, Owner: "one",
	}
	everyField(t, created.ProtoReflect(), exempt...)
	_, err := api.CreateGroup(t.Context(), created)
	require.NoError(t, err)
	sameFields(t, created, w.getGroup(api, "job"))

	updated := &apiv1.UpdateGroupRequest{
		Group: "job", Template: new("vm"), Size: new(int32(4)), InstanceTypes: &apiv1.Strings{Values: []string{"large"}}, SubnetPool: new("b"), Vars: &apiv1.Vars{Values: map[string]string{"colour": "green", "y": "2"}},
		Args: new(`{"labels":{"b":"2"}}`), LoadBalancers: &apiv1.Strings{Values: []string{"l2"}}, DrainTimeout: durationpb.New(8 * time.Minute), Protect: new(false),
		Rollout: &apiv1.Rollout{MaxSurge: "30%", MinReady: durationpb.New(4 * time.Second), HaltAfter: new(int32(6))},
		Market: &apiv1.Market{
			Type: "spot", MaxPrice: "0.7", Fallback: "on-demand", FallbackAfter: durationpb.New(9 * time.Minute), ReturnAfter: durationpb.New(70 * time.Minute), OnDemandBase: "25%",
			FallbackWhen: &apiv1.ReclaimLimit{Reclaims: 3, Window: durationpb.New(30 * time.Minute)},
		},
		Spread: &apiv1.Spread{By: "pool", MaxShare: "70%"}, OnReclaim: "drain", OnRebalance: "cordon", OnMaintenance: "replace", OnDrainTimeout: "delete", Order: "steadiest",
		WarmPool: &apiv1.WarmPool{Size: 1, Mode: "hibernated", MaxAge: durationpb.New(6 * time.Hour), Return: new(true)}, Owner: "two",
	}
	everyField(t, updated.ProtoReflect(), append(exempt, "instance_type")...) // which excludes instance_types
	_, err = api.UpdateGroup(t.Context(), updated)
	require.NoError(t, err)
	sameFields(t, updated, w.getGroup(api, "job"))

	t.Run("a stand-by member returns to its pool unless that is refused", func(t *testing.T) {
		for _, c := range []struct {
			asked *bool
			want  bool
		}{{new(false), false}, {nil, true}, {new(false), false}, {new(true), true}} {
			_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "job", WarmPool: &apiv1.WarmPool{Size: 1, Return: c.asked}})
			require.NoError(t, err)
			require.Equal(t, c.want, w.getGroup(api, "job").GetWarmPool().GetReturn())
		}
	})
	_, err = api.UpdateGroup(t.Context(), updated)
	require.NoError(t, err)
	h := w.registerClient("admin", "default")
	w.startSuccessor(server.Options{})
	require.Eventually(t, func() bool { return groupsKnown(w.server) }, eventually, time.Millisecond)
	sameFields(t, updated, w.getGroup(h.operatorAPI(), "job"))

	// One type alone is another field of the same setting.
	_, err = h.operatorAPI().UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "job", InstanceType: new("small")})
	require.NoError(t, err)
	require.Equal(t, []string{"small"}, w.getGroup(h.operatorAPI(), "job").GetInstanceTypes())
}
