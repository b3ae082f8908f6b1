//go:build kube

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// A killer ends an operator at one of the changes that it makes in its own cluster.
type killer struct {
	nth    int // 0: none
	killed chan struct{}

	mu   sync.Mutex
	made int
	dead bool
}

var errKilled = errors.New("the operator was killed")

func (k *killer) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(q *http.Request) (*http.Response, error) {
		if k.strikes(q) {
			return nil, errKilled
		}
		return next.RoundTrip(q)
	})
}

// strikes reports whether the operator is dead, from the nth change on.
func (k *killer) strikes(q *http.Request) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if q.Method != http.MethodGet && !strings.Contains(q.URL.Path, "/events") && !k.dead {
		k.made++
		if k.dead = k.made == k.nth; k.dead {
			close(k.killed)
		}
	}
	return k.dead
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// live makes a cluster with a pool of two machines, has the cloud take one back, and deletes
// the cluster, while the operator is killed at the nth change that it makes, and another begins.
// It returns how many there were.
func live(t *testing.T, nth int) int {
	w := newWorld(t)
	w.kubeconfig()
	a := w.shards.Start("a", 0)
	w.kubelets(a)
	w.nonce(w.shards.OperatorNonce())
	k := &killer{nth: nth, killed: make(chan struct{})}
	w.wrap = k.wrap
	w.start()
	ctx, end := context.WithCancel(t.Context())
	var restarting sync.WaitGroup
	restarting.Go(func() {
		select {
		case <-k.killed:
			w.wrap = nil
			w.restart()
		case <-ctx.Done():
		}
	})
	nc := w.cluster(a)
	mp := w.pool(2, func(p *infrav1.NstanceMachinePoolSpec) { p.Spot = &infrav1.SpotOptions{} })
	w.untilMachines(mp, 2)
	lost := machinesOf(a, "pool")[0]
	require.NoError(t, a.Cloud.Reclaim(lost.ID, 5*time.Second))
	require.Eventually(t, func() bool { return a.Ended(lost.ID) }, eventually, 20*time.Millisecond)
	w.untilGone(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(lost.ID)}})
	w.untilMachines(mp, 2)
	var members infrav1.NstanceMachineList
	require.NoError(t, w.List(t.Context(), &members, client.InNamespace(w.namespace)))
	require.Len(t, members.Items, 2, "%s", lazy(w.allMachines))
	require.NoError(t, w.Delete(t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}))
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.Get(t.Context(), client.ObjectKeyFromObject(nc), nc)) && len(machinesOf(a, "pool")) == 0
	}, eventually, 20*time.Millisecond, "%s", lazy(w.everything))
	end()
	restarting.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made
}

// killEvery is how far apart the changes are at which the operator is killed. Nearby ones are
// repeats of one another, since each controller writes the same again and again.
const killEvery = 5

// TestKubeOperatorKilled: whatever the operator was doing when its process ended, a cluster
// comes up, loses a machine, heals and goes, and nothing is left behind.
func TestKubeOperatorKilled(t *testing.T) {
	t.Parallel()
	changes := live(t, 0)
	require.Greater(t, changes, 20)
	for nth := 1; nth <= changes; nth += killEvery {
		t.Run(fmt.Sprint("change ", nth, " of ", changes), func(t *testing.T) {
			t.Parallel()
			live(t, nth)
		})
	}
}
