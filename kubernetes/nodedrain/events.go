package nodedrain

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// The reasons of the events on nodes and pods.
const (
	reasonStarted    = "DrainStarted"
	reasonTightened  = "DrainTightened"
	reasonDrained    = "Drained"
	reasonExpired    = "DrainExpired"
	reasonCancelled  = "DrainCancelled"
	reasonEvicted    = "EvictedByDrain"
	reasonBlocked    = "DrainBlocked"
	reasonOverridden = "pdb_overridden"
	reasonLeft       = "TerminatingForever"
	reasonShortened  = "GraceShortened"
)

const (
	eventWriters  = 4
	eventBacklog  = 4096
	eventSource   = "nstance-drain"
	maxEventBytes = 1024
)

// A recorder writes events beside the drains, which never wait for them.
type recorder struct {
	client  kubernetes.Interface
	backlog chan *corev1.Event
	log     *slog.Logger
}

func newRecorder(client kubernetes.Interface, log *slog.Logger) *recorder {
	return &recorder{client: client, backlog: make(chan *corev1.Event, eventBacklog), log: log}
}

func (r *recorder) onNode(node *corev1.Node, kind, reason, message string) {
	r.publish(corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}, metav1.NamespaceDefault, kind, reason, message)
}

func (r *recorder) onPod(pod *corev1.Pod, kind, reason, message string) {
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	r.publish(about, pod.Namespace, kind, reason, message)
}

func (r *recorder) publish(about corev1.ObjectReference, namespace, kind, reason, message string) {
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano()), Namespace: namespace},
		InvolvedObject:      about,
		Type:                kind,
		Reason:              reason,
		Message:             clip.Text(message, maxEventBytes),
		Source:              corev1.EventSource{Component: eventSource},
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		ReportingController: eventSource,
	}
	select {
	case r.backlog <- e:
	default:
		r.log.Warn("event dropped: too many are waiting", "reason", reason, "object", about.Name, "message", message)
	}
}

// run writes events until ctx ends.
func (r *recorder) run(ctx context.Context) {
	for {
		select {
		case e := <-r.backlog:
			r.write(ctx, e)
		case <-ctx.Done():
			return
		}
	}
}

func (r *recorder) write(ctx context.Context, e *corev1.Event) {
	ctx, cancel := context.WithTimeout(ctx, 6*callTimeout)
	defer cancel()
	if _, err := r.client.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{}); err != nil {
		r.log.Warn("event not written", "reason", e.Reason, "object", e.InvolvedObject.Name, "message", e.Message, "err", err)
	}
}

// until says how long a drain may last.
func until(d nstance.Drain) string {
	if d.Unlimited() {
		return "without a deadline"
	}
	return "until " + deadlineText(d)
}

func deadlineText(d nstance.Drain) string {
	if d.Unlimited() {
		return "none"
	}
	return d.Deadline.UTC().Format(time.RFC3339)
}
