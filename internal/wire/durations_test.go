package wire_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func TestDurations(t *testing.T) {
	n := nstance.Notice{Kind: nstance.Reclaim, EventID: "e", Deadline: now.Add(2 * time.Minute), DetectedAt: now.Add(-5 * time.Second)}
	here := now.Add(17 * time.Hour) // the receiver's clock
	t.Run("a notice keeps its times, by the receiver's clock", func(t *testing.T) {
		got := wire.NoticeReceived(roundTrip(t, wire.NoticeAt(n, now)), here)
		require.Equal(t, here.Add(2*time.Minute), got.Deadline)
		require.Equal(t, here.Add(-5*time.Second), got.DetectedAt)
	})
	t.Run("times without durations decide nothing", func(t *testing.T) {
		got := wire.NoticeReceived(roundTrip(t, wire.Notice(n)), here)
		require.Zero(t, got.Deadline)
		require.Equal(t, here, got.DetectedAt)
	})
	t.Run("no deadline stays none", func(t *testing.T) {
		none := n
		none.Deadline = time.Time{}
		require.Zero(t, wire.NoticeReceived(roundTrip(t, wire.NoticeAt(none, now)), here).Deadline)
	})
	t.Run("what is absurd is bounded", func(t *testing.T) {
		for _, d := range []time.Duration{math.MinInt64, math.MaxInt64} {
			w := wire.Notice(n)
			w.SinceDetected, w.TimeLeft = durationpb.New(d), durationpb.New(d)
			got := wire.NoticeReceived(w, here)
			require.False(t, got.DetectedAt.After(here), "nothing is detected after it is received")
			_, err := json.Marshal(got)
			require.NoError(t, err)
		}
	})
	t.Run("a drain command keeps its time", func(t *testing.T) {
		w := &apiv1.DrainCommand{Deadline: timestamppb.New(now.Add(time.Minute))}
		require.Zero(t, wire.DrainDeadline(w, here), "a time decides nothing")
		wire.DrainLeft(w, now)
		require.Equal(t, here.Add(time.Minute), wire.DrainDeadline(w, here))
		wire.DrainLeft(w, now.Add(time.Hour))
		require.Equal(t, here, wire.DrainDeadline(w, here), "past: none is left")
		w = &apiv1.DrainCommand{}
		wire.DrainLeft(w, now)
		require.Zero(t, wire.DrainDeadline(w, here), "without a deadline there is none")
	})
}
