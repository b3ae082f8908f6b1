package operator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// TestInstanceOfNode: a node is of an instance by its whole provider ID, or because it names the
// instance; never by how the provider ID ends.
func TestInstanceOfNode(t *testing.T) {
	const of = "aws:///Zone-a/i-0abc"
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
		"the same in other letters":            {"aws:///zone-A/i-0ABC", "", id},
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

// TestKnownOfInstance: a node is removed only if the machine is known to be gone, and uncordoned only if
// nothing drains it. Of an instance without a machine, or a readable record, nothing is known.
func TestKnownOfInstance(t *testing.T) {
	for name, c := range map[string]struct {
		instance *apiv1.Instance
		want     nodedrain.InstanceState
	}{
		"ready":                 {&apiv1.Instance{State: "ready"}, nodedrain.InstanceStays},
		"parked":                {&apiv1.Instance{State: "parked"}, nodedrain.InstanceStays},
		"drained":               {&apiv1.Instance{State: "ready", Drain: &apiv1.Drain{}}, nodedrain.InstanceLeaves},
		"being deleted":         {&apiv1.Instance{State: "deleting"}, nodedrain.InstanceLeaves},
		"it does not run":       {&apiv1.Instance{State: "gone"}, nodedrain.InstanceLeaves},
		"deleted":               {&apiv1.Instance{State: "deleted"}, nodedrain.InstanceGone},
		"its create has failed": {&apiv1.Instance{State: "failed"}, ""},
		"an unreadable record":  {&apiv1.Instance{State: "ready", Conditions: []string{wire.Unreadable}}, ""},
		"none":                  {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, knownOf(c.instance).State)
		})
	}
}

// TestAsksShardsForNodes: what the copies do not have every shard is asked for, in parts. A node is left
// out if no shard knows its instance.
func TestAsksShardsForNodes(t *testing.T) {
	r, servers := newCertificateRig(t, "a", "b")
	id := r.machines(servers[1], 1)[0]
	var nodes []*corev1.Node
	node := func(providerID string) types.UID {
		uid := types.UID(fmt.Sprint(len(nodes)))
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: uid, Annotations: map[string]string{annotationDrainInstance: "x"}}, Spec: corev1.NodeSpec{ProviderID: providerID}})
		return uid
	}
	unknown, err := nstance.NewInstanceID("nde", time.Now())
	require.NoError(t, err)
	node("k3s://others")
	node("nstance:///" + string(unknown))
	for range maxQuestions {
		node("nstance:///" + string(id))
	}
	known := r.fleet().OfNodes(t.Context(), nodes)
	require.Len(t, known, maxQuestions-1, "one question was for another instance")
	for _, k := range known {
		require.Equal(t, nodedrain.Known{Instance: id, State: nodedrain.InstanceStays}, k)
	}
}
