package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// TestAcksOfAnInstanceThatCriedWolf: that withdrawals count no more does not make
// its next notice durable.
func TestAcksOfAnInstanceThatCriedWolf(t *testing.T) {
	r, acked := &Reconciler{}, map[string]bool{}
	m := &member{rec: storage.Instance{Reclaims: 2, Drain: &nstance.Drain{Causes: []nstance.Cause{{Kind: nstance.CauseNotice, EventID: "e1"}}}}}
	for _, what := range []string{"e1", "e2", withdrawal + "e1"} {
		m.addPendingAck(what, func() { acked[what] = true })
	}
	r.sendSettledAcks(m)
	require.Equal(t, map[string]bool{"e1": true, withdrawal + "e1": true}, acked, "nobody who reads the record knows of e2")
	m.rec.Drain.Causes = append(m.rec.Drain.Causes, nstance.Cause{Kind: nstance.CauseNotice, EventID: "e2"})
	r.sendSettledAcks(m)
	require.True(t, acked["e2"])
}
