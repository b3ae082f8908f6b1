package operator

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// A diary is an API server that has one Machine, and notes what is changed.
type diary struct {
	client.Client
	stored  *clusterv1.Machine // nil: there is none
	patches []map[string]any
	dropped []string
}

func (d *diary) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if m, ok := obj.(*clusterv1.Machine); ok && d.stored != nil {
		d.stored.DeepCopyInto(m)
		return nil
	}
	if nc, ok := obj.(*infrav1.NstanceCluster); ok {
		nc.Annotations = map[string]string{infrav1.AnnotationOwner: "us"}
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (d *diary) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	var p map[string]any
	d.patches = append(d.patches, p)
	return json.Unmarshal(data, &d.patches[len(d.patches)-1])
}

func (d *diary) Delete(_ context.Context, obj client.Object, _ ...client.DeleteOption) error {
	switch obj.(type) {
	case *clusterv1.Machine:
		d.dropped = append(d.dropped, "Machine "+obj.GetName())
	case *infrav1.NstanceMachine:
		d.dropped = append(d.dropped, "NstanceMachine "+obj.GetName())
	}
	return nil
}

func (*diary) Status() client.SubResourceWriter { return noStatus{} }

// noStatus takes conditions, and forgets them.
type noStatus struct{ client.SubResourceWriter }

func (noStatus) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return nil
}

// field returns what the patches say of a field.
func (d *diary) field(path ...string) (value any, said bool) {
	for _, p := range d.patches {
		var at any = p
		for _, name := range path {
			m, _ := at.(map[string]any)
			if at, said = m[name]; !said {
				break
			}
		}
		if said {
			return at, true
		}
	}
	return nil, false
}

// A requestAPI records what a shard is asked for, and answers with an error, if there is one.
type requestAPI struct {
	apiv1.OperatorServiceClient
	err     error
	created []*apiv1.CreateInstanceRequest
	deleted []*apiv1.DeleteInstanceRequest
}

func (a *requestAPI) CreateInstance(_ context.Context, r *apiv1.CreateInstanceRequest, _ ...grpc.CallOption) (*apiv1.CreateInstanceResponse, error) {
	a.created = append(a.created, r)
	return &apiv1.CreateInstanceResponse{Instance: &apiv1.Instance{Id: r.GetId(), State: "pending"}}, a.err
}

func (a *requestAPI) DeleteInstance(_ context.Context, r *apiv1.DeleteInstanceRequest, _ ...grpc.CallOption) (*apiv1.DeleteInstanceResponse, error) {
	a.deleted = append(a.deleted, r)
	return &apiv1.DeleteInstanceResponse{}, a.err
}

// A machinePass is one pass over an NstanceMachine.
type machinePass struct {
	diary
	requestAPI
	*machineState
}

// newMachinePass is over an instance that was chosen a time ago.
func newMachinePass(t *testing.T, age time.Duration) *machinePass {
	id, err := nstance.NewInstanceID("nde", time.Now().Add(-age))
	require.NoError(t, err)
	p := &machinePass{machineState: &machineState{
		m:       &infrav1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", ResourceVersion: "7", Finalizers: []string{infrav1.Finalizer}}},
		machine: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}, cluster: &clusterv1.Cluster{},
		shard: shards.New(shards.Options{Name: "a"}),
	}}
	p.m.Spec.InstanceID, p.m.Spec.Shard, p.m.Spec.Group = string(id), "a", "web"
	p.machine.Spec.Bootstrap.DataSecretName = ptr.To("")
	p.cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	p.stored = p.machine
	return p
}

func (p *machinePass) controller() *machineController {
	p.api = &p.requestAPI
	return &machineController{Client: &p.diary, fleets: newFleets(nil, slog.New(slog.DiscardHandler)), secrets: &p.diary}
}

func deleting(obj client.Object) { obj.SetDeletionTimestamp(ptr.To(metav1.Now())) }

