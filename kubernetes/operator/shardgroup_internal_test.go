package operator

import (
	"cmp"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// notOfGroup are fields of a spec that are no part of its group at the shard: they say where it is,
// or are sent beside other changes.
var notOfGroup = map[string]bool{"Group": true, "Shard": true, "RemoveFirst": true, "BootstrapSecretName": true}

// fullShardGroup has every field of a spec, each other than in a second one.
func fullShardGroup(second bool) infrav1.NstanceShardGroupSpec {
	pick := func(a, b string) string {
		if second {
			return b
		}
		return a
	}
	size, drain := int32(3), 7*time.Minute
	if second {
		size, drain = 5, 9*time.Minute
	}
	return infrav1.NstanceShardGroupSpec{
		Group: "web", Shard: "a", Size: &size, RemoveFirst: []string{"web-1"}, BootstrapSecretName: pick("data", "more"),
		Template: pick("vm", "gpu"), SubnetPool: pick("inner", "outer"), DrainTimeout: &metav1.Duration{Duration: drain},
		OnDrainTimeout: infrav1.DrainTimeoutAction(pick("wait", "delete")),
		Shape: infrav1.Shape{
			InstanceType: pick("small", "large"), Vars: map[string]string{"colour": pick("blue", "red")}, LoadBalancers: []string{pick("front", "back")},
			Spot: &infrav1.SpotOptions{MaxPrice: pick("0.5", "0.7")},
		},
	}
}

// eachField calls do with every field of a struct, those of embedded ones by themselves.
func eachField(v reflect.Value, do func(name string, f reflect.Value)) {
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Anonymous {
			eachField(v.Field(i), do)
		} else {
			do(f.Name, v.Field(i))
		}
	}
}

// accepted is the group that a shard has after a request.
func accepted(t *testing.T, req *apiv1.CreateGroupRequest) *apiv1.Group {
	out := &apiv1.Group{}
	req.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		same := out.ProtoReflect().Descriptor().Fields().ByName(f.Name())
		require.NotNil(t, same, "a group does not show %s", f.Name())
		out.ProtoReflect().Set(same, v)
		return true
	})
	return out
}

// TestGroupOfEveryField: every field of a spec is in the group that is made for it, and a change of
// any one of them, and of nothing else, changes that group.
func TestGroupOfEveryField(t *testing.T) {
	full, second := fullShardGroup(false), fullShardGroup(true)
	eachField(reflect.ValueOf(full), func(name string, f reflect.Value) {
		require.False(t, f.IsZero(), "the test must set %s", name)
	})
	req := newGroup(&infrav1.NstanceShardGroup{Spec: full})
	want := &apiv1.CreateGroupRequest{
		Group: "web", Template: "vm", Size: ptr.To(int32(3)), SubnetPool: "inner", DrainTimeout: req.GetDrainTimeout(), OnDrainTimeout: "wait",
		InstanceTypes: []string{"small"}, Vars: map[string]string{"colour": "blue"}, LoadBalancers: []string{"front"}, Market: &apiv1.Market{Type: "spot", MaxPrice: "0.5"},
	}
	require.True(t, proto.Equal(want, req), "%v", req)
	require.Equal(t, 7*time.Minute, req.GetDrainTimeout().AsDuration())
	has := accepted(t, req)
	require.Nil(t, changes(&infrav1.NstanceShardGroup{Spec: full}, has), "nothing is left to change")
	require.Nil(t, newGroup(&infrav1.NstanceShardGroup{}).GetDrainTimeout(), "which is the template's")
	require.Empty(t, newGroup(&infrav1.NstanceShardGroup{}).GetInstanceTypes(), "likewise")
	require.Equal(t, "on-demand", newGroup(&infrav1.NstanceShardGroup{}).GetMarket().GetType())

	static := map[string]bool{"Size": true, "InstanceType": true, "Vars": true}
	sends := map[string]string{"Spot": "market"} // where it has another name in the request
	eachField(reflect.ValueOf(&full).Elem(), func(name string, f reflect.Value) {
		if notOfGroup[name] {
			return
		}
		t.Run(name, func(t *testing.T) {
			before := reflect.New(f.Type()).Elem()
			before.Set(f)
			defer f.Set(before)
			eachField(reflect.ValueOf(second), func(other string, v reflect.Value) {
				if other == name {
					f.Set(v)
				}
			})
			req := changes(&infrav1.NstanceShardGroup{Spec: full}, has)
			require.NotNil(t, req, "a change of it is lost")
			var fields []string
			req.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
				if f.Name() != "group" && f.Name() != "remove_first" {
					fields = append(fields, f.JSONName())
				}
				return true
			})
			require.Len(t, fields, 1)
			require.Equal(t, strings.ToLower(cmp.Or(sends[name], name)), strings.ToLower(fields[0]))
			require.Equal(t, name == "Size", len(req.GetRemoveFirst()) > 0)

			ofShard := proto.CloneOf(has)
			ofShard.IsStatic = true
			require.Equal(t, static[name], changes(&infrav1.NstanceShardGroup{Spec: full}, ofShard) != nil, "of the shard's own configuration")

			if f.Kind() != reflect.Pointer || name == "DrainTimeout" { // absent: what the group has stays
				f.SetZero()
				left := changes(&infrav1.NstanceShardGroup{Spec: full}, has)
				require.Equal(t, name == "Vars", left != nil, "absent")
			}
		})
	})
	t.Run("on demand", func(t *testing.T) {
		spec := fullShardGroup(false)
		spec.Spot = nil
		require.Equal(t, "on-demand", changes(&infrav1.NstanceShardGroup{Spec: spec}, has).GetMarket().GetType())
		anyPrice := proto.CloneOf(has)
		anyPrice.Market.MaxPrice = ""
		require.Equal(t, "on-demand", changes(&infrav1.NstanceShardGroup{Spec: spec}, anyPrice).GetMarket().GetType())
	})
}

