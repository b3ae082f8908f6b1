package reconcile_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// With -short, at every fifth call.
func TestCrashAtEveryCall(t *testing.T) {
	var aimed, struck atomic.Int64
	step := 1
	if testing.Short() {
		step = 5
	}
	t.Run("calls", func(t *testing.T) {
		for _, y := range slices.Concat(stories, storiesWithOwnUserData(), pooledStories, failedStories) {
			t.Run(y.name, func(t *testing.T) {
				t.Parallel()
				plain := runStory(t, y, label{}, none)
				for i := 0; i < len(plain.calls); i += step {
					aim := plain.calls[i]
					for _, with := range strikes(aim) {
						t.Run(fmt.Sprintf("%s, %s", aim, with), func(t *testing.T) {
							t.Parallel()
							aimed.Add(1)
							s := runStory(t, y, aim, with)
							if s.struck {
								struck.Add(1)
							}
							compare(t, y, plain, s)
						})
					}
				}
			})
		}
	})
	t.Logf("%d of %d injections struck", struck.Load(), aimed.Load())
	require.GreaterOrEqual(t, float64(struck.Load()), 0.95*float64(aimed.Load()), "most injections struck")
}

// TestLateWriteOfFormerLeader changes records behind a leader that has read them
// already.
func TestLateWriteOfFormerLeader(t *testing.T) {
	draining := func(t *testing.T, test func(w *world, id nstance.InstanceID)) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.mu.Lock()
			w.slowDrain = true
			w.mu.Unlock()
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, time.Hour))
			w.advance(10 * time.Second)
			w.stopLeader()
			w.startLeader(webGroup(2))
			w.advance(2 * time.Minute)
			require.Contains(t, w.in(nstance.Draining), id)
			test(w, id)
		})
	}
	t.Run("deletion mark: the instance is never desired again", func(t *testing.T) {
		draining(t, func(w *world, id nstance.InstanceID) {
			w.writeLate(id, func(rec *records.Instance) { rec.Deleting = &records.Deletion{At: time.Now()} })
			require.NoError(w.t, w.cloud.Withdraw(id))
			w.advance(2 * time.Minute)
			w.requireMembers(2)
			require.NotContains(w.t, w.ready(), id)
		})
	})
	t.Run("drain removed: no delete because of it", func(t *testing.T) {
		draining(t, func(w *world, id nstance.InstanceID) {
			w.writeLate(id, func(rec *records.Instance) { rec.Drain, rec.Generation = nil, rec.Generation+1 })
			w.advance(5 * time.Minute) // past the first deadline
			require.Contains(w.t, w.in(nstance.Draining), id)
			w.mu.Lock()
			w.slowDrain = false
			w.mu.Unlock()
			w.advance(2 * time.Minute)
			w.requireMembers(2)
			require.Equal(w.t, 2, w.count(nstance.EventDrainStarted, id), "drained again")
			require.Equal(w.t, 1, w.count(nstance.EventDrainAcknowledged, id))
		})
	})
	t.Run("another drain: the first acknowledgement does not count", func(t *testing.T) {
		draining(t, func(w *world, id nstance.InstanceID) {
			later := time.Now().Add(30 * time.Minute).UTC()
			w.writeLate(id, func(rec *records.Instance) {
				rec.Generation += 2
				d := *rec.Drain
				d.Generation, d.Deadline = rec.Generation, later
				rec.Drain = &d
			})
			w.advance(5 * time.Minute) // past the first deadline
			require.Contains(w.t, w.in(nstance.Draining), id)
			require.Zero(w.t, w.count(nstance.EventDeleteRequested, id))
			w.slow(false)
			w.advance(3 * time.Minute)
			w.requireMembers(2)
			require.Equal(w.t, 1, w.count(nstance.EventDrainAcknowledged, id))
		})
	})
	t.Run("registration: registered in time, so drained", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(3)}})
			w.advance(time.Second)
			id := w.in(nstance.Booting)[0]
			w.setAgentSilent(id, true)
			w.advance(time.Minute)
			w.writeLate(id, func(rec *records.Instance) { rec.RegisteredAt = time.Now().UTC() })
			w.advance(5 * time.Minute) // past the registration timeout
			require.Contains(t, w.in(nstance.Booting), id)
			w.advance(time.Hour) // without reports
			w.requireMembers(3)
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, id))
		})
	})
}

// failedStories are those of machines that are accepted and do not start.
var failedStories = []story{
	{name: "instance on demand, its first machine fails", end: 0, extra: 1, failedFirst: true, run: func(c *crash) { c.requestOnDemand() }},
}