// TestChooseWaits: no instance is chosen before the cluster and the bootstrap data are there. The
// shard is the failure domain of the Machine.
func TestChooseWaits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*machinePass)
		reason string
		says   string
	}{
		"the cluster":          {func(p *machinePass) { p.cluster.Status.Initialization.InfrastructureProvisioned = nil }, reasonClusterInfra, ""},
		"the bootstrap data":   {func(p *machinePass) { p.machine.Spec.Bootstrap.DataSecretName = nil }, reasonBootstrap, ""},
		"the shard":            {func(*machinePass) {}, reasonShardLost, "no shard a"},
		"the failure domain's": {func(p *machinePass) { p.machine.Spec.FailureDomain = "b" }, reasonShardLost, "no shard b"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newMachinePass(t, 0)
			p.m.Spec.InstanceID = ""
			c.change(p)
			controller := p.controller()
			controller.fleets.byCluster[infrastructureOf(p.cluster)] = &fleet{}
			_, err := controller.choose(t.Context(), p.machineState)
			require.NoError(t, err)
			require.Equal(t, c.reason, conditions.GetReason(p.m, clusterv1.ReadyCondition))
			require.Contains(t, conditions.GetMessage(p.m, clusterv1.ReadyCondition), c.says)
			require.Empty(t, p.patches)
		})
	}
}

// TestSetInstance: another instance has another node, and is stored only on what was read.
func TestSetInstance(t *testing.T) {
	p := newMachinePass(t, 0)
	p.m.Spec.ProviderID = "sim:///former"
	require.NoError(t, p.controller().setInstance(t.Context(), p.m, "b", "new"))
	for _, c := range []struct {
		path []string
		want any
	}{
		{[]string{"metadata", "resourceVersion"}, "7"}, {[]string{"spec", "instanceID"}, "new"}, {[]string{"spec", "shard"}, "b"}, {[]string{"spec", "providerID"}, nil},
	} {
		got, said := p.field(c.path...)
		require.True(t, said, c.path)
		require.Equal(t, c.want, got, c.path)
	}
	require.Equal(t, "sim:///former", p.m.Spec.ProviderID, "until it is stored")
}

// TestCreateAnswers: what a shard refuses is shown, and asked again after a while. Anything else
// is trouble, which is tried again at once.
func TestCreateAnswers(t *testing.T) {
	for code, refused := range map[nstance.Code]bool{
		nstance.Invalid: true, nstance.Denied: true, nstance.NotFound: true, nstance.Conflict: true,
		nstance.Unavailable: false, nstance.Ambiguous: false, nstance.Throttled: false,
	} {
		t.Run(string(code), func(t *testing.T) {
			p := newMachinePass(t, 0)
			p.err = nstance.Errorf(code, "no")
			result, err := p.controller().create(t.Context(), p.machineState)
			require.Equal(t, refused, err == nil, "%v", err)
			require.Equal(t, refused, result.RequeueAfter == retryRefused)
			require.Equal(t, refused, conditions.IsTrue(p.m, infrav1.ConditionCreateFailed))
			require.Len(t, p.created, 1)
		})
	}
}

