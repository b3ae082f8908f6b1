package agent // tests the outbox without sessions

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/test/wallclock"
	"github.com/nstance-go/nstance/internal/wire"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func reclaimNotice(id string) nstance.Notice {
	return nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: id,
		Deadline: noon.Add(2 * time.Minute), DetectedAt: noon}
}

// dueMessages returns all messages that are due.
func dueMessages(o *outbox, now time.Time) (messages []*apiv1.ConnectRequest) {
	for {
		m, _ := o.next(now)
		if m == nil {
			return messages
		}
		messages = append(messages, m)
	}
}

// noticeStates returns each notice of a set: its event, + if acknowledged, - if cancelled.
func noticeStates(set *apiv1.StandingNotices) (all []string) {
	for _, n := range set.GetNotices() {
		text := n.GetEventId()
		if slices.Contains(set.GetAcknowledged(), n.GetEventId()) {
			text += "+"
		}
		if n.GetCancelled() {
			text += "-"
		}
		all = append(all, text)
	}
	return all
}

func TestOutboxNotices(t *testing.T) {
	t.Parallel()
	t.Run("the notices are due at once and again until they are acknowledged", func(t *testing.T) {
		var o outbox
		require.True(t, o.observe(reclaimNotice("a"), noon))
		m, _ := o.next(noon)
		require.Equal(t, []string{"a"}, noticeStates(m.GetNotices()))
		require.EqualValues(t, 1, m.GetNumber())
		require.EqualValues(t, 1, m.GetNotices().GetRevision())

		m, wait := o.next(noon.Add(time.Second))
		require.Nil(t, m)
		require.Equal(t, 4*time.Second, wait)
		again := dueMessages(&o, noon.Add(5*time.Second))
		require.Len(t, again, 1)
		require.EqualValues(t, 2, again[0].GetNumber())
		require.EqualValues(t, 1, again[0].GetNotices().GetRevision(), "the same notices")

		o.ackNotices(1)
		require.Empty(t, dueMessages(&o, noon.Add(time.Hour)))
	})
	t.Run("a report sends them too", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		require.Equal(t, []string{"a"}, noticeStates(o.sendReport(nstance.Report{}, noon).GetReport().GetNotices()))
		require.Empty(t, dueMessages(&o, noon))
		require.Len(t, dueMessages(&o, noon.Add(5*time.Second)), 1, "it was not acknowledged")
	})
	t.Run("an acknowledged notice stays in the set", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		dueMessages(&o, noon)
		o.ackNotices(1)
		require.Len(t, o.standing(), 1)
		require.Equal(t, []string{"a+"}, noticeStates(o.sendReport(nstance.Report{}, noon).GetReport().GetNotices()))
	})
	t.Run("each session begins with all notices, from number 1", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		dueMessages(&o, noon)
		o.ackNotices(1)
		o.observe(reclaimNotice("b"), noon)
		dueMessages(&o, noon)
		o.begin()
		m, _ := o.next(noon)
		require.Equal(t, []string{"a+", "b"}, noticeStates(m.GetNotices()))
		require.EqualValues(t, 1, m.GetNumber())
		o.ackNotices(2)
		require.Empty(t, dueMessages(&o, noon.Add(time.Hour)))
		o.begin()
		require.Len(t, dueMessages(&o, noon), 1, "acknowledged or not: the server may be another one")
	})
	t.Run("a revision acknowledges all before it, and none after it", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		o.observe(reclaimNotice("b"), noon)
		o.observe(reclaimNotice("c"), noon)
		o.ackNotices(2)
		require.Equal(t, []string{"a+", "b+", "c"}, noticeStates(dueMessages(&o, noon)[0].GetNotices()))
		o.ackNotices(1)
		require.EqualValues(t, 2, o.ackedRevision, "an older acknowledgement takes nothing back")
		o.ackNotices(99)
		o.observe(reclaimNotice("d"), noon)
		require.Equal(t, []string{"a+", "b+", "c+", "d"}, noticeStates(dueMessages(&o, noon)[0].GetNotices()), "a revision that was never sent")
	})
	t.Run("a repeated announcement changes nothing", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		dueMessages(&o, noon)
		o.ackNotices(1)
		for _, later := range []time.Duration{0, -time.Second, time.Hour} {
			again := reclaimNotice("a")
			again.DetectedAt = noon.Add(time.Second)
			again.Deadline = again.Deadline.Add(later)
			require.False(t, o.observe(again, noon.Add(time.Second)))
		}
		require.Empty(t, dueMessages(&o, noon.Add(time.Second)))
		require.Equal(t, []nstance.Notice{reclaimNotice("a")}, o.standing())
	})
	t.Run("an earlier deadline is due again", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		dueMessages(&o, noon)
		o.ackNotices(1)
		sooner := reclaimNotice("a")
		sooner.Deadline, sooner.DetectedAt = noon.Add(time.Minute), noon.Add(time.Second)
		require.True(t, o.observe(sooner, noon))
		m, _ := o.next(noon)
		require.EqualValues(t, 2, m.GetNotices().GetRevision())
		require.Equal(t, []string{"a"}, noticeStates(m.GetNotices()))
		require.Equal(t, noon, o.standing()[0].DetectedAt)
		o.ackNotices(1) // is for the old form
		require.NotEmpty(t, dueMessages(&o, noon.Add(time.Minute)))
	})
	t.Run("a withdrawn notice is sent until that is acknowledged", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		dueMessages(&o, noon)
		o.ackNotices(1)
		gone := reclaimNotice("a")
		gone.Cancelled = true
		require.True(t, o.observe(gone, noon))
		require.Empty(t, o.standing())
		o.ackNotices(1) // is for the notice
		o.begin()
		require.Equal(t, []string{"a-"}, noticeStates(dueMessages(&o, noon)[0].GetNotices()))
		require.Equal(t, []string{"a-"}, noticeStates(o.sendReport(nstance.Report{}, noon).GetReport().GetNotices()))
		o.ackNotices(2)
		require.Empty(t, o.notices)
		require.Nil(t, o.sendReport(nstance.Report{}, noon).GetReport().GetNotices())
	})
	t.Run("the set is bounded, and notices that doom the machine are kept", func(t *testing.T) {
		var o outbox
		for i := range wire.MaxNotices {
			n := reclaimNotice(fmt.Sprint("m", i))
			n.Kind = nstance.Maintenance
			require.True(t, o.observe(n, noon))
		}
		for i := range wire.MaxNotices {
			require.True(t, o.observe(reclaimNotice(fmt.Sprint("r", i)), noon))
		}
		require.False(t, o.observe(reclaimNotice("one more"), noon))
		require.Len(t, o.notices, wire.MaxNotices)
		require.Equal(t, nstance.Reclaim, o.standing()[0].Kind)
	})
}

