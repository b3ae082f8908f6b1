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

// TestEventsOfAdvice: advice is known by the ID of the source that announced it first, too; what
// differs in kind, time or announcement is another event.
func TestEventsOfAdvice(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	advice := nstance.Notice{EventID: "a", Kind: nstance.Rebalance, Source: "aws/rebalance", NotBefore: at}
	other := advice
	other.EventID, other.Source = "b", "aws/rebalance/eventbridge"
	book := notices.Book{Advice: []nstance.Notice{advice}, Standing: []nstance.Notice{{EventID: "s", Kind: nstance.Reclaim, Source: "aws/spot"}}}
	require.Equal(t, "a", book.EventID(other))
	require.Equal(t, "a", book.EventID(advice))
	require.Equal(t, "s", book.EventID(nstance.Notice{EventID: "s"}))
	reclaim := other
	reclaim.EventID, reclaim.Kind = "c", nstance.Reclaim
	require.Equal(t, "c", book.EventID(reclaim))
	later := other
	later.EventID, later.NotBefore = "d", at.Add(time.Hour)
	require.Equal(t, "d", book.EventID(later))

	acked := 0
	book.Owe("a", false, func() { acked++ })
	book.Owe("s", false, nil)
	require.False(t, book.DropAdvice("s"), "it is no advice")
	require.Zero(t, acked)
	require.True(t, book.DropAdvice("a"))
	require.Equal(t, 1, acked)
	require.Equal(t, "b", book.FirstEventID("b"))
	require.Len(t, book.Standing, 1)
}

// TestAliasesAreBounded: an agent that invents sources fills no memory.
func TestAliasesAreBounded(t *testing.T) {
	book := notices.Book{Standing: []nstance.Notice{{EventID: "a", Kind: nstance.Reclaim, Source: "aws/spot"}}}
	for i := range 1000 {
		require.Equal(t, "a", book.EventID(nstance.Notice{EventID: fmt.Sprint(i), Kind: nstance.Reclaim, Source: fmt.Sprint("aws/spot/", i)}))
	}
	known := 0
	for i := range 1000 {
		if book.FirstEventID(fmt.Sprint(i)) == "a" {
			known++
		}
	}
	require.Equal(t, 2*notices.Max, known)
}

// TestOldestRebalance: maintenance makes no room, and the oldest of the rest does.
func TestOldestRebalance(t *testing.T) {
	book := notices.Book{Advice: []nstance.Notice{{EventID: "m", Kind: nstance.Maintenance}, {EventID: "a", Kind: nstance.Rebalance}, {EventID: "b", Kind: nstance.Rebalance}}}
	before := book.Advice
	require.True(t, book.DropOldestRebalance())
	require.Equal(t, []string{"m", "b"}, []string{book.Advice[0].EventID, book.Advice[1].EventID})
	require.Equal(t, "a", before[1].EventID, "a copy does not change")
	require.True(t, book.DropOldestRebalance())
	require.False(t, book.DropOldestRebalance())
	require.Len(t, book.Advice, 1)
}

// TestReceive: a notice is received in the leader's time, and is overdue at its deadline.
func TestReceive(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	var book notices.Book
	for left, overdue := range map[time.Duration]bool{time.Nanosecond: false, 0: true, -time.Hour: true} {
		n := nstance.Notice{EventID: "a", Deadline: now.Add(left)}
		require.Equal(t, overdue, book.Receive(&n, now, 0), left)
		require.Equal(t, now.UTC(), n.ReceivedAt)
	}
	n := nstance.Notice{EventID: "b"}
	require.False(t, book.Receive(&n, now, 0), "it has no deadline")
	require.Equal(t, now.UTC(), n.ReceivedAt)
}

// TestWithdraw: of a withdrawn notice nothing is left, and the others stand as they stood.
func TestWithdraw(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var book notices.Book
	for _, id := range []string{"a", "b", "c"} {
		n := nstance.Notice{EventID: id, Deadline: now.Add(time.Minute)}
		book.Receive(&n, now, 0)
		book.Standing = append(book.Standing, n)
	}
	before := book.Standing
	book.Withdraw("b")
	require.Equal(t, []nstance.Notice{before[0], before[2]}, book.Standing)
	require.Equal(t, "b", before[1].EventID, "a copy does not change")
	again := nstance.Notice{EventID: "b", Deadline: now.Add(48 * time.Hour)} // of a record: not received by this term
	book.Standing = append(book.Standing, again)
	book.DropExpired(now, 12*time.Minute)
	require.Equal(t, []nstance.Notice{again}, book.Standing, "the end of the first is forgotten")
	require.False(t, book.Dropped("b"))
}

// TestDroppedAreBounded: those that were dropped last are remembered.
func TestDroppedAreBounded(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var book notices.Book
	for i := range 40 {
		n := nstance.Notice{EventID: fmt.Sprint(i), Deadline: now}
		book.Receive(&n, now, 0)
		book.Standing = append(book.Standing, n)
		book.DropExpired(now, 10*time.Minute)
	}
	for i := range 40 {
		require.Equal(t, i >= 40-notices.Max, book.Dropped(fmt.Sprint(i)), i)
	}
}

// TestSettle: a notice is acknowledged while its consequence is durable, a withdrawal once it is
// not, or when it is ignored. Each is acknowledged once.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		durable, ignored bool
		acked            []string
		later            []string // once the opposite is durable
	}{
		{true, false, []string{"notice"}, []string{"notice", "withdrawal"}},
		{true, true, []string{"notice", "withdrawal"}, []string{"notice", "withdrawal"}},
		{false, false, []string{"withdrawal"}, []string{"withdrawal", "notice"}},
		{false, true, []string{"withdrawal"}, []string{"withdrawal", "notice"}},
	} {
		var book notices.Book
		var acked []string
		book.Owe("a", false, func() { acked = append(acked, "notice") })
		book.Owe("a", true, func() { acked = append(acked, "withdrawal") })
		durable := func(eventID string) bool { return c.durable == (eventID == "a") }
		for range 2 {
			book.Settle(durable, c.ignored)
			require.ElementsMatch(t, c.acked, acked)
		}
		book.Settle(func(string) bool { return !c.durable }, c.ignored)
		require.ElementsMatch(t, c.later, acked)
	}
}

// TestSame compares two lists in both directions: a deadline that was put off is another one.
func TestSame(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a, b := []nstance.Notice{{EventID: "a", Deadline: at}}, []nstance.Notice{{EventID: "a", Deadline: at.Add(time.Hour)}}
	require.True(t, notices.Same(a, a))
	require.True(t, notices.Same(nil, nil))
	require.False(t, notices.Same(a, b))
	require.False(t, notices.Same(b, a))
	require.False(t, notices.Same(a, nil))
}
