package journal_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/journal/journaltest"
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

func TestMemoryIsAJournal(t *testing.T) {
	journaltest.Run(t, func(*testing.T) journal.Journal { return journal.NewMemory(200) })
}

// TestMemoryIsSharedByTenants: a tenant with many events does not push those of others
// out.
func TestMemoryIsSharedByTenants(t *testing.T) {
	m := journal.NewMemory(100)
	for i := range 30 {
		m.Append(nstance.Event{Tenant: "blue", Reason: strconv.Itoa(i)})
	}
	for i := range 10_000 {
		m.Append(nstance.Event{Tenant: "red", Reason: strconv.Itoa(i)})
	}
	found, err := m.Events(t.Context(), journal.Filter{Tenant: "blue"})
	require.NoError(t, err)
	require.Len(t, found, 30)
	found, err = m.Events(t.Context(), journal.Filter{})
	require.NoError(t, err)
	require.Len(t, found, 100)
	require.Equal(t, "9999", found[99].Reason)
	require.IsIncreasing(t, seqs(found))
}

func seqs(events []nstance.Event) (all []uint64) {
	for _, e := range events {
		all = append(all, uint64(e.Seq))
	}
	return all
}

// TestMostOfAFilter: a filter asks for so many events and names so many instances.
func TestMostOfAFilter(t *testing.T) {
	for limit, most := range map[int]int{-1: 100, 0: 100, 1: 1, journal.MaxLimit: journal.MaxLimit, journal.MaxLimit + 1: journal.MaxLimit} {
		f := journal.Filter{Limit: limit}
		require.Equal(t, most, f.Max(), "limit %d", limit)
	}
	ids := make([]nstance.InstanceID, journal.MaxLimit+1)
	for i := range ids {
		ids[i] = nstance.InstanceID(strconv.Itoa(i))
	}
	f := journal.Filter{Any: ids}
	require.True(t, f.Matches(&nstance.Event{Seq: 1, Instance: ids[journal.MaxLimit-1]}))
	require.False(t, f.Matches(&nstance.Event{Seq: 1, Instance: ids[journal.MaxLimit]}))
}