func TestOutboxLateNotices(t *testing.T) {
	t.Parallel()
	t.Run("a deadline in the past is kept: only the detector drops stale notices", func(t *testing.T) {
		var o outbox
		require.True(t, o.observe(reclaimNotice("a"), noon.Add(3*time.Minute)))
		require.Len(t, o.standing(), 1)
	})
	t.Run("a notice stays past its deadline", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		require.False(t, o.observe(reclaimNotice("a"), noon.Add(time.Hour)))
		require.Len(t, o.standing(), 1)
		require.NotEmpty(t, dueMessages(&o, noon.Add(time.Hour)))
	})
}

func TestOutboxSendsDurations(t *testing.T) {
	t.Parallel()
	var o outbox
	o.observe(reclaimNotice("a"), noon)
	none := reclaimNotice("b")
	none.Deadline = time.Time{}
	o.observe(none, noon)
	now := noon.Add(7 * time.Second)
	m, _ := o.next(now)
	for _, set := range []*apiv1.StandingNotices{m.GetNotices(), o.sendReport(nstance.Report{}, now).GetReport().GetNotices()} {
		require.Len(t, set.GetNotices(), 2)
		for _, n := range set.GetNotices() {
			require.Equal(t, 7*time.Second, n.GetSinceDetected().AsDuration())
		}
		require.Equal(t, 113*time.Second, set.GetNotices()[0].GetTimeLeft().AsDuration())
		require.Nil(t, set.GetNotices()[1].GetTimeLeft())
	}
	late, _ := o.next(noon.Add(3 * time.Minute))
	require.Equal(t, "a", late.GetNotices().GetNotices()[0].GetEventId(), "sent again")
	require.Equal(t, -time.Minute, late.GetNotices().GetNotices()[0].GetTimeLeft().AsDuration())
}

// TestOutboxSendsDurationsAfterTheClockWasSet: a deadline is by the clock of its time.
func TestOutboxSendsDurationsAfterTheClockWasSet(t *testing.T) {
	t.Parallel()
	var o outbox
	now := wallclock.Ahead(0)
	n := reclaimNotice("a")
	n.DetectedAt, n.Deadline = now.Round(0), now.Round(0).Add(2*time.Minute)
	o.observe(n, now)
	m, _ := o.next(wallclock.Ahead(time.Hour))
	left := m.GetNotices().GetNotices()[0].GetTimeLeft().AsDuration()
	require.InDelta(t, 2*time.Minute, left, float64(time.Second))
}