// TestGroupOfPool: what both a pool and its groups may say is the same in both.
func TestGroupOfPool(t *testing.T) {
	ofPool := map[string]bool{"Group": true, "ProviderIDList": true}
	full := fullShardGroup(false)
	var p infrav1.NstanceMachinePoolSpec
	shared := 0
	eachField(reflect.ValueOf(&p).Elem(), func(name string, f reflect.Value) {
		eachField(reflect.ValueOf(full), func(other string, v reflect.Value) {
			if name == other && !ofPool[name] && f.Type() == v.Type() {
				f.Set(v)
				shared++
			}
		})
	})
	require.GreaterOrEqual(t, shared, 8)
	var g infrav1.NstanceShardGroupSpec
	shareSpec(&g, &p)
	eachField(reflect.ValueOf(g), func(name string, f reflect.Value) {
		eachField(reflect.ValueOf(p), func(other string, v reflect.Value) {
			if name == other && !ofPool[name] && f.Type() == v.Type() {
				require.Equal(t, v.Interface(), f.Interface(), "%s of the pool is lost", name)
			}
		})
	})
}

// TestShowsGroup: every number that a shard tells of a group is in the status.
func TestShowsGroup(t *testing.T) {
	sg := &infrav1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Generation: 7}}
	sg.Status.Holds = []infrav1.Hold{{Kind: "old"}}
	now := &apiv1.Group{Size: 4, Ready: 3, Booting: 2, Leaving: 1, Holds: []*apiv1.Hold{{Kind: "halted", Reason: "it failed"}, {Kind: "frozen"}}}
	show(sg, now)
	require.Equal(t, []int32{4, 3, 2, 1}, []int32{*sg.Status.Size, *sg.Status.Ready, *sg.Status.Booting, *sg.Status.Leaving})
	require.Equal(t, []infrav1.Hold{{Kind: "halted", Message: "it failed"}, {Kind: "frozen"}}, sg.Status.Holds)
	require.EqualValues(t, 7, sg.Status.ObservedGeneration)
	require.True(t, conditions.IsTrue(sg, infrav1.ConditionSynced))
	require.True(t, conditions.IsFalse(sg, "Ready"))
	require.Equal(t, "3 of 4 machines are ready", conditions.GetMessage(sg, "Ready"))
	now.Ready = 4
	show(sg, now)
	require.True(t, conditions.IsTrue(sg, "Ready"))
}

// TestFollowsGroup: nothing is asked for a group of another owner, nor for one that the shard does not have
// and nothing says what it is made from. What the shard refuses is asked for again after a while.
func TestFollowsGroup(t *testing.T) {
	for name, c := range map[string]struct {
		now      *apiv1.Group
		template string
		err      error
		want     []string
		reason   string
		again    time.Duration
		failed   bool
	}{
		"ours":                      {&apiv1.Group{Owner: "us", IsStatic: true}, "", nil, []string{"update"}, reasonSynced, 0, false},
		"another owner's":           {&apiv1.Group{Owner: "them", IsStatic: true}, "", nil, nil, reasonOtherOwner, retryOwned, false},
		"none, and no template":     {nil, "", nil, nil, reasonNoGroup, 0, false},
		"none":                      {nil, "vm", nil, []string{"create"}, reasonSynced, 0, false},
		"it is refused":             {nil, "vm", nstance.Errorf(nstance.Invalid, "no"), []string{"create"}, reasonNotAccepted, retryRefused, false},
		"it is not permitted":       {nil, "vm", nstance.Errorf(nstance.Denied, "no"), []string{"create"}, reasonNotAccepted, retryRefused, false},
		"another owner was first":   {nil, "vm", nstance.Errorf(nstance.Conflict, "no"), []string{"create"}, reasonNotAccepted, retryOwned, false},
		"the shard does not answer": {nil, "vm", nstance.Errorf(nstance.Unavailable, "no"), []string{"create"}, reasonNotAccepted, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			sg, api := &infrav1.NstanceShardGroup{Spec: infrav1.NstanceShardGroupSpec{Group: "web", Size: ptr.To[int32](1), Template: c.template}}, &groupAPI{err: c.err}
			result, err := (&shardGroupController{}).follow(t.Context(), sg, shardCopy{api: api, now: c.now, owner: "us"})
			require.Equal(t, c.failed, err != nil)
			require.Equal(t, c.want, api.asked)
			require.Equal(t, c.reason, conditions.GetReason(sg, infrav1.ConditionSynced))
			require.Equal(t, c.again, result.RequeueAfter)
		})
	}
}
