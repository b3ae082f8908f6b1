package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// TestAcksAfterWithdrawnReclaims: after too many withdrawn reclaims the next notice is
// still acknowledged only when it is in the record.
func TestAcksAfterWithdrawnReclaims(t *testing.T) {
	r, acked := &Reconciler{}, map[string]bool{}
	m := &member{rec: records.Instance{Reclaims: 2, Drain: &nstance.Drain{Causes: []nstance.Cause{{Kind: nstance.CauseNotice, EventID: "e1"}}}}}
	for _, what := range []string{"e1", "e2", withdrawal + "e1"} {
		m.addPendingAck(what, func() { acked[what] = true })
	}
	r.sendSettledAcks(m)
	require.Equal(t, map[string]bool{"e1": true, withdrawal + "e1": true}, acked, "e2 is not in the record yet")
	m.rec.Drain.Causes = append(m.rec.Drain.Causes, nstance.Cause{Kind: nstance.CauseNotice, EventID: "e2"})
	r.sendSettledAcks(m)
	require.True(t, acked["e2"])
}
