package reconcile

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/wallclock"
)

// TestQueueWhenTheClockIsSet: a key is due in time, whether its time is by the wall
// clock or the monotonic one, and whenever the wall clock is set.
func TestQueueWhenTheClockIsSet(t *testing.T) {
	for name, off := range map[string]time.Duration{"it was ahead": 3 * time.Hour, "it was behind": -3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, ahead := time.Now(), off
				q := newQueue(func() time.Time { return wallclock.Ahead(ahead) })
				due := func(name nstance.GroupID, wall bool, in time.Duration) {
					at := q.now().Add(in)
					if wall {
						at = at.UTC() // as in a record
					}
					q.addAt(nstance.GroupKey{Group: name}, at)
				}
				due("a", true, 10*time.Second)
				due("b", false, 20*time.Second)
				due("c", true, time.Hour)
				due("d", false, time.Hour)
				ahead = 0
				due("a", true, 5*time.Second) // all groups are planned again when the step is detected
				due("c", true, 30*time.Second)
				due("d", true, 40*time.Second)
				for _, want := range []struct {
					name nstance.GroupID
					at   time.Duration
				}{{"a", 5 * time.Second}, {"b", 20 * time.Second}, {"c", 30 * time.Second}, {"d", 40 * time.Second}} {
					key, _, ok := q.take(t.Context())
					require.True(t, ok)
					require.Equal(t, want.name, key.Group)
					require.Equal(t, want.at, time.Since(began))
				}
			})
		})
	}
}

// TestPauseAfterLongPlan: an urgent key does not wait for an ordinary one's pause, but for
// that of another urgent one, so that a storm of notices shares plans.
func TestPauseAfterLongPlan(t *testing.T) {
	for name, c := range map[string]struct {
		after, comes bool // urgent
		waits        time.Duration
	}{
		"ordinary after ordinary": {false, false, 10 * time.Second},
		"urgent after ordinary":   {false, true, time.Second},
		"ordinary after urgent":   {true, false, 10 * time.Second},
		"urgent after urgent":     {true, true, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, began := newQueue(time.Now), time.Now()
				time.AfterFunc(time.Second, func() { q.add(nstance.GroupKey{Group: "a"}, c.comes) })
				q.pause(t.Context(), 10*time.Second, c.after)
				require.Equal(t, c.waits, time.Since(began))
				_, urgent, ok := q.take(t.Context())
				require.True(t, ok)
				require.Equal(t, c.comes, urgent)
			})
		})
	}
}

// TestQueueAge: nstance_queue_age_seconds is the longest wait of a due key.
func TestQueueAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(time.Now)
		require.Zero(t, q.age())
		q.add(nstance.GroupKey{Group: "a"}, false)
		<-time.After(2 * time.Second)
		q.add(nstance.GroupKey{Group: "b"}, true)
		q.add(nstance.GroupKey{Group: "a"}, true) // again: its wait continues
		<-time.After(time.Second)
		require.Equal(t, 3*time.Second, q.age())
		for range 2 {
			_, _, ok := q.take(t.Context())
			require.True(t, ok)
		}
		<-time.After(time.Second)
		require.Zero(t, q.age(), "served keys do not wait")
		q.addAt(nstance.GroupKey{Group: "c"}, time.Now().Add(time.Hour))
		<-time.After(time.Second)
		require.Zero(t, q.age(), "keys that are due later do not wait")
	})
}
