package nodedrain

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nstance-go/nstance"
)

// TestGateOpens: a node that cannot be cordoned, since that is refused or it does not exist, does not
// hold the evictions of other nodes, nor do the drains that a Drainer finds at its start.
func TestGateOpens(t *testing.T) {
	t.Run("a cordon is refused", func(t *testing.T) {
		virtual(t, nil, func(r *virtualRig) {
			r.kube.Refuse(func(q *http.Request) error {
				if q.Method == http.MethodPatch && q.URL.Path == "/api/v1/nodes/a" {
					return apierrors.NewForbidden(corev1.Resource("nodes"), "a", errors.New("by a policy"))
				}
				return nil
			})
			r.node("a")
			r.node("b")
			r.pod("p", "b", nil)
			r.drain("a", time.Hour, nil)
			r.drain("b", time.Hour, nil)
			pass(3 * time.Second)
			require.Empty(r, r.pods())
		})
	})
	for name, drained := range map[string][]string{"one": {"b"}, "some": {"a", "b", "c"}, "a node that does not exist": {"a", "b", "unknown"}} {
		t.Run("at the start: "+name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.stop()
				for _, node := range []string{"a", "b", "c"} {
					r.node(node)
				}
				r.pod("p", "b", nil)
				for _, node := range drained {
					r.drain(node, time.Hour, nil)
				}
				r.kube.Refuse(func(q *http.Request) error {
					if q.URL.Path == "/api/v1/nodes" { // drains are known before nodes
						<-time.After(time.Second)
					}
					return nil
				})
				r.restart(nil)
				pass(4 * time.Second)
				require.Empty(r, r.pods())
			})
		})
	}
}

// brokenWatches break off at some event of a watch. Each begins with a snapshot.
type brokenWatches struct {
	nstance.DrainCoordinator
	breaks func(nstance.DrainEvent) bool
}

func (b *brokenWatches) Watch(ctx context.Context, tenant nstance.TenantID, _ nstance.Seq) iter.Seq2[nstance.DrainEvent, error] {
	return func(yield func(nstance.DrainEvent, error) bool) {
		for e, err := range b.DrainCoordinator.Watch(ctx, tenant, 0) {
			if err == nil && b.breaks(e) {
				e, err = nstance.DrainEvent{}, nstance.Unavailable
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// TestBrokenSnapshot: a watch that breaks off within its snapshot holds no evictions.
func TestBrokenSnapshot(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.stop()
		events := 0
		r.watched = &brokenWatches{r.drains, func(nstance.DrainEvent) bool {
			events++
			return events == 2
		}}
		for _, node := range []string{"a", "b"} {
			r.node(node)
			r.pod("of-"+node, node, nil)
			r.drain(node, time.Hour, nil)
		}
		r.restart(nil)
		pass(4 * time.Second)
		require.Empty(r, r.pods())
	})
}

// TestEndedUnseen: a drain that a later snapshot does not have is over, and others go on.
func TestEndedUnseen(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.stop()
		r.watched = &brokenWatches{r.drains, func(e nstance.DrainEvent) bool { return e.Type == nstance.DrainEnded }}
		var drains []nstance.Drain
		for _, node := range []string{"a", "b"} {
			r.node(node)
			r.pod("of-"+node, node, waits)
			drains = append(drains, r.drain(node, 2*time.Minute, nil))
		}
		r.restart(nil)
		pass(10 * time.Second)
		require.NoError(r, r.drains.End(r.ctx, drains[0].Instance))
		pass(10 * time.Second)
		require.Empty(r, r.Progress(drains[0].Instance))
		require.NotEmpty(r, r.Progress(drains[1].Instance))
		pass(2 * time.Minute)
		require.Len(r, r.pods(), 1)
		require.Equal(r, "of-a", r.pods()[0].Name)
	})
}

// TestDeleteBeforeStart: a drain that was acknowledged to end at once is not begun again.
func TestDeleteBeforeStart(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.stop()
		r.node("n")
		r.pod("p", "n", nil)
		d := r.drain("n", time.Hour, nil)
		require.NoError(r, r.drains.Acknowledge(r.ctx, nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: nstance.ExecutorOperator, Outcome: nstance.OutcomeFailed, Delete: true}))
		r.restart(nil)
		pass(10 * time.Second)
		require.Len(r, r.pods(), 1)
		require.False(r, r.get("n").Spec.Unschedulable)
	})
}

// TestGateOfManyCordons: what waits for one cordon waits for those that come meanwhile too, and no
// longer.
func TestGateOfManyCordons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, began := newCordonGate(), time.Now()
		first := g.hold()
		passed := make(chan time.Duration, 1)
		go func() {
			g.await(t.Context())
			passed <- time.Since(began)
		}()
		synctest.Wait()
		time.AfterFunc(time.Second, first)
		time.AfterFunc(2*time.Second, g.hold())
		require.Equal(t, 2*time.Second, <-passed)
	})
}