func TestOutboxResults(t *testing.T) {
	t.Parallel()
	result := func(g uint64) *apiv1.DrainResult { return &apiv1.DrainResult{Generation: g, Outcome: "drained"} }

	t.Run("a result is sent until it is acknowledged, over sessions", func(t *testing.T) {
		var o outbox
		o.result(result(7))
		require.Len(t, dueMessages(&o, noon), 1)
		_, wait := o.next(noon.Add(time.Second))
		require.Equal(t, 4*time.Second, wait)
		require.Len(t, dueMessages(&o, noon.Add(5*time.Second)), 1)
		o.begin()
		m, _ := o.next(noon)
		require.EqualValues(t, 7, m.GetDrainResult().GetGeneration())
		o.ack(&apiv1.Acknowledgement{Received: &apiv1.Acknowledgement_DrainGeneration{DrainGeneration: 7}})
		require.Empty(t, o.results)
	})
	t.Run("one result is kept per generation", func(t *testing.T) {
		var o outbox
		o.result(result(7))
		o.result(result(7))
		require.Len(t, dueMessages(&o, noon), 1)
	})
	t.Run("only the latest results are kept", func(t *testing.T) {
		var o outbox
		for g := range uint64(10) {
			o.result(result(g))
		}
		require.Len(t, o.results, maxResults)
		require.EqualValues(t, 9, o.results[maxResults-1].GetGeneration())
	})
}

func TestOutboxOverdue(t *testing.T) {
	t.Parallel()
	t.Run("an unacknowledged notice that dooms the machine is overdue after 5 s, until a drain answers it", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		due, wait := o.overdue(noon.Add(time.Second), nil)
		require.Nil(t, due)
		require.Equal(t, 4*time.Second, wait)
		due, _ = o.overdue(noon.Add(5*time.Second), nil)
		require.NotNil(t, due)
		require.Equal(t, "a", due.EventID)
		due, wait = o.overdue(noon.Add(time.Hour), []string{"a"})
		require.Nil(t, due)
		require.Zero(t, wait)
	})
	t.Run("not when any form of it was acknowledged", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		dueMessages(&o, noon)
		o.ackNotices(1)
		sooner := reclaimNotice("a")
		sooner.Deadline = noon.Add(time.Minute)
		o.observe(sooner, noon)
		due, _ := o.overdue(noon.Add(time.Hour), nil)
		require.Nil(t, due)
	})
	t.Run("not for a notice that does not doom the machine", func(t *testing.T) {
		var o outbox
		n := reclaimNotice("a")
		n.Kind = nstance.Rebalance
		o.observe(n, noon)
		due, _ := o.overdue(noon.Add(time.Hour), nil)
		require.Nil(t, due)
	})
}

func TestOutboxReports(t *testing.T) {
	t.Parallel()
	t.Run("the last report is the last acknowledged one", func(t *testing.T) {
		var o outbox
		ack := func(m *apiv1.ConnectRequest) {
			o.ack(&apiv1.Acknowledgement{Received: &apiv1.Acknowledgement_Report{Report: m.GetNumber()}})
		}
		m := o.sendReport(nstance.Report{}, noon)
		require.Zero(t, o.lastReport)
		ack(m)
		require.Equal(t, noon, o.lastReport)
		o.sendReport(nstance.Report{}, noon.Add(time.Minute))
		ack(m)
		require.Equal(t, noon, o.lastReport)
	})
	t.Run("numbers grow over all kinds of message", func(t *testing.T) {
		var o outbox
		o.observe(reclaimNotice("a"), noon)
		m, _ := o.next(noon)
		require.EqualValues(t, 1, m.GetNumber())
		require.EqualValues(t, 2, o.sendReport(nstance.Report{}, noon).GetNumber())
		require.EqualValues(t, 3, o.sendGoodbye("x").GetNumber())
	})
}

func TestOutboxRestored(t *testing.T) {
	t.Parallel()
	t.Run("what was acknowledged stays so, the rest is due", func(t *testing.T) {
		var first, o outbox
		first.observe(reclaimNotice("a"), noon)
		first.ackNotices(1)
		first.observe(reclaimNotice("b"), noon)
		o.restore(first.saved(), noon.Add(time.Minute))
		o.begin()
		require.Equal(t, []string{"a+", "b"}, noticeStates(dueMessages(&o, noon.Add(time.Minute))[0].GetNotices()))
		due, wait := o.overdue(noon.Add(time.Minute), nil)
		require.Nil(t, due, "a server may be there")
		require.Equal(t, fallbackAfter, wait)
		o.ackNotices(o.revision)
		require.Empty(t, dueMessages(&o, noon.Add(time.Hour)))
	})
	t.Run("the detector's deadline replaces one by another clock, once", func(t *testing.T) {
		var first, o outbox
		slow := reclaimNotice("a")
		slow.Deadline = slow.Deadline.AddDate(-50, 0, 0)
		first.observe(slow, noon)
		o.restore(first.saved(), noon)
		later := reclaimNotice("a")
		require.True(t, o.observe(later, noon))
		require.Equal(t, later.Deadline, o.standing()[0].Deadline)
		later.Deadline = later.Deadline.Add(time.Hour)
		require.False(t, o.observe(later, noon), "from then on deadlines only tighten")
	})
}
