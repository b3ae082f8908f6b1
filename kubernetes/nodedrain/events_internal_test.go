package nodedrain

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nstance-go/nstance"
)

// TestEventsWaitForNothing: a drain goes on while events cannot be written, and those that come later
// are.
func TestEventsWaitForNothing(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		hangs := time.Now().Add(20 * time.Second)
		r.kube.Refuse(func(q *http.Request) error {
			if strings.HasSuffix(q.URL.Path, "/events") && time.Now().Before(hangs) {
				return hang(q)
			}
			return nil
		})
		for _, node := range []string{"a", "b", "c"} {
			r.node(node)
			r.pod("of-"+node, node, nil)
		}
		for _, node := range []string{"a", "b"} {
			require.Nil(r, r.ack(r.drain(node, time.Hour, nil)))
		}
		pass(15 * time.Second)
		require.Len(r, r.pods(), 1)
		require.Empty(r, r.said(reasonDrained))
		pass(time.Minute)
		r.drain("c", time.Hour, nil)
		pass(15 * time.Second)
		require.NotEmpty(r, r.said(reasonDrained))
	})
}

// TestEventBacklog: events beyond what may wait are dropped, not waited for.
func TestEventBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := newRecorder(nil, discardIfNil(nil))
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		for range eventBacklog + 10 {
			events.onNode(node, corev1.EventTypeNormal, reasonDrained, "")
		}
		require.Len(t, events.backlog, eventBacklog)
	})
}

// TestLongTexts: what Kubernetes does not take is cut: messages of events over 1024 bytes. A node says
// its causes in 256.
func TestLongTexts(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("p", "n", func(p *corev1.Pod) {
			waits(p)
			p.Name = strings.Repeat("long", 60)
			for range 30 {
				p.Finalizers = append(p.Finalizers, "example.com/"+strings.Repeat("keep", 12))
			}
		})
		r.pod("stuck", "n", func(p *corev1.Pod) {
			for range 30 {
				p.Finalizers = append(p.Finalizers, "example.com/"+strings.Repeat("keep", 12))
			}
		})
		r.drain("n", time.Hour, func(d *nstance.Drain) {
			for range 20 {
				d.Causes = append(d.Causes, nstance.Cause{Kind: nstance.CauseRollout, Message: strings.Repeat("new image ", 10)})
			}
		})
		pass(10 * time.Minute)
		left := r.said(reasonLeft)
		require.Len(r, left, 1)
		require.Contains(r, left[0], "finalizers: example.com/keep")
		for _, reason := range []string{reasonLeft, reasonBlocked, reasonEvicted, reasonStarted} {
			for _, text := range r.said(reason) {
				require.LessOrEqual(r, len(text), maxEventBytes)
			}
		}
		require.LessOrEqual(r, len(r.get("n").Annotations[annotationCause]), 256)
	})
}

// TestNothingBlocks: the coordinator is told when the pod that kept a drain without a deadline from
// going on does so no more.
func TestNothingBlocks(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", waits)
		r.pod("later", "n", waits)
		r.pod("web", "n", func(p *corev1.Pod) {
			stops("1h")(p)
			grace := int64(3600)
			p.Spec.TerminationGracePeriodSeconds = &grace
		})
		d := r.drain("n", nstance.UnlimitedDrain, nil)
		pass(time.Minute)
		require.Equal(r, nstance.OutcomeBlocked, r.ack(d).Outcome)
		require.Contains(r, r.ack(d).Message, "pod ns/job: it is left to complete")
		require.True(r, r.kube.Remove("/api/v1/namespaces/ns/pods/job"))
		require.True(r, r.kube.Remove("/api/v1/namespaces/ns/pods/later"))
		pass(10 * time.Second)
		require.Equal(r, nstance.OutcomeBlocked, r.ack(d).Outcome)
		require.Empty(r, r.ack(d).Message)
	})
}

// TestErrorBeforeBlock: while an error keeps a drain from looking at its pods, the coordinator is told of
// that, not of the pod that blocked it before.
func TestErrorBeforeBlock(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", waits)
		d := r.drain("n", nstance.UnlimitedDrain, nil)
		pass(time.Minute)
		require.Contains(r, r.ack(d).Message, "pod ns/job")
		r.kube.Refuse(func(q *http.Request) error {
			if q.URL.Path == "/api/v1/pods" {
				return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("by a policy"))
			}
			return nil
		})
		pass(time.Minute)
		require.Contains(r, r.ack(d).Message, "by a policy")
	})
}
