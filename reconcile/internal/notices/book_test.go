package notices_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/notices"
)

// TestAliases: what another source announces of a known event has the first source's ID,
// until the event is withdrawn.
func TestAliases(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first := nstance.Notice{EventID: "a", Kind: nstance.Reclaim, Source: "aws/spot", Deadline: at}
	other := nstance.Notice{EventID: "b", Kind: nstance.Reclaim, Source: "aws/spot/eventbridge", Deadline: at}
	book := notices.Book{Standing: []nstance.Notice{first}}
	require.Equal(t, "a", book.EventID(other))
	require.Equal(t, "a", book.FirstEventID("b"))
	acked := false
	book.Owe("a", false, func() { acked = true })
	book.Withdraw("a")
	require.Empty(t, book.Standing)
	require.True(t, acked, "nothing is owed for it any more")
	require.Equal(t, "b", book.EventID(other), "another event")
}

// TestDropExpired: a notice is dropped ten minutes after its deadline, in elapsed time from
// when it was received or, of a record, first read; without a deadline it stays.
func TestDropExpired(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	received := nstance.Notice{EventID: "received", Deadline: now.Add(2 * time.Minute)}
	book := notices.Book{Standing: []nstance.Notice{{EventID: "endless"}, {EventID: "recorded", Deadline: now.Add(-time.Hour)}}}
	require.False(t, book.Receive(&received, now, time.Hour))
	book.Standing = append(book.Standing, received)
	book.DropExpired(now, time.Hour)
	require.Len(t, book.Standing, 3)
	book.DropExpired(now.Add(24*time.Hour), time.Hour+10*time.Minute)
	require.True(t, book.Dropped("recorded"))
	require.False(t, book.Dropped("received"), "whatever the wall clock says")
	book.DropExpired(now, time.Hour+12*time.Minute)
	require.True(t, book.Dropped("received"))
	require.Equal(t, []nstance.Notice{{EventID: "endless"}}, book.Standing)
}

// TestAcksAreBounded: an agent that repeats a notice without end does not fill the memory.
func TestAcksAreBounded(t *testing.T) {
	var book notices.Book
	acked := 0
	for range 100 {
		book.Owe("a", false, func() { acked++ })
	}
	for i := range 100 {
		book.EventID(nstance.Notice{EventID: fmt.Sprint(i)})
	}
	book.Settle(func(string) bool { return true }, false)
	require.Equal(t, notices.Max, acked)
}
