package operators

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
)

func TestInterruptions(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	notice := func(id, source string) *nstance.Notice {
		return &nstance.Notice{Kind: nstance.Reclaim, EventID: id, Source: source, DetectedAt: t0, Deadline: at(120)}
	}
	s := newInterruptionReader()
	for _, e := range []nstance.Event{
		{Type: eventtype.NoticeDetected, Instance: "a", Tenant: "t", Group: "web", Time: at(0), Notice: notice("e1", "aws/spot")},
		{Type: nstance.EventNoticeReceived, Instance: "a", Time: at(1), Notice: notice("e1", "aws/spot")},
		{Type: nstance.EventReplacementRequested, Instance: "b", Replaces: "a", Time: at(2)},
		{Type: nstance.EventDrainStarted, Instance: "a", Time: at(3)},
		{Type: nstance.EventNoticeReceived, Instance: "c", Time: at(4), Notice: notice("e2", "rehearsal/ann")},
		{Type: nstance.EventNoticeReceived, Instance: "a", Time: at(5), Notice: notice("e1", "aws/spot")}, // by a new leader
		{Type: nstance.EventDrainAcknowledged, Instance: "a", Reason: "drained", Time: at(6)},
		{Type: nstance.EventDrainCutShort, Instance: "a", Time: at(7)},
		{Type: nstance.EventDeleted, Instance: "a", Time: at(8)},
		{Type: nstance.EventDrainStarted, Instance: "c", Time: at(9)},
		{Type: nstance.EventDrainCancelled, Instance: "c", Time: at(10)},
		{Type: nstance.EventReplacementRequested, Instance: "y", Replaces: "a", Time: at(9)}, // another one
		{Type: nstance.EventReady, Instance: "y", Time: at(10)},
		{Type: nstance.EventReady, Instance: "b", Replaces: "a", Time: at(11)},
		{Type: nstance.EventReady, Instance: "z", Time: at(11)},
		{Type: nstance.EventDeleted, Instance: "c", Time: at(99)}, // long afterwards, for something else
	} {
		s.add(e)
	}
	require.Len(t, s.of["a"], 1)
	a, c := s.occurrences("a", "e1")[0], s.occurrences("c", "e2")[0]
	require.Equal(t, []string{"e1", "t", "web", "a", "b", "drained"}, []string{a.GetEventId(), a.GetTenant(), a.GetGroup(), a.GetInstance(), a.GetReplacement(), a.GetDrainOutcome()})
	require.False(t, a.GetRehearsal() || a.GetWithdrawn())
	for i, want := range []time.Time{at(0), at(1), at(2), at(11), at(3), at(6), at(8)} {
		have := []time.Time{
			a.GetDetectedAt().AsTime(), a.GetReceivedAt().AsTime(), a.GetReplacementRequestedAt().AsTime(), a.GetReplacementReadyAt().AsTime(),
			a.GetDrainStartedAt().AsTime(), a.GetDrainedAt().AsTime(), a.GetDeletedAt().AsTime(),
		}[i]
		require.Equal(t, want, have, "step %d", i)
	}
	require.True(t, c.GetRehearsal() && c.GetWithdrawn())
	require.Equal(t, "cancelled", c.GetDrainOutcome())
	require.Nil(t, c.GetDeletedAt())

	received := notice("e3", "rehearsal/ann")
	received.ReceivedAt = at(19)
	s.add(nstance.Event{Type: eventtype.NoticeDetected, Instance: "d", Time: at(18), Notice: notice("e3", "aws/spot")})
	s.add(nstance.Event{Type: nstance.EventNoticeReceived, Instance: "d", Time: at(20), Notice: received})
	d := s.occurrences("d", "e3")[0]
	require.True(t, d.GetRehearsal(), "the server knows, the agent does not")
	require.Equal(t, "rehearsal/ann", d.GetNotice().GetSource())
	require.Equal(t, at(19), d.GetReceivedAt().AsTime(), "as the record has it")
	s = newInterruptionReader()
	s.add(nstance.Event{Type: nstance.EventNoticeReceived, Instance: "a"})
	require.Empty(t, s.of, "damaged lines tell nothing")
}

