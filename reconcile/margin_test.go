package reconcile_test

import (
	"testing"
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
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{Latency: simcloud.Delay{Min: c.latency}, Shutdown: simcloud.Delay{Min: 20 * time.Second}}) // so Delete is repeated
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

// TestMarginCountsTheWholeDeletion: what is measured begins with the end of the drain and ends
// when the provider accepts, whatever it answers in between. What needed no drain, or ended by
// itself, says nothing.
func TestMarginCountsTheWholeDeletion(t *testing.T) {
	slow := func(w *world, id nstance.InstanceID) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, ID: id, Times: 6}) // repeated after 0.25, 0.5, 1, … s
	}
	for name, c := range map[string]struct {
		before func(w *world, id nstance.InstanceID)
		reason func(w *world, id nstance.InstanceID) error
		want   time.Duration
	}{
		"accepted at once": {func(*world, nstance.InstanceID) {}, nil, 5 * time.Second},
		"refused at first": {slow, nil, 24 * time.Second},
		"no answer, and gone": {func(w *world, id nstance.InstanceID) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, ID: id, Lost: true})
		}, nil, 10 * time.Second},
		"deleted without a drain": {slow, func(w *world, id nstance.InstanceID) error { return w.r.Delete(w.ctx, id, "by hand", true) }, 10 * time.Second},
		"it ended while it drained": {func(w *world, _ nstance.InstanceID) { w.slow(true) }, func(w *world, id nstance.InstanceID) error {
			defer w.slow(false)
			if err := w.cloud.Reclaim(id, 2*time.Minute); err != nil {
				return err
			}
			w.advance(10 * time.Second)
			return w.cloud.Stop(id, nstance.StatusStopped)
		}, 10 * time.Second},
		"it has ended by itself": {func(*world, nstance.InstanceID) {}, func(w *world, id nstance.InstanceID) error { return w.cloud.Kill(id) }, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				for range 5 {
					id := w.ready()[0]
					c.before(w, id)
					if c.reason == nil {
						require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
					} else {
						require.NoError(t, c.reason(w, id))
					}
					w.advance(10 * time.Minute)
				}
				id := w.ready()[0]
				require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
				w.advance(2 * time.Second)
				e := w.first(nstance.EventDrainStarted, func(e nstance.Event) bool { return e.Instance == id })
				deadline := w.first(nstance.EventNoticeReceived, func(e nstance.Event) bool { return e.Instance == id }).Notice.Deadline
				require.InDelta(t, c.want.Seconds(), deadline.Sub(e.Drain.Deadline).Seconds(), 3)
			})
		})
	}
}

// TestMarginStays: what a notice was received with is what the next leader goes by.
func TestMarginStays(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
