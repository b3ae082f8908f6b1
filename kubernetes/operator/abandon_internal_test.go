package operator

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// A lostShard is a Machine with our hook, whose instance is in a shard that is lost.
type lostShard struct {
	client.Client
	machine   *clusterv1.Machine
	abandoned bool // the NstanceCluster says so
	deleted   []string
}

func newLostShard() *lostShard {
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{PreDrainHook: ""}}}
	return &lostShard{machine: machine}
}

func (l *lostShard) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	switch o := obj.(type) {
	case *clusterv1.Machine:
		l.machine.DeepCopyInto(o)
	case *infrav1.NstanceCluster:
		if l.abandoned {
			o.Annotations = map[string]string{infrav1.AnnotationAbandonedShards: "b"}
		}
	}
	return nil
}

func (l *lostShard) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	if data, err := patch.Data(obj); err != nil || !strings.Contains(string(data), `"`+PreDrainHook+`":null`) {
		return err
	}
	delete(l.machine.Annotations, PreDrainHook)
	return nil
}

func (l *lostShard) Delete(_ context.Context, obj client.Object, _ ...client.DeleteOption) error {
	now := metav1.Now()
	l.deleted, l.machine.DeletionTimestamp = append(l.deleted, obj.GetName()), &now
	return nil
}

func (l *lostShard) hooked() bool { return metav1.HasAnnotation(l.machine.ObjectMeta, PreDrainHook) }

// reconcile makes one pass over the NstanceMachine.
func (l *lostShard) reconcile(t *testing.T, m *infrav1.NstanceMachine) ctrl.Result {
	c := &machineController{Client: l, fleets: newFleets(nil, slog.New(slog.DiscardHandler))}
	m.Spec.Shard, m.Spec.InstanceID = "b", "i"
	result, err := c.reconcile(t.Context(), &machineState{m: m, machine: l.machine.DeepCopy(), cluster: &clusterv1.Cluster{}})
	require.NoError(t, err)
	return result
}

// TestAbandonedHook: where a drain was under way when the shard was lost for good, its hook goes:
// else Cluster API would wait for ever to delete the Machine.
func TestAbandonedHook(t *testing.T) {
	pooled := map[string]string{clusterv1.MachinePoolNameLabel: "pool"}
	for name, labels := range map[string]map[string]string{"of a pool": pooled, "alone": nil} {
		for _, deleting := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				l := newLostShard()
				m := &infrav1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: labels, Finalizers: []string{infrav1.Finalizer}}}
				if deleting {
					now := metav1.Now()
					m.DeletionTimestamp = &now
				}
				l.reconcile(t, m)
				require.True(t, l.hooked(), "it is not given up")
				l.abandoned = true
				l.reconcile(t, m)
				require.False(t, l.hooked())
				require.Equal(t, deleting, len(m.Finalizers) == 0)
				require.Equal(t, labels != nil && !deleting, len(l.deleted) == 1, "its Machine is deleted")
			})
		}
	}
	t.Run("an operator before has deleted the Machine", func(t *testing.T) {
		l := newLostShard()
		l.abandoned = true
		require.NoError(t, l.Delete(t.Context(), l.machine))
		l.reconcile(t, &infrav1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: pooled}})
		require.False(t, l.hooked())
		require.Len(t, l.deleted, 1)
	})
}

// TestLostShardHook: while a shard is away, the hook of a drain goes at the deadline. A drain
// without one has it until the shard is back.
func TestLostShardHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, m := newLostShard(), &infrav1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
		require.Zero(t, l.reconcile(t, m))
		require.True(t, l.hooked(), "without a deadline")
		m.Status.Leaving.Deadline = metav1.NewTime(time.Now().Add(time.Minute))
		result := l.reconcile(t, m)
		require.Equal(t, time.Minute, result.RequeueAfter)
		require.True(t, l.hooked(), "before the deadline")
		<-time.After(result.RequeueAfter)
		require.Zero(t, l.reconcile(t, m))
		require.False(t, l.hooked())
		require.Empty(t, l.deleted)
	})
}
