package agent // the outbox is plain data: what it promises is tested without a session

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func reclaim(id string) nstance.Notice {
	return nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: id,
		Deadline: noon.Add(2 * time.Minute), DetectedAt: noon}
}

// due returns the numbers of all messages that are due.
func due(o *outbox, now time.Time) (numbers []uint64) {
	for {
		m, _ := o.next(now)
		if m == nil {
			return numbers
		}
		numbers = append(numbers, m.GetNumber())
	}
}

func TestOutboxNotices(t *testing.T) {
	t.Run("a notice is due at once and again until it is acknowledged", func(t *testing.T) {
		var o outbox
		require.True(t, o.observe(reclaim("a"), noon))
		m, _ := o.next(noon)
		require.Equal(t, "a", m.GetNotice().GetEventId())
		require.EqualValues(t, 1, m.GetNumber())

		m, wait := o.next(noon.Add(time.Second))
		require.Nil(t, m)
		require.Equal(t, 4*time.Second, wait)
		require.Equal(t, []uint64{2}, due(&o, noon.Add(5*time.Second)))

		o.ack(1) // the first sending counts, though there was a second
		require.Empty(t, due(&o, noon.Add(time.Hour)))
	})
	t.Run("an acknowledged notice goes on standing", func(t *testing.T) {
		var o outbox
		o.observe(reclaim("a"), noon)
		due(&o, noon)
		o.ack(1)
		require.Len(t, o.standing(), 1)
		require.Len(t, o.sendReport(nstance.Report{}, noon).GetReport().GetNotices(), 1)
	})
	t.Run("a new session owes what was not acknowledged, from number 1", func(t *testing.T) {
		var o outbox
		o.observe(reclaim("a"), noon)
		o.observe(reclaim("b"), noon)
		due(&o, noon)
		o.ack(1)
		o.begin()
		m, _ := o.next(noon)
		require.Equal(t, "b", m.GetNotice().GetEventId())
		require.EqualValues(t, 1, m.GetNumber())
		o.ack(2) // of the old session: means nothing now
		require.NotEmpty(t, due(&o, noon.Add(time.Minute)))
	})
	t.Run("the same announcement again is no news", func(t *testing.T) {
		var o outbox
		o.observe(reclaim("a"), noon)
		due(&o, noon)
		o.ack(1)
		again := reclaim("a")
		again.DetectedAt = noon.Add(time.Second)
		require.False(t, o.observe(again, noon.Add(time.Second)))
		require.Empty(t, due(&o, noon.Add(time.Second)))
		require.Equal(t, noon, o.standing()[0].DetectedAt)
	})
	t.Run("a changed deadline is owed again", func(t *testing.T) {
		var o outbox
		o.observe(reclaim("a"), noon)
		due(&o, noon)
		o.ack(1)
		sooner := reclaim("a")
		sooner.Deadline = noon.Add(time.Minute)
		require.True(t, o.observe(sooner, noon))
		require.Equal(t, []uint64{2}, due(&o, noon))
		o.ack(1) // is for the old form
		require.NotEmpty(t, due(&o, noon.Add(time.Minute)))
	})
	t.Run("a withdrawn notice is told and then over", func(t *testing.T) {
		var o outbox
		o.observe(reclaim("a"), noon)
		due(&o, noon)
		gone := reclaim("a")
		gone.Cancelled = true
		require.True(t, o.observe(gone, noon))
		require.Empty(t, o.standing())
		m, _ := o.next(noon)
		require.True(t, m.GetNotice().GetCancelled())
		o.ack(m.GetNumber())
		require.Empty(t, o.items)
	})
	t.Run("there is a bound, and what dooms the machine is kept", func(t *testing.T) {
		var o outbox
		for i := range maxNotices {
			n := reclaim(fmt.Sprint("m", i))
			n.Kind = nstance.Maintenance
			require.True(t, o.observe(n, noon))
		}
		for i := range maxNotices {
			require.True(t, o.observe(reclaim(fmt.Sprint("r", i)), noon))
		}
		require.False(t, o.observe(reclaim("one more"), noon))
		require.Len(t, o.items, maxNotices)
		require.Equal(t, nstance.Reclaim, o.standing()[0].Kind)
	})
	t.Run("what dooms the machine comes first in a report", func(t *testing.T) {
		var o outbox
		n := reclaim("m")
		n.Kind = nstance.Rebalance
		o.observe(n, noon)
		o.observe(reclaim("r"), noon)
		require.Equal(t, "r", o.sendReport(nstance.Report{}, noon).GetReport().GetNotices()[0].GetEventId())
	})
}

