package journal_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
)

// TestMemoryKeepsTheLatest: the oldest events go, and numbers are never used again.
func TestMemoryKeepsTheLatest(t *testing.T) {
	m := journal.NewMemory(3)
	for i := range 10 {
		m.Append(nstance.Event{Seq: 77, Reason: strconv.Itoa(i), Instance: "i1", Notice: &nstance.Notice{EventID: "e" + strconv.Itoa(i/2)}})
		found, err := m.Events(t.Context(), journal.Filter{})
		require.NoError(t, err)
		require.Len(t, found, min(i+1, 3))
		require.Equal(t, strconv.Itoa(i), found[len(found)-1].Reason)
		require.EqualValues(t, i+1, found[len(found)-1].Seq)
	}
	notices, err := m.Notices(t.Context(), journal.Filter{})
	require.NoError(t, err)
	require.Equal(t, []journal.NoticeEntry{{Seq: 9, Instance: "i1", EventID: "e4"}, {Seq: 8, Instance: "i1", EventID: "e3"}}, notices)
}
