package nodedrain

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nstance-go/nstance"
)

// A oneDrain is a coordinator with one drain.
type oneDrain struct {
	nstance.DrainCoordinator
	drain nstance.Drain
	acks  chan nstance.Ack
}

func (o *oneDrain) Watch(ctx context.Context, _ nstance.TenantID, _ nstance.Seq) iter.Seq2[nstance.DrainEvent, error] {
	return func(yield func(nstance.DrainEvent, error) bool) {
		if yield(nstance.DrainEvent{Seq: 1, Type: nstance.DrainRequested, Drain: o.drain}, nil) {
			<-ctx.Done()
		}
	}
}

func (o *oneDrain) Acknowledge(_ context.Context, a nstance.Ack) error {
	o.acks <- a
	return nil
}

// received returns the acknowledgements so far.
func (o *oneDrain) received() (all []nstance.Ack) {
	synctest.Wait()
	for len(o.acks) > 0 {
		all = append(all, <-o.acks)
	}
	return all
}

// drainOne carries out a drain of the node n with the provider ID cloud:///i, until the test ends.
func drainOne(t *testing.T, api *fake.Clientset, left time.Duration) *oneDrain {
	now := time.Now()
	o := &oneDrain{acks: make(chan nstance.Ack, 1000), drain: nstance.Drain{
		Instance: "web-1", ProviderID: "cloud:///i", Generation: 1, StartedAt: now, Deadline: now.Add(left), Executor: nstance.ExecutorOperator,
	}}
	options, err := (*Options)(nil).complete()
	require.NoError(t, err)
	d := newDrainer(api, newBudget(0), o, options)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return o
}

func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "cloud:///i"}}
}

// refuse has the API server refuse requests until permit is called.
func refuse(api *fake.Clientset, verb, resource string) (permit func()) {
	var permitted atomic.Bool
	api.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return !permitted.Load(), nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
	})
	return func() { permitted.Store(true) }
}

// troubles are what keeps a drain from beginning or going on, and what ends it.
var troubles = map[string]struct {
	begin func(api *fake.Clientset) (end func(t *testing.T))
	words string
}{
	"no node": {func(api *fake.Clientset) func(*testing.T) {
		return func(t *testing.T) {
			_, err := api.CoreV1().Nodes().Create(t.Context(), nodeNamed("n"), metav1.CreateOptions{})
			require.NoError(t, err)
		}
	}, `no node has the provider ID "cloud:///i"`},
	"two nodes": {func(api *fake.Clientset) func(*testing.T) {
		_ = api.Tracker().Add(nodeNamed("n"))
		_ = api.Tracker().Add(nodeNamed("m"))
		return func(t *testing.T) {
			require.NoError(t, api.CoreV1().Nodes().Delete(t.Context(), "m", metav1.DeleteOptions{}))
		}
	}, `both have the provider ID "cloud:///i"`},
	"nodes cannot be listed": {func(api *fake.Clientset) func(*testing.T) {
		_ = api.Tracker().Add(nodeNamed("n"))
		permit := refuse(api, "list", "nodes")
		return func(*testing.T) { permit() }
	}, "nodes are not listed yet"},
	"the cordon is refused": {func(api *fake.Clientset) func(*testing.T) {
		_ = api.Tracker().Add(nodeNamed("n"))
		permit := refuse(api, "patch", "nodes")
		return func(*testing.T) { permit() }
	}, "nodes is forbidden"},
	"pods cannot be listed": {func(api *fake.Clientset) func(*testing.T) {
		_ = api.Tracker().Add(nodeNamed("n"))
		permit := refuse(api, "list", "pods")
		return func(*testing.T) { permit() }
	}, "pods is forbidden"},
	"volumes cannot be listed": {func(api *fake.Clientset) func(*testing.T) {
		n := nodeNamed("n")
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
		_ = api.Tracker().Add(n)
		permit := refuse(api, "list", "volumeattachments")
		return func(*testing.T) { permit() }
	}, "volumeattachments is forbidden"},
}

// TestTroubleIsTold: the coordinator of a drain without a deadline is told every minute what keeps
// it from going on, and never that the node is empty. A drain with a deadline ends then.
func TestTroubleIsTold(t *testing.T) {
	for name, trouble := range troubles {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := fake.NewClientset()
				end := trouble.begin(api)
				o := drainOne(t, api, nstance.UnlimitedDrain)
				<-time.After(progressInterval - time.Second)
				require.Empty(t, o.received(), "it may pass")
				<-time.After(10 * time.Minute)
				acks := o.received()
				require.InDelta(t, 10, len(acks), 1)
				for _, a := range acks {
					require.Equal(t, nstance.OutcomeBlocked, a.Outcome)
					require.Contains(t, a.Message, trouble.words)
				}
				end(t)
				<-time.After(2 * time.Minute)
				acks = o.received()
				require.Equal(t, nstance.OutcomeDrained, acks[len(acks)-1].Outcome)
			})
			synctest.Test(t, func(t *testing.T) {
				api := fake.NewClientset()
				trouble.begin(api)
				o := drainOne(t, api, 10*time.Minute)
				<-time.After(11 * time.Minute)
				acks := o.received()
				require.Len(t, acks, 1)
				require.Equal(t, nstance.OutcomeFailed, acks[0].Outcome)
			})
		})
	}
}

// TestTroubleIsOver: once the drain goes on, the coordinator is told that nothing blocks it.
func TestTroubleIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientset()
		o := drainOne(t, api, nstance.UnlimitedDrain)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{"cluster.x-k8s.io/drain": "wait-completed"}}, Spec: corev1.PodSpec{NodeName: "n"}}
		require.NoError(t, api.Tracker().Add(pod))
		<-time.After(progressInterval + time.Second)
		require.Len(t, o.received(), 1)
		_, err := api.CoreV1().Nodes().Create(t.Context(), nodeNamed("n"), metav1.CreateOptions{})
		require.NoError(t, err)
		<-time.After(progressInterval)
		acks := o.received()
		require.Len(t, acks, 1)
		require.Equal(t, nstance.OutcomeBlocked, acks[0].Outcome)
		require.Empty(t, acks[0].Message)
	})
}
