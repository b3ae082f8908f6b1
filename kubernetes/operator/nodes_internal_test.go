package operator

import (
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// TestAckBeforeListing: while a shard is not connected and listed, it may have the instance of
// an acknowledgement, which is then repeated. Not found ends the repetition.
func TestAckBeforeListing(t *testing.T) {
	fl := &fleet{key: client.ObjectKey{Namespace: "ns", Name: "c"}, drains: drain.New(nil), shards: map[string]*connection{
		"a": {Shard: shards.New(shards.Options{Name: "a"})},
	}}
	drains := shardDrains{fl.drains, fl}
	ack := nstance.Ack{Instance: "web-1", Generation: 1, By: nstance.ExecutorOperator, Outcome: nstance.OutcomeDrained}
	require.ErrorIs(t, drains.Acknowledge(t.Context(), ack), nstance.Unavailable)
	delete(fl.shards, "a")
	require.ErrorIs(t, drains.Acknowledge(t.Context(), ack), nstance.NotFound, "no shard is left that may have it")
}
