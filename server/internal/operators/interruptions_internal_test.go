package operators

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
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
		{Type: nstance.EventReady, Instance: "b", Replaces: "a", Time: at(11)},
		{Type: nstance.EventReady, Instance: "z", Time: at(11)},
		{Type: nstance.EventDeleted, Instance: "c", Time: at(99)}, // long afterwards, for something else
	} {
		s.add(e)
	}
	require.Len(t, s.of["a"], 1)
	a, c := s.find("a", "e1"), s.find("c", "e2")
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
	s = newInterruptionReader()
	s.add(nstance.Event{Type: nstance.EventNoticeReceived, Instance: "a"})
	require.Empty(t, s.of, "damaged lines tell nothing")
}
