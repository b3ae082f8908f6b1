package operator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// TestInstanceOfNode: a node is of an instance by its whole provider ID, or because it names the
// instance; never by how the provider ID ends.
func TestInstanceOfNode(t *testing.T) {
	const of = "aws:///zone-a/i-0abc"
	var ids [3]string
	for i := range ids {
		id, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		ids[i] = string(id)
	}
	id, booting, other := ids[0], ids[1], ids[2]
	x := newInstanceIndex([]*apiv1.Instance{{Id: id, NodeProviderId: of}, {Id: booting}}) // the cloud's ID of the latter's node is not known yet
	for name, c := range map[string]struct{ providerID, annotation, want string }{
		"the cloud's ID":                       {of, "", id},
		"the same in other letters":            {"aws:///Zone-A/i-0ABC", "", id},
		"the instance's own":                   {"nstance:///" + booting, "", booting},
		"a mark":                               {"k3s://anything", id, id},
		"another cluster's of the same number": {"proxmox://other/i-0abc", "", ""},
		"no provider ID":                       {"", "", ""},
		"another instance":                     {"nstance:///" + other, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: c.providerID}}
			if c.annotation != "" {
				metav1.SetMetaDataAnnotation(&n.ObjectMeta, nodedrain.AnnotationInstance, c.annotation)
			}
			require.Equal(t, c.want, x.of(n).GetId())
		})
	}
}
