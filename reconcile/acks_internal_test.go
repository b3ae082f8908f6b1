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
	acked := map[string]bool{}
	m := &member{rec: records.Instance{Reclaims: 2, Drain: &nstance.Drain{Causes: []nstance.Cause{{Kind: nstance.CauseNotice, EventID: "e1"}}}}}
	m.Owe("e1", false, func() { acked["e1"] = true })
	m.Owe("e2", false, func() { acked["e2"] = true })
	m.Owe("e1", true, func() { acked["end of e1"] = true })
	m.Settle(m.consequenceDurable, m.withdrawalIgnored())
	require.Equal(t, map[string]bool{"e1": true, "end of e1": true}, acked, "e2 is not in the record yet")
	m.rec.Drain.Causes = append(m.rec.Drain.Causes, nstance.Cause{Kind: nstance.CauseNotice, EventID: "e2"})
	m.Settle(m.consequenceDurable, m.withdrawalIgnored())
	require.True(t, acked["e2"])
}
