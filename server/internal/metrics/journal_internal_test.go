package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// times returns how many times a cause was timed, and their sum in seconds.
func times(t *testing.T, h *prometheus.HistogramVec, cause string) (uint64, float64) {
	t.Helper()
	var m dto.Metric
	require.NoError(t, h.WithLabelValues(cause).(prometheus.Histogram).Write(&m))
	return m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
}

func TestLosses(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := newLosses()
	hear := func(after time.Duration, typ nstance.EventType, id, replaces nstance.InstanceID) {
		l.hear(nstance.Event{Type: typ, Instance: id, Replaces: replaces, Time: t0.Add(after)})
	}
	hear(0, nstance.EventNoticeReceived, "a", "")
	hear(time.Second, nstance.EventMachineGone, "a", "") // the same loss
	hear(2*time.Second, nstance.EventReplacementRequested, "b", "a")
	hear(2*time.Second, nstance.EventReplacementRequested, "x", "unknown")
	hear(10*time.Second, nstance.EventReady, "b", "a")
	hear(11*time.Second, nstance.EventReady, "c", "")
	n, sum := times(t, l.requested, "notice")
	require.Equal(t, []any{uint64(1), 2.0}, []any{n, sum})
	n, sum = times(t, l.ready, "notice")
	require.Equal(t, []any{uint64(1), 10.0}, []any{n, sum})
	n, _ = times(t, l.requested, "gone")
	require.Zero(t, n)
	require.Empty(t, l.lost)
	require.Empty(t, l.replace)

	t.Run("a replacement that comes to nothing is forgotten", func(t *testing.T) {
		hear(0, nstance.EventUnhealthy, "d", "")
		hear(0, nstance.EventReplacementRequested, "e", "d")
		hear(0, nstance.EventDeleted, "e", "")
		require.Empty(t, l.replace)
	})
	t.Run("a loss after a withdrawn notice is another one", func(t *testing.T) {
		hear(0, nstance.EventNoticeReceived, "f", "")
		hear(time.Minute, nstance.EventDrainCancelled, "f", "")
		hear(72*time.Hour, nstance.EventMachineGone, "f", "")
		hear(72*time.Hour+3*time.Second, nstance.EventReplacementRequested, "g", "f")
		n, sum := times(t, l.requested, "gone")
		require.Equal(t, []any{uint64(1), 3.0}, []any{n, sum})
	})
	t.Run("nothing grows without bound", func(t *testing.T) {
		for i := range maxLosses + 10 {
			hear(0, nstance.EventNoticeReceived, nstance.InstanceID(fmt.Sprint(i)), "")
		}
		require.Len(t, l.lost, maxLosses)
		hear(2*lossMemory, nstance.EventNoticeReceived, "late", "")
		require.Len(t, l.lost, 1, "what is old made room")
	})
	t.Run("what a stolen identity calls itself makes no metric", func(t *testing.T) {
		require.Equal(t, "aws", source("aws/spot"))
		require.Equal(t, "other", source("x17/spot"))
	})
}

func TestNoticeLength(t *testing.T) {
	m := New(func() State { return State{} })
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, deadline := range []time.Time{at.Add(2 * time.Minute), at.Add(-time.Minute), {}} {
		n := nstance.Notice{Kind: nstance.Reclaim, Source: "aws/spot", Deadline: deadline}
		m.Event(nstance.Event{Type: nstance.EventNoticeReceived, Time: at, Notice: &n})
	}
	var got dto.Metric
	require.NoError(t, m.warnings.WithLabelValues("reclaim", "aws").(prometheus.Histogram).Write(&got))
	require.Equal(t, uint64(2), got.GetHistogram().GetSampleCount(), "without a deadline there is no length")
	require.InDelta(t, 120, got.GetHistogram().GetSampleSum(), 1e-9, "one that has passed leaves nothing")
}