// TestEndedAlone: what becomes of an NstanceMachine outside of pools whose instance the shard does
// not have.
func TestEndedAlone(t *testing.T) {
	gone := func(kind nstance.CauseKind) shards.End {
		return shards.End{Deleted: true, Cause: kind, Message: string(kind) + ": m"}
	}
	for name, c := range map[string]struct {
		age    time.Duration
		change func(*machinePass)
		end    shards.End
		check  func(*testing.T, *machinePass, ctrl.Result)
	}{
		"a request may be on its way": {time.Second, nil, shards.End{}, func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Len(t, p.created, 1)
			require.Equal(t, p.m.Spec.InstanceID, p.created[0].GetId(), "the same machine")
		}},
		"its Machine is gone": {time.Second, func(p *machinePass) { p.machine = nil }, shards.End{}, func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Empty(t, p.created)
		}},
		"no shard takes its ID any more": {idLifetime + time.Minute, nil, shards.End{}, func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Empty(t, p.created)
			id, said := p.field("spec", "instanceID")
			require.True(t, said)
			require.Nil(t, id)
			_, moves := p.field("spec", "shard")
			require.False(t, moves)
		}},
		"deleted, while a request may be on its way": {20 * time.Second, func(p *machinePass) { deleting(p.m) }, shards.End{}, func(t *testing.T, p *machinePass, r ctrl.Result) {
			require.InDelta(t, 40, r.RequeueAfter.Seconds(), 2)
			require.Len(t, p.m.Finalizers, 1)
		}},
		"deleted, and its create has failed": {20 * time.Second, func(p *machinePass) { deleting(p.m) }, shards.End{Failed: true}, func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Empty(t, p.m.Finalizers)
		}},
		"deleted, and it existed": {20 * time.Second, func(p *machinePass) {
			deleting(p.m)
			p.m.Spec.ProviderID = "sim:///1"
		}, shards.End{}, func(t *testing.T, p *machinePass, _ ctrl.Result) { require.Empty(t, p.m.Finalizers) }},
		"its create has failed": {time.Hour, nil, shards.End{Failed: true, Message: "no capacity"}, func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Equal(t, "no capacity", conditions.GetMessage(p.m, infrav1.ConditionCreateFailed))
			require.Equal(t, "failed", p.m.Status.State)
			id, said := p.field("spec", "instanceID")
			require.True(t, said)
			require.Nil(t, id)
			_, moves := p.field("spec", "shard")
			require.False(t, moves, "nor its shard")
		}},
		"the cloud took it": {time.Hour, nil, gone(nstance.CauseNotice), func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Equal(t, reasonReclaimed, conditions.GetReason(p.m, infrav1.ConditionInterrupted))
			require.Empty(t, p.dropped, "its owner replaces it")
		}},
		"the cloud took a member of a pool": {time.Hour, func(p *machinePass) { p.m.Labels = map[string]string{clusterv1.MachinePoolNameLabel: "pool"} }, gone(nstance.CauseNotice), func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Equal(t, []string{"Machine m"}, p.dropped, "the pool has another")
		}},
		"it did not run any more": {time.Hour, nil, gone(nstance.CauseGone), func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Equal(t, reasonMachineGone, conditions.GetReason(p.m, infrav1.ConditionInterrupted))
			require.Empty(t, p.dropped)
		}},
		"it was known to be interrupted": {time.Hour, func(p *machinePass) { interrupted(p.m, nstance.CauseNotice, "m") }, gone(nstance.CauseRequest), func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Empty(t, p.dropped)
		}},
		"the shard was asked to": {time.Hour, nil, gone(nstance.CauseRequest), func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Equal(t, []string{"Machine m"}, p.dropped)
		}},
		"the shard was asked to, and its Machine goes": {time.Hour, func(p *machinePass) { deleting(p.machine) }, gone(nstance.CauseRequest), func(t *testing.T, p *machinePass, _ ctrl.Result) {
			require.Empty(t, p.dropped)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newMachinePass(t, c.age)
			if c.change != nil {
				c.change(p)
			}
			controller := p.controller()
			result, err := controller.ended(t.Context(), p.machineState, &c.end)
			require.NoError(t, err)
			c.check(t, p, result)
		})
	}
}

// TestNodeOfUnknownEnd: only a machine whose deletion is confirmed has its node removed. One that the
// shard has forgotten may run.
func TestNodeOfUnknownEnd(t *testing.T) {
	for _, confirmed := range []bool{false, true} {
		p := newMachinePass(t, time.Hour)
		deleting(p.m)
		p.m.Spec.ProviderID = "sim:///1"
		c := p.controller()
		c.fleets.byCluster[infrastructureOf(p.cluster)] = &fleet{began: time.Now()} // which may see its node soon
		result, err := c.ended(t.Context(), p.machineState, &shards.End{Deleted: confirmed})
		require.NoError(t, err)
		require.Equal(t, confirmed, result.RequeueAfter == nodePoll)
		require.Equal(t, confirmed, len(p.m.Finalizers) == 1)
	}
}

// TestDismiss: a member of a pool whose instance has ended goes through its Machine, where there is
// one, and once.
func TestDismiss(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*machinePass)
		want   []string
	}{
		"with a Machine":                  {func(*machinePass) {}, []string{"Machine m"}},
		"with one that is deleted before": {func(p *machinePass) { deleting(p.stored) }, nil},
		"without":                         {func(p *machinePass) { p.stored = nil }, []string{"NstanceMachine m"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newMachinePass(t, time.Hour)
			p.m.Labels = map[string]string{clusterv1.MachinePoolNameLabel: "pool"}
			c.change(p)
			require.NoError(t, p.controller().dismiss(t.Context(), p.machineState))
			require.Equal(t, c.want, p.dropped)
		})
	}
}

func draining(state nstance.State, kind nstance.CauseKind, deadline time.Time) *apiv1.Instance {
	return &apiv1.Instance{State: string(state), Drain: &apiv1.Drain{Deadline: timestamppb.New(deadline), StartedAt: timestamppb.Now(), Causes: []*apiv1.Cause{{Kind: string(kind), Message: "m"}}}}
}

