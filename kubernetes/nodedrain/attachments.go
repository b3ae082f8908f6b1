package nodedrain

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nstance-go/nstance"
)

// An attachment is a volume that is attached to a node.
type attachment struct {
	persistentVolume string // empty for an inline one
}

func (d *Drainer) listAttachments(ctx context.Context) (map[string][]attachment, error) {
	list, err := d.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	byNode := map[string][]attachment{}
	for _, a := range list.Items {
		var volume attachment
		if name := a.Spec.Source.PersistentVolumeName; name != nil {
			volume.persistentVolume = *name
		}
		byNode[a.Spec.NodeName] = append(byNode[a.Spec.NodeName], volume)
	}
	return byNode, nil
}

func (d *Drainer) listDaemonSets(ctx context.Context) (map[string]bool, error) {
	list, err := d.client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, s := range list.Items {
		names[s.Namespace+"/"+s.Name] = true
	}
	return names, nil
}

// orphan reports whether the DaemonSet that made the pod is gone. That it exists may
// be known for a minute, that it does not is always read. DaemonSets of others than
// Kubernetes, which have that name too, are taken to exist.
func (d *Drainer) orphan(ctx context.Context, pod *corev1.Pod) (bool, error) {
	owner := daemonSetOf(pod)
	if owner == "" || metav1.GetControllerOf(pod).APIVersion != appsv1.SchemeGroupVersion.String() {
		return false, nil
	}
	now := time.Now()
	for _, age := range []time.Duration{time.Minute, 0} {
		names, err := d.daemonSets.Since(ctx, now.Add(-age))
		if err != nil || names[owner] {
			return false, err
		}
	}
	return true, nil
}

// claimsOf returns the names of the claims whose volumes a pod uses.
func claimsOf(pod *corev1.Pod) []string {
	var names []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, pod.Name+"-"+v.Name)
		}
	}
	return names
}

// volumesOf returns the persistent volumes of pods.
func (d *Drainer) volumesOf(ctx context.Context, pods []*corev1.Pod) (map[string]bool, error) {
	volumes := map[string]bool{}
	for _, pod := range pods {
		for _, name := range claimsOf(pod) {
			claim, err := d.getClaim(ctx, pod.Namespace, name)
			switch {
			case nstance.CodeOf(err) == nstance.NotFound:
			case err != nil:
				return nil, err
			case claim.Spec.VolumeName != "": // or else it has none yet
				volumes[claim.Spec.VolumeName] = true
			}
		}
	}
	return volumes, nil
}

func (d *Drainer) getClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	claim, err := d.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	return claim, classify(err)
}
