package nodedrain

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nstance-go/nstance"
)

// TestVolumesOfSomePods: volumes are waited for when any of the pods had some.
func TestVolumesOfSomePods(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.attach("v", "n")
		r.pod("a", "n", nil)
		r.pod("b", "n", func(p *corev1.Pod) { p.Spec = using("v") })
		r.pod("c", "n", nil)
		d := r.drain("n", 20*time.Minute, nil)
		pass(time.Minute)
		require.Nil(r, r.ack(d))
		require.True(r, r.kube.Remove("/apis/storage.k8s.io/v1/volumeattachments/v"))
		pass(10 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
	})
}

// TestEphemeralVolumesOfPodsThatStay: the claim of an ephemeral volume has the name of its pod and its own.
// A claim that does not exist has no volume.
func TestEphemeralVolumesOfPodsThatStay(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.attachedTo("n", "p-data")
		r.pod("p", "n", func(p *corev1.Pod) {
			p.Labels["cluster.x-k8s.io/drain"] = "skip"
			p.Spec.Volumes = []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
				{Name: "none", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "none"}}},
			}
		})
		d := r.drain("n", 20*time.Minute, nil)
		pass(15 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
	})
}

// TestInlineVolumes: a volume that is attached without a persistent one is waited for, whatever pods
// stay.
func TestInlineVolumes(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.attachedTo("n", "v")
		r.kube.Put(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n"}})
		r.kube.Put(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pending"}})
		r.pod("p", "n", func(p *corev1.Pod) {
			p.Spec = using("pending")
			p.Labels["cluster.x-k8s.io/drain"] = "skip"
		})
		d := r.drain("n", 20*time.Minute, nil)
		pass(time.Minute)
		require.Nil(r, r.ack(d))
	})
}

// TestSilentWhileDetached: volumes of a node whose kubelet falls silent are waited for no more: it cannot
// unmount them.
func TestSilentWhileDetached(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.attachedTo("n", "v")
		r.pod("p", "n", func(p *corev1.Pod) { p.Spec = using("v") })
		d := r.drain("n", 20*time.Minute, nil)
		pass(time.Minute)
		require.Nil(r, r.ack(d))
		r.change("n", readyIs(corev1.ConditionUnknown))
		pass(10 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
	})
}

func ofDaemonSet(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "1", Controller: ptr.To(true)}}
}

// TestNewDaemonSet: the pods of a DaemonSet that was made a moment ago stay. That it exists is not asked
// for each pod and each look.
func TestNewDaemonSet(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		var mu sync.Mutex
		lists := 0
		r.kube.Refuse(func(q *http.Request) error {
			if strings.HasSuffix(q.URL.Path, "/daemonsets") {
				mu.Lock()
				defer mu.Unlock()
				lists++
			}
			return nil
		})
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}}
		r.kube.Put(set)
		r.node("n")
		r.node("m")
		r.pod("job", "n", waits)
		for i := range 10 {
			r.pod(fmt.Sprint("other", i), "n", func(p *corev1.Pod) {
				ofDaemonSet(p)
				p.OwnerReferences[0].Name = "other"
			})
		}
		r.drain("n", time.Hour, nil)
		pass(10 * time.Second)
		set.Name = "agent"
		r.kube.Put(set)
		r.pod("agent", "m", ofDaemonSet)
		d := r.drain("m", time.Hour, nil)
		pass(10 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.Len(r, r.pods(), 12)
		pass(10 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Less(r, lists, 20)
	})
}

// TestUnknownDaemonSetIsNotDrained: a node is not said to be empty while it is not known whether a pod
// of it stays.
func TestUnknownDaemonSetIsNotDrained(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		permitted := time.Now().Add(time.Minute)
		r.kube.Refuse(func(q *http.Request) error {
			if strings.HasSuffix(q.URL.Path, "/daemonsets") && time.Now().Before(permitted) {
				return errBudget
			}
			return nil
		})
		r.node("n")
		r.pod("agent", "n", ofDaemonSet)
		d := r.drain("n", time.Hour, nil)
		pass(50 * time.Second)
		require.Nil(r, r.ack(d))
		require.Nil(r, r.pods()[0].DeletionTimestamp)
		pass(30 * time.Second)
		require.Empty(r, r.pods(), "its DaemonSet does not exist")
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
	})
}