// TestShowsInstance: what the shard says of an instance is shown.
func TestShowsInstance(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	condition := func(m *infrav1.NstanceMachine, name string) string {
		if c := conditions.Get(m, name); c != nil {
			return string(c.Status) + " " + c.Reason
		}
		return ""
	}
	for name, c := range map[string]struct {
		before   func(*infrav1.NstanceMachine)
		instance *apiv1.Instance
		check    func(*testing.T, *infrav1.NstanceMachine)
	}{
		"its market is not known yet": {func(m *infrav1.NstanceMachine) { m.Status.Interruptible = ptr.To(true) }, &apiv1.Instance{State: "booting"}, func(t *testing.T, m *infrav1.NstanceMachine) {
			require.True(t, *m.Status.Interruptible)
			require.Nil(t, m.Status.Initialization.Provisioned)
		}},
		"on demand": {nil, &apiv1.Instance{State: "ready", Market: "on-demand"}, func(t *testing.T, m *infrav1.NstanceMachine) { require.False(t, *m.Status.Interruptible) }},
		"other addresses": {func(m *infrav1.NstanceMachine) {
			m.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}}
		}, &apiv1.Instance{State: "ready", Addresses: []string{"10.0.0.2"}}, func(t *testing.T, m *infrav1.NstanceMachine) {
			require.Equal(t, []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.2"}}, m.Status.Addresses)
		}},
		"a create that fails, and has no machine yet": {createFailed, &apiv1.Instance{State: "provisioning"}, func(t *testing.T, m *infrav1.NstanceMachine) {
			require.Equal(t, "True "+reasonCreateFailed, condition(m, infrav1.ConditionCreateFailed))
		}},
		"a create that has a machine now": {createFailed, &apiv1.Instance{State: "booting", NodeProviderId: "sim:///1"}, func(t *testing.T, m *infrav1.NstanceMachine) {
			require.Equal(t, "False "+reasonCreated, condition(m, infrav1.ConditionCreateFailed))
			require.True(t, *m.Status.Initialization.Provisioned)
		}},
		"a notice": {nil, draining(nstance.Draining, nstance.CauseNotice, soon), func(t *testing.T, m *infrav1.NstanceMachine) {
			require.Equal(t, "True "+reasonReclaimed, condition(m, infrav1.ConditionInterrupted))
			require.True(t, soon.Truncate(time.Second).Equal(m.Status.Leaving.Deadline.Truncate(time.Second)))
			require.Equal(t, "True "+reasonDraining, condition(m, infrav1.ConditionDraining))
		}},
		"a notice that is withdrawn": {noticed, &apiv1.Instance{State: "ready"}, func(t *testing.T, m *infrav1.NstanceMachine) {
			require.Equal(t, "False "+reasonReady, condition(m, infrav1.ConditionInterrupted))
			require.Equal(t, "False "+reasonNotDraining, condition(m, infrav1.ConditionDraining))
		}},
		"after a notice it is deleted": {noticed, &apiv1.Instance{State: "deleting"}, func(t *testing.T, m *infrav1.NstanceMachine) {
			require.Equal(t, "True "+reasonReclaimed, condition(m, infrav1.ConditionInterrupted))
		}},
		"after a notice it does not run": {noticed, &apiv1.Instance{State: "gone"}, func(t *testing.T, m *infrav1.NstanceMachine) {
			require.Equal(t, "True "+reasonReclaimed, condition(m, infrav1.ConditionInterrupted))
		}},
		"it does not run": {nil, &apiv1.Instance{State: "gone"}, func(t *testing.T, m *infrav1.NstanceMachine) {
			require.Equal(t, "True "+reasonMachineGone, condition(m, infrav1.ConditionInterrupted))
		}},
		"a drain without a deadline": {nil, draining(nstance.Draining, nstance.CauseRollout, time.Now().Add(nstance.UnlimitedDrain)), func(t *testing.T, m *infrav1.NstanceMachine) {
			require.True(t, m.Status.Leaving.Deadline.IsZero())
			require.Equal(t, "rollout", m.Status.Leaving.Cause)
			require.NotContains(t, conditions.GetMessage(m, infrav1.ConditionDraining), "until")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newMachinePass(t, time.Hour)
			p.machine = nil
			if c.before != nil {
				c.before(p.m)
			}
			_, err := p.controller().show(t.Context(), p.machineState, c.instance)
			require.NoError(t, err)
			c.check(t, p.m)
			require.Empty(t, p.deleted)
		})
	}
}

func createFailed(m *infrav1.NstanceMachine) {
	conditions.Set(m, metav1.Condition{Type: infrav1.ConditionCreateFailed, Status: metav1.ConditionTrue, Reason: reasonCreateFailed, Message: "m"})
}

func noticed(m *infrav1.NstanceMachine) {
	interrupted(m, nstance.CauseNotice, "m")
	conditions.Set(m, metav1.Condition{Type: infrav1.ConditionDraining, Status: metav1.ConditionTrue, Reason: reasonDraining, Message: "m"})
}

