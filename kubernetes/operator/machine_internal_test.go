package operator

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// TestRecreateInterval doubles the time between two instances that fail to be created,
// from the least to the most.
func TestRecreateInterval(t *testing.T) {
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tried := since.Add(-2 * time.Second) // it took two seconds to fail
	var intervals []time.Duration
	for range 10 {
		next := recreateAt(since, tried)
		intervals = append(intervals, next.Sub(tried))
		tried = next
	}
	seconds := func(n ...int) (out []time.Duration) {
		for _, s := range n {
			out = append(out, time.Duration(s)*time.Second)
		}
		return out
	}
	require.Equal(t, seconds(10, 10, 18, 36, 72, 144, 288, 576, 600, 600), intervals)
}

// TestNodesThatAreNotKnownYet: after a start of the operator, a node may be there that it does
// not see yet. Where there is no kubeconfig, and after a minute, nothing waits for it.
func TestNodesThatAreNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := &clusterv1.Cluster{}
		cluster.Spec.InfrastructureRef.Name = "c"
		f := newFleets(nil, slog.New(slog.DiscardHandler))
		fl := &fleet{key: infrastructureOf(cluster), fleets: f, began: time.Now()}
		f.byCluster[fl.key] = fl
		waits := func() bool { return f.removesNode(cluster, "i1", "nstance:///i1") }
		require.True(t, waits())
		fl.kubeconfigRead(nstance.Errorf(nstance.Unavailable, "not now"))
		require.True(t, waits())
		fl.kubeconfigRead(nstance.Errorf(nstance.NotFound, "there is none"))
		require.False(t, waits())
		fl.kubeconfigRead(nil)
		require.True(t, waits())
		<-time.After(nodeLimit)
		require.False(t, waits())
	})
}

// TestNoInstanceChosen: an NstanceMachine that is deleted before an instance was asked for goes at once. One
// of a pool gets none: the pool makes its members with theirs.
func TestNoInstanceChosen(t *testing.T) {
	p := newMachinePass(t, 0)
	p.m.Spec.InstanceID = ""
	p.m.Labels = map[string]string{clusterv1.MachinePoolNameLabel: "pool"}
	_, err := p.controller().reconcile(t.Context(), p.machineState)
	require.ErrorIs(t, err, reconcile.TerminalError(nil))
	require.Len(t, p.m.Finalizers, 1)
	deleting(p.m)
	_, err = p.controller().reconcile(t.Context(), p.machineState)
	require.NoError(t, err)
	require.Empty(t, p.m.Finalizers)
}

// TestBootstrapData: a Secret that is not filled yet is waited for. Without one there is no data.
func TestBootstrapData(t *testing.T) {
	store := &secretStore{byName: map[string]*corev1.Secret{"empty": {}, "full": {Data: map[string][]byte{"value": []byte("data")}}}}
	data, err := bootstrapData(t.Context(), store, "ns", "")
	require.NoError(t, err)
	require.Nil(t, data)
	data, err = bootstrapData(t.Context(), store, "ns", "full")
	require.NoError(t, err)
	require.Equal(t, "data", string(data))
	_, err = bootstrapData(t.Context(), store, "ns", "empty")
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = bootstrapData(t.Context(), store, "ns", "none")
	require.True(t, apierrors.IsNotFound(err))
}

// TestMemberOfOtherOwner: a member of a pool whose group another cluster owns by now goes without its
// machine. One outside of pools is no group's.
func TestMemberOfOtherOwner(t *testing.T) {
	r, servers := newCertificateRig(t, "a")
	shard := r.connection(servers[0]).Shard
	api, err := shard.API()
	require.NoError(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Owner: "them"})
	require.NoError(t, err)
	r.until(func() bool {
		g, _ := shard.Group("web")
		return g.GetOwner() == "them"
	}, "owned")
	for _, pooled := range []bool{false, true} {
		p := newMachinePass(t, time.Hour)
		deleting(p.m)
		p.shard, p.machine = shard, nil
		if pooled {
			p.m.Labels = map[string]string{clusterv1.MachinePoolNameLabel: "pool"}
		}
		_, err := p.controller().show(t.Context(), p.machineState, &apiv1.Instance{State: "ready"})
		require.NoError(t, err)
		require.Equal(t, pooled, len(p.m.Finalizers) == 0)
		require.Equal(t, pooled, len(p.deleted) == 0)
		require.Empty(t, p.patches, "there is no Machine")
	}
}

// TestShownConditions: a Machine is told of what its NstanceMachine says otherwise, with all that it then has.
func TestShownConditions(t *testing.T) {
	of := func(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
		return []metav1.Condition{
			{Type: infrav1.ConditionInterrupted, Status: metav1.ConditionFalse, Reason: reasonReady}, {Type: infrav1.ConditionDraining, Status: status, Reason: reason, Message: message},
		}
	}
	for name, c := range map[string]struct {
		machine []metav1.Condition
		told    bool
	}{
		"the same":       {of(metav1.ConditionTrue, reasonDraining, "m"), false},
		"none yet":       {nil, true},
		"another status": {of(metav1.ConditionFalse, reasonDraining, "m"), true},
		"another reason": {of(metav1.ConditionTrue, reasonNotDraining, "m"), true},
		"other words":    {of(metav1.ConditionTrue, reasonDraining, "n"), true},
	} {
		t.Run(name, func(t *testing.T) {
			m, machine := &infrav1.NstanceMachine{}, &clusterv1.Machine{}
			m.SetConditions(of(metav1.ConditionTrue, reasonDraining, "m"))
			machine.SetConditions(c.machine)
			shown := shownConditions(m, machine)
			require.Equal(t, c.told, len(shown) == 2)
			require.Equal(t, c.told, shown != nil)
		})
	}
}
