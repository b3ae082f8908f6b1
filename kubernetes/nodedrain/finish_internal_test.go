package nodedrain

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/nstance-go/nstance"
)

// An awayCoordinator cannot be reached.
type awayCoordinator struct {
	nstance.DrainCoordinator
	acks int
}

func (c *awayCoordinator) Acknowledge(context.Context, nstance.Ack) error {
	c.acks++
	return nstance.Errorf(nstance.Unavailable, "shard a is being listed")
}

// TestAckUntilDrainEnds: an acknowledgement that is not delivered is repeated until the drain
// has ended.
func TestAckUntilDrainEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := &awayCoordinator{}
		d := &Drainer{drains: away, workers: map[nstance.InstanceID]*worker{}, options: Options{Log: slog.New(slog.DiscardHandler)}}
		w := newWorker(d, nstance.Drain{Instance: "web-1", Generation: 1, Deadline: time.Now().Add(time.Hour)}, true)
		w.start(t.Context())
		d.workers["web-1"] = w
		delivered := make(chan struct{})
		go func() {
			w.acknowledge(w.life, nstance.OutcomeDrained, "")
			close(delivered)
		}()
		<-time.After(10 * time.Minute)
		synctest.Wait()
		require.Greater(t, away.acks, 100)
		d.remove("web-1", errEnded)
		<-time.After(10 * time.Second)
		synctest.Wait()
		select {
		case <-delivered:
		default:
			t.Error("it is repeated after the end of the drain")
		}
		w.close()
		<-delivered
	})
}

// A hangingCoordinator does not answer the first acknowledgements.
type hangingCoordinator struct {
	nstance.DrainCoordinator
	hangs, acks int
}

func (c *hangingCoordinator) Acknowledge(ctx context.Context, _ nstance.Ack) error {
	if c.acks++; c.acks <= c.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// TestHangingCoordinator: an acknowledgement that is not answered is repeated.
func TestHangingCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &hangingCoordinator{hangs: 2}
		d := &Drainer{drains: c, workers: map[nstance.InstanceID]*worker{}, options: Options{Log: slog.New(slog.DiscardHandler)}}
		w := newWorker(d, nstance.Drain{Instance: "web-1", Generation: 1, Deadline: time.Now().Add(time.Hour)}, true)
		w.start(t.Context())
		defer w.close()
		time.AfterFunc(time.Minute, w.endLife)
		w.acknowledge(w.life, nstance.OutcomeDrained, "")
		require.NoError(t, w.life.Err())
		require.Equal(t, 3, c.acks)
	})
}

// TestCancelledAtStart: a drain that is cancelled before a Drainer that has just begun knows the nodes
// is taken back.
func TestCancelledAtStart(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", waits)
		d := r.drain("n", time.Hour, nil)
		pass(10 * time.Second)
		r.stop()
		r.kube.Refuse(func(q *http.Request) error {
			if q.URL.Path == "/api/v1/nodes" {
				<-time.After(5 * time.Second)
			}
			return nil
		})
		r.restart(nil)
		pass(time.Second)
		require.NoError(r, r.drains.Cancel(r.ctx, d.Instance, d.Generation))
		pass(15 * time.Second)
		n := r.get("n")
		require.False(r, n.Spec.Unschedulable)
		require.NotContains(r, n.Annotations, annotationInstance)
	})
}

// A failingWithdrawer cannot take requests back at first.
type failingWithdrawer struct {
	Evictor
	code  nstance.Code
	calls int
}

func (f *failingWithdrawer) Withdraw(context.Context, *corev1.Node) error {
	if f.calls++; f.calls < 3 {
		return nstance.Errorf(f.code, "not now")
	}
	return nil
}

// TestWithdrawFails: a drain is taken back once its requests are, whatever kept them: that something is
// not found is not said of the node.
func TestWithdrawFails(t *testing.T) {
	for _, code := range []nstance.Code{nstance.Unavailable, nstance.NotFound} {
		t.Run(string(code), func(t *testing.T) {
			evictor := &failingWithdrawer{Evictor: &askedPods{}, code: code}
			virtual(t, &Options{Evictor: evictor}, func(r *virtualRig) {
				r.node("n")
				r.pod("job", "n", waits)
				d := r.drain("n", time.Hour, nil)
				pass(10 * time.Second)
				require.NoError(r, r.drains.Cancel(r.ctx, d.Instance, d.Generation))
				pass(10 * time.Second)
				n := r.get("n")
				require.False(r, n.Spec.Unschedulable)
				require.Equal(r, 3, evictor.calls)
			})
		})
	}
}

// TestNewerDrainOfNode: what takes a drain back leaves a newer one alone that another process writes to
// the node in that moment.
func TestNewerDrainOfNode(t *testing.T) {
	for name, annotation := range map[string]string{"of the instance": annotationGeneration, "of another one": annotationInstance} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.pod("job", "n", waits)
				d := r.drain("n", time.Hour, nil)
				pass(10 * time.Second)
				r.onFirstPatch(func() error {
					r.change("n", func(n *corev1.Node) { n.Annotations[annotation] = "2" })
					return nil
				})
				require.NoError(r, r.drains.Cancel(r.ctx, d.Instance, d.Generation))
				pass(time.Minute)
				n := r.get("n")
				require.True(r, n.Spec.Unschedulable)
				require.Equal(r, "2", n.Annotations[annotation])
			})
		})
	}
}

// TestLeftPodsAreNamed: pods that do not end are named also where the drain ends at its deadline, ten of
// them.
func TestLeftPodsAreNamed(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		for i := range maxListed + 2 {
			r.pod(fmt.Sprint("stuck", i), "n", stops("never"))
		}
		r.pod("job", "n", func(p *corev1.Pod) {
			stops("never")(p)
			waits(p)
		})
		d := r.drain("n", 10*time.Minute, nil)
		pass(11 * time.Minute)
		require.Equal(r, nstance.OutcomeFailed, r.ack(d).Outcome)
		require.Contains(r, r.ack(d).Message, fmt.Sprint(maxListed+2, " pods do not end"))
		require.Equal(r, maxListed, strings.Count(r.ack(d).Message, "ns/stuck"), r.ack(d).Message)
		require.Len(r, r.said(reasonLeft), maxListed+2, "once of each")
	})
}