// TestDeletesInstance: an NstanceMachine that is deleted has the instance deleted: undrained where
// Cluster API has drained its node or need not, and not before a drain of ours is over.
func TestDeletesInstance(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*machinePass)
		state   *apiv1.Instance
		answer  error
		want    bool
		noDrain bool
		failed  bool
	}{
		"alone":                     {func(p *machinePass) { p.machine = nil }, &apiv1.Instance{State: "ready"}, nil, true, false, false},
		"with its Machine":          {func(p *machinePass) { deleting(p.machine) }, &apiv1.Instance{State: "ready"}, nil, true, true, false},
		"with its cluster":          {func(p *machinePass) { p.machine = nil; deleting(p.cluster) }, &apiv1.Instance{State: "ready"}, nil, true, true, false},
		"while it is drained":       {func(p *machinePass) { p.machine = nil }, draining(nstance.Draining, nstance.CauseRollout, time.Now().Add(time.Hour)), nil, false, false, false},
		"drained, with its cluster": {func(p *machinePass) { p.machine = nil; deleting(p.cluster) }, draining(nstance.Draining, nstance.CauseRollout, time.Now().Add(time.Hour)), nil, true, true, false},
		"it is being deleted":       {func(p *machinePass) { p.machine = nil }, &apiv1.Instance{State: "deleting"}, nil, false, false, false},
		"it has ended meanwhile":    {func(p *machinePass) { p.machine = nil }, &apiv1.Instance{State: "ready"}, nstance.Errorf(nstance.NotFound, "no"), true, false, false},
		"the shard is away":         {func(p *machinePass) { p.machine = nil }, &apiv1.Instance{State: "ready"}, nstance.Errorf(nstance.Unavailable, "no"), true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newMachinePass(t, time.Hour)
			deleting(p.m)
			c.change(p)
			p.err = c.answer
			_, err := p.controller().show(t.Context(), p.machineState, c.state)
			require.Equal(t, c.failed, err != nil)
			require.Equal(t, c.want, len(p.deleted) == 1)
			if c.want {
				require.Equal(t, c.noDrain, p.deleted[0].GetNoDrain())
			}
			require.Len(t, p.m.Finalizers, 1)
		})
	}
}

// TestHook: Cluster API waits for a drain of ours while it runs, until its deadline, and not for that
// of a Machine which is past it. After a drain of ours it drains nothing.
func TestHook(t *testing.T) {
	for name, c := range map[string]struct {
		hooked   bool // before
		deleting bool
		instance func() *apiv1.Instance
		want     bool
		excluded bool
	}{
		"a drain": {false, false, func() *apiv1.Instance {
			return draining(nstance.Draining, nstance.CauseNotice, time.Now().Add(time.Hour))
		}, true, false},
		"its deadline has passed": {true, false, func() *apiv1.Instance { return draining(nstance.Draining, nstance.CauseNotice, time.Now()) }, false, true},
		"the machine is parked":   {true, false, func() *apiv1.Instance { return draining(nstance.Ready, nstance.CauseNotice, time.Now().Add(time.Hour)) }, false, true},
		"the NstanceMachine is deleted": {true, true, func() *apiv1.Instance {
			return draining(nstance.Draining, nstance.CauseNotice, time.Now().Add(time.Hour))
		}, false, true},
		"the machine is being deleted": {true, false, func() *apiv1.Instance { return &apiv1.Instance{State: "deleting"} }, false, true},
		"the drain is cancelled":       {true, false, func() *apiv1.Instance { return &apiv1.Instance{State: "ready"} }, false, false},
		"none":                         {false, false, func() *apiv1.Instance { return &apiv1.Instance{State: "ready"} }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newMachinePass(t, time.Hour)
				if c.deleting {
					deleting(p.m)
				}
				p.machine.Annotations = map[string]string{"others": "x"}
				if c.hooked {
					p.machine.Annotations[PreDrainHook] = ""
				}
				require.NoError(t, p.controller().annotate(t.Context(), p.machineState, c.instance()))
				value, said := p.field("metadata", "annotations", PreDrainHook)
				require.Equal(t, c.want != c.hooked, said, "no request changes nothing")
				require.Equal(t, c.want, said && value == "")
				_, excluded := p.field("metadata", "annotations", clusterv1.ExcludeNodeDrainingAnnotation)
				require.Equal(t, c.excluded, excluded)
			})
		})
	}
}
