package nodedrain

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nstance-go/nstance"
)

// defaultLease is how long a kubelet's Lease is held that does not say it.
const defaultLease = 40 * time.Second

// kubelets remember when the Leases of kubelets were seen to be renewed. They are safe for
// concurrent use.
type kubelets struct {
	client kubernetes.Interface

	mu   sync.Mutex
	last map[types.UID]renewal // by the UID of the node
}

// A renewal of a Lease.
type renewal struct {
	version string
	seenAt  time.Time
}

func newKubelets(client kubernetes.Interface) *kubelets {
	return &kubelets{client: client, last: map[types.UID]renewal{}}
}

// keep forgets all nodes but these.
func (k *kubelets) keep(nodes []*corev1.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := map[types.UID]renewal{}
	for _, node := range nodes {
		if last, seen := k.last[node.UID]; seen {
			kept[node.UID] = last
		}
	}
	k.last = kept
}

// silent reports whether the kubelet of a node has no Lease, or did not renew it for as long
// as it is held while this was asked again and again: times of the kubelet's clock are not
// compared. It is silent at once when Kubernetes has found so.
func (k *kubelets) silent(ctx context.Context, node *corev1.Node) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node.Name, metav1.GetOptions{})
	switch err = classify(err); {
	case nstance.CodeOf(err) == nstance.NotFound:
		return true, nil
	case err != nil:
		return false, err
	case readiness(node) == corev1.ConditionUnknown:
		return true, nil
	}
	held := defaultLease
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil {
		held = time.Duration(*seconds) * time.Second
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	last, seen := k.last[node.UID]
	if !seen || last.version != lease.ResourceVersion {
		last = renewal{lease.ResourceVersion, time.Now()}
		k.last[node.UID] = last
	}
	return time.Since(last.seenAt) >= held, nil
}
