package work_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/wallclock"
	"github.com/nstance-go/nstance/reconcile/internal/work"
)

// TestQueueWhenTheClockIsSet: a key is due in time, whether its time is by the wall
// clock or the monotonic one, and whenever the wall clock is set.
func TestQueueWhenTheClockIsSet(t *testing.T) {
	for name, off := range map[string]time.Duration{"it was ahead": 3 * time.Hour, "it was behind": -3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, ahead := time.Now(), off
				q := work.NewQueue(func() time.Time { return wallclock.Ahead(ahead) })
				due := func(name nstance.GroupID, wall bool, in time.Duration) {
					at := wallclock.Ahead(ahead).Add(in)
					if wall {
						at = at.UTC() // as in a record
					}
					q.AddAt(nstance.GroupKey{Group: name}, at)
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
					key, _, ok := q.Take(t.Context())
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
				q, began := work.NewQueue(time.Now), time.Now()
				time.AfterFunc(time.Second, func() { q.Add(nstance.GroupKey{Group: "a"}, c.comes) })
				q.Pause(t.Context(), 10*time.Second, c.after)
				require.Equal(t, c.waits, time.Since(began))
				_, urgent, ok := q.Take(t.Context())
				require.True(t, ok)
				require.Equal(t, c.comes, urgent)
			})
		})
	}
}

// TestQueueAge: nstance_queue_age_seconds is the longest wait of a due key.
func TestQueueAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := work.NewQueue(time.Now)
		require.Zero(t, q.Age())
		q.Add(nstance.GroupKey{Group: "a"}, false)
		<-time.After(2 * time.Second)
		q.Add(nstance.GroupKey{Group: "b"}, true)
		q.Add(nstance.GroupKey{Group: "a"}, true) // again: its wait continues
		<-time.After(time.Second)
		require.Equal(t, 3*time.Second, q.Age())
		for range 2 {
			_, _, ok := q.Take(t.Context())
			require.True(t, ok)
		}
		<-time.After(time.Second)
		require.Zero(t, q.Age(), "served keys do not wait")
		q.AddAt(nstance.GroupKey{Group: "c"}, time.Now().Add(time.Hour))
		<-time.After(time.Second)
		require.Zero(t, q.Age(), "keys that are due later do not wait")
	})
}

func key(name nstance.GroupID) nstance.GroupKey { return nstance.GroupKey{Group: name} }

// takeAll takes what is due now.
func takeAll(q *work.Queue) (names string) {
	for {
		key, urgent, wait := q.Next()
		if wait > 0 {
			return names
		}
		if names += string(key.Group); urgent {
			names += "!"
		}
	}
}

// TestQueueOrder: urgent keys come first, each list in order of arrival, and a key comes once
// however often it was added.
func TestQueueOrder(t *testing.T) {
	q := work.NewQueue(time.Now)
	add := func(names string, urgent bool) {
		for _, r := range names {
			q.Add(key(nstance.GroupID(r)), urgent)
		}
	}
	add("abcab", false)
	add("d", true)
	require.Equal(t, "d!abc", takeAll(q))
	add("abc", false)
	add("cdc", true)
	add("c", false)
	require.Equal(t, "c!d!ab", takeAll(q), "an ordinary key that becomes urgent")
	require.Empty(t, takeAll(q))
	add("a", true)
	require.Equal(t, "a!", takeAll(q), "again")
}

// TestQueueDelays: a key is due at the earliest of its times, once.
func TestQueueDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, began := work.NewQueue(time.Now), time.Now()
		at := func(name nstance.GroupID, in time.Duration) { q.AddAt(key(name), began.Add(in)) }
		at("a", 3*time.Second)
		at("a", time.Minute)
		at("b", 5*time.Second)
		at("b", 2*time.Second)
		q.AddAt(key("c"), time.Time{})
		got := map[string]time.Duration{}
		var taken string
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		for {
			k, urgent, ok := q.Take(ctx)
			if !ok {
				break
			}
			require.False(t, urgent)
			taken += string(k.Group)
			got[string(k.Group)] = time.Since(began)
		}
		require.Equal(t, "ba", taken)
		require.Equal(t, map[string]time.Duration{"a": 3 * time.Second, "b": 2 * time.Second}, got)

		began = time.Now()
		at("a", time.Second)
		q.Add(key("a"), true)
		require.Equal(t, "a!", takeAll(q), "due now, and again at its time")
		<-time.After(time.Second)
		require.Equal(t, "a", takeAll(q))
		<-time.After(time.Hour)
		require.Empty(t, takeAll(q))
	})
}

// TestTakeWakes: what is added while Take waits ends the wait.
func TestTakeWakes(t *testing.T) {
	for name, add := range map[string]func(*work.Queue){
		"now":   func(q *work.Queue) { q.Add(key("a"), false) },
		"later": func(q *work.Queue) { q.AddAt(key("a"), time.Now().Add(time.Second)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, began := work.NewQueue(time.Now), time.Now()
				time.AfterFunc(time.Second, func() { add(q) })
				_, _, ok := q.Take(t.Context())
				require.True(t, ok)
				require.LessOrEqual(t, time.Since(began), 2*time.Second)
			})
		})
	}
}

// TestQueueForgetsLaterTimes: a time that an earlier one has replaced is over with that one: what is
// asked for afterwards decides.
func TestQueueForgetsLaterTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, began, key := work.NewQueue(time.Now), time.Now(), nstance.GroupKey{Group: "a"}
		in := func(d time.Duration) { q.AddAt(key, began.Add(d)) }
		taken := func() time.Duration {
			_, _, ok := q.Take(t.Context())
			require.True(t, ok)
			return time.Since(began)
		}
		in(10 * time.Second)
		in(5 * time.Second)
		require.Equal(t, 5*time.Second, taken())
		in(20 * time.Second)
		require.Equal(t, 20*time.Second, taken())
	})
}
