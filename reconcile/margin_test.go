package reconcile_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestMarginIsLearned: a drain ends as long before the cloud's deadline as deletions of the
// group took until now, so that the next one is accepted in time.
func TestMarginIsLearned(t *testing.T) {
	for name, c := range map[string]struct {
		latency time.Duration // of a call
		want    time.Duration
	}{
		"fast":            {50 * time.Millisecond, 5 * time.Second},
		"slow":            {8 * time.Second, 12 * time.Second},
		"slower than all": {29 * time.Second, 39 * time.Second}, // a third of what is left
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{Latency: simcloud.Delay{Min: c.latency}})
				defer w.close()
				g := webGroup(3)
				w.startLeader(g)
				w.advance(10 * time.Minute)
				margin := func() time.Duration {
					t.Helper()
					id := w.ready()[0]
					require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
					w.advance(2 * time.Second)
					e := w.first(nstance.EventDrainStarted, func(e nstance.Event) bool { return e.Instance == id })
					deadline := w.first(nstance.EventNoticeReceived, func(e nstance.Event) bool { return e.Instance == id }).Notice.Deadline
					w.advance(10 * time.Minute)
					return deadline.Sub(e.Drain.Deadline)
				}
				for range 5 {
					require.Equal(t, 10*time.Second, margin(), "too little is known")
				}
				require.InDelta(t, c.want.Seconds(), margin().Seconds(), 1.5)

				w.stopLeader() // another one begins anew
				w.startLeader(g)
				w.advance(10 * time.Minute)
				require.Equal(t, 10*time.Second, margin())
			})
		})
	}
}

// TestMarginStays: what a notice was received with is what the next leader goes by.
func TestMarginStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(3)
		w.startLeader(g)
		w.advance(10 * time.Minute)
		for range 6 {
			require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
			w.advance(10 * time.Minute)
		}
		w.slowDrain = true
		id := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		w.advance(5 * time.Second)
		deadline := w.drainDeadline(id)
		w.stopLeader()
		w.startLeader(g)
		w.advance(time.Second)
		require.Equal(t, deadline, w.drainDeadline(id))
		w.advance(90 * time.Second)
		require.Equal(t, deadline, w.drainDeadline(id))
	})
}

func (w *world) drainDeadline(id nstance.InstanceID) time.Time {
	w.t.Helper()
	r, _ := w.leader()
	v, err := r.Instance(id)
	require.NoError(w.t, err)
	return v.Drain.Deadline
}