func TestOutboxLateNotices(t *testing.T) {
	t.Run("a deadline in the past is not judged: the detector does that", func(t *testing.T) {
		var o outbox
		require.True(t, o.observe(reclaim("a"), noon.Add(3*time.Minute)))
		require.Len(t, o.standing(), 1)
	})
	t.Run("a notice stands past its deadline", func(t *testing.T) {
		var o outbox
		o.observe(reclaim("a"), noon)
		require.False(t, o.observe(reclaim("a"), noon.Add(time.Hour)))
		require.Len(t, o.standing(), 1)
		require.NotEmpty(t, due(&o, noon.Add(time.Hour)))
	})
}

func TestOutboxSendsDurations(t *testing.T) {
	var o outbox
	o.observe(reclaim("a"), noon)
	none := reclaim("b")
	none.Deadline = time.Time{}
	o.observe(none, noon)
	now := noon.Add(7 * time.Second)
	m, _ := o.next(now)
	for _, n := range append(o.sendReport(nstance.Report{}, now).GetReport().GetNotices(), m.GetNotice()) {
		require.Equal(t, 7*time.Second, n.GetSinceDetected().AsDuration())
		if n.GetEventId() == "b" {
			require.Nil(t, n.GetTimeLeft())
			continue
		}
		require.Equal(t, 113*time.Second, n.GetTimeLeft().AsDuration())
	}
	late, _ := o.next(noon.Add(3 * time.Minute))
	require.Equal(t, "a", late.GetNotice().GetEventId(), "sent again")
	require.Equal(t, -time.Minute, late.GetNotice().GetTimeLeft().AsDuration())
}

func TestOutboxResults(t *testing.T) {
	result := func(g uint64) *apiv1.DrainResult { return &apiv1.DrainResult{Generation: g, Outcome: "drained"} }

	t.Run("a result is sent until it is acknowledged, over sessions", func(t *testing.T) {
		var o outbox
		o.result(result(7))
		require.Len(t, due(&o, noon), 1)
		o.begin()
		m, _ := o.next(noon)
		require.EqualValues(t, 7, m.GetDrainResult().GetGeneration())
		o.ack(m.GetNumber())
		require.Empty(t, o.items)
	})
	t.Run("one generation is owed once", func(t *testing.T) {
		var o outbox
		o.result(result(7))
		o.result(result(7))
		require.Len(t, due(&o, noon), 1)
	})
	t.Run("only the latest are kept", func(t *testing.T) {
		var o outbox
		for g := range uint64(10) {
			o.result(result(g))
		}
		require.Len(t, o.items, maxResults)
		require.EqualValues(t, 9, o.items[maxResults-1].result.GetGeneration())
	})
}

func TestOutboxOverdue(t *testing.T) {
	t.Run("a doomed machine is on its own after 5 s, once", func(t *testing.T) {
		var o outbox
		o.observe(reclaim("a"), noon)
		due, wait := o.overdue(noon.Add(time.Second))
		require.Nil(t, due)
		require.Equal(t, 4*time.Second, wait)
		due, _ = o.overdue(noon.Add(5 * time.Second))
		require.NotNil(t, due)
		require.Equal(t, "a", due.notice.EventID)
		due, wait = o.overdue(noon.Add(time.Hour))
		require.Nil(t, due)
		require.Zero(t, wait)
	})
	t.Run("not when it was acknowledged, in whatever form", func(t *testing.T) {
		var o outbox
		o.observe(reclaim("a"), noon)
		due(&o, noon)
		o.ack(1)
		sooner := reclaim("a")
		sooner.Deadline = noon.Add(time.Minute)
		o.observe(sooner, noon)
		due, _ := o.overdue(noon.Add(time.Hour))
		require.Nil(t, due)
	})
	t.Run("not for what dooms nothing", func(t *testing.T) {
		var o outbox
		n := reclaim("a")
		n.Kind = nstance.Rebalance
		o.observe(n, noon)
		due, _ := o.overdue(noon.Add(time.Hour))
		require.Nil(t, due)
	})
}

func TestOutboxReports(t *testing.T) {
	t.Run("the last report is the last acknowledged one", func(t *testing.T) {
		var o outbox
		m := o.sendReport(nstance.Report{}, noon)
		require.Zero(t, o.lastReport)
		o.ack(m.GetNumber())
		require.Equal(t, noon, o.lastReport)
	})
	t.Run("numbers grow over all kinds of message", func(t *testing.T) {
		var o outbox
		o.observe(reclaim("a"), noon)
		require.EqualValues(t, 1, o.sendReport(nstance.Report{}, noon).GetNumber())
		m, _ := o.next(noon)
		require.EqualValues(t, 2, m.GetNumber())
		require.EqualValues(t, 3, o.sendGoodbye("x").GetNumber())
	})
}