// TestReturningEvent: an event that returns after it was withdrawn is another
// interruption; what an agent merely repeats is not.
func TestReturningEvent(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	notice := func(s int) *nstance.Notice {
		return &nstance.Notice{Kind: nstance.Reclaim, EventID: "gcp/preempted", Source: "gcp/preempted", DetectedAt: at(s), ReceivedAt: at(s)}
	}
	s := newInterruptionReader()
	for _, e := range []nstance.Event{
		{Type: nstance.EventNoticeReceived, Time: at(1), Notice: notice(1)},
		{Type: nstance.EventDrainStarted, Time: at(2)},
		{Type: nstance.EventDrainCancelled, Time: at(3)},
		{Type: eventtype.NoticeDetected, Time: at(4), Notice: notice(4)},
		{Type: eventtype.NoticeDetected, Time: at(5), Notice: notice(5)},
	} {
		e.Instance = "a"
		s.add(e)
	}
	require.Len(t, s.occurrences("a", "gcp/preempted"), 1)
	for _, e := range []nstance.Event{
		{Type: nstance.EventNoticeReceived, Time: at(6), Notice: notice(6)},
		{Type: nstance.EventDrainStarted, Time: at(7)},
		{Type: nstance.EventDeleted, Time: at(8)},
	} {
		e.Instance = "a"
		s.add(e)
	}
	all := s.occurrences("a", "gcp/preempted")
	require.Len(t, all, 2)
	require.Equal(t, []bool{false, true}, []bool{all[0].GetWithdrawn(), all[1].GetWithdrawn()})
	require.Equal(t, []time.Time{at(6), at(7), at(8)}, []time.Time{all[0].GetReceivedAt().AsTime(), all[0].GetDrainStartedAt().AsTime(), all[0].GetDeletedAt().AsTime()})
	require.Nil(t, all[1].GetDeletedAt())
}

// TestOccurrences combines what the journal, the records and the ledger have of one event.
func TestOccurrences(t *testing.T) {
	row := func(received, detected int64, withdrawn bool) *apiv1.Interruption {
		return &apiv1.Interruption{
			Instance: "a", EventId: "e", ReceivedAt: &timestamppb.Timestamp{Seconds: received}, DetectedAt: &timestamppb.Timestamp{Seconds: detected}, Withdrawn: withdrawn,
		}
	}
	for name, c := range map[string]struct{ sources, want []*apiv1.Interruption }{
		"the same":                       {[]*apiv1.Interruption{row(5, 4, false), row(5, 4, false)}, []*apiv1.Interruption{row(5, 4, false)}},
		"its deadline became tighter":    {[]*apiv1.Interruption{row(5, 4, false), row(6, 4, false)}, []*apiv1.Interruption{row(5, 4, false)}},
		"a tighter one was withdrawn":    {[]*apiv1.Interruption{row(5, 4, true), row(6, 4, true)}, []*apiv1.Interruption{row(5, 4, true)}},
		"withdrawn under another leader": {[]*apiv1.Interruption{row(5, 4, false), row(5, 4, true)}, []*apiv1.Interruption{row(5, 4, true)}},
		"returned under another leader":  {[]*apiv1.Interruption{row(5, 4, false), row(5, 4, true), row(9, 8, false)}, []*apiv1.Interruption{row(9, 8, false), row(5, 4, true)}},
		"returned as it was first seen":  {[]*apiv1.Interruption{row(5, 4, true), row(9, 4, false), row(5, 4, true), row(9, 4, false)}, []*apiv1.Interruption{row(9, 4, false), row(5, 4, true)}},
		"withdrawn twice":                {[]*apiv1.Interruption{row(9, 8, true), row(5, 4, true), row(5, 4, true), row(9, 8, true)}, []*apiv1.Interruption{row(9, 8, true), row(5, 4, true)}},
	} {
		s := newSelection(interruptionQuery{limit: 10})
		for _, i := range c.sources {
			s.add(i)
		}
		got := s.answer().GetInterruptions()
		require.Len(t, got, len(c.want), name)
		for i := range got {
			require.True(t, proto.Equal(c.want[i], got[i]), "%s: %v", name, got[i])
		}
	}
}
