package silence_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/silence"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestTogether(t *testing.T) {
	at := func(seconds ...int) (out []time.Time) {
		for _, s := range seconds {
			out = append(out, now.Add(time.Duration(s)*time.Second))
		}
		return out
	}
	require.Equal(t, silence.Count{All: 5}, silence.Together(nil, 5, time.Minute))
	require.Equal(t, silence.Count{Silent: 1, All: 5}, silence.Together(at(0, 100, 200), 5, time.Minute), "one after another")
	require.Equal(t, silence.Count{Silent: 3, All: 5}, silence.Together(at(300, 60, 0, 30), 5, time.Minute), "the most within a minute")
}

func TestMass(t *testing.T) {
	require.Empty(t, silence.Count{Silent: 2, All: 2}.InGroup(), "too small a group")
	require.Empty(t, silence.Count{Silent: 2, All: 4}.InGroup(), "half of it")
	require.Equal(t, "2 of the group's 3 members fell silent within one interval", silence.Count{Silent: 2, All: 3}.InGroup())

	limit := nstance.Count{N: 20, Percent: true}
	require.Empty(t, silence.Count{Silent: 2, All: 2}.InShard(limit), "two never are many")
	require.Empty(t, silence.Count{Silent: 20, All: 100}.InShard(limit))
	require.Equal(t, "21 of the shard's 100 members fell silent within one interval", silence.Count{Silent: 21, All: 100}.InShard(limit))
}

func TestBreaker(t *testing.T) {
	var b silence.Breaker
	step := func(mass string, now time.Time) (why string, began bool) {
		why = b.Holds(mass, now)
		return why, b.Record(why, mass, time.Minute, now)
	}
	const mass, grace = "many fell silent", "members that fell silent together have time to report again"
	for i, s := range []struct {
		mass  string
		after time.Duration
		why   string
		began bool
	}{
		{"", 0, "", false},
		{mass, time.Second, mass, true},
		{mass, 2 * time.Hour, mass, false}, // as long as it lasts
		{"", 2*time.Hour + time.Second, grace, false},
		{"", 2*time.Hour + 30*time.Second, grace, false},
		{mass, 2*time.Hour + 40*time.Second, mass, false}, // again, before it was over
		{"", 3 * time.Hour, grace, false},
		{"", 3*time.Hour + 59*time.Second, grace, false},
		{"", 3*time.Hour + time.Minute, "", false},
		{mass, 4 * time.Hour, mass, true},
	} {
		why, began := step(s.mass, now.Add(s.after))
		require.Equal(t, s.why, why, i)
		require.Equal(t, s.began, began, i)
	}
}

func TestCache(t *testing.T) {
	var c silence.Cache
	_, known := c.Get(now)
	require.False(t, known)
	c.Set(now, silence.Count{Silent: 1, All: 2})
	count, known := c.Get(now.Add(999 * time.Millisecond))
	require.True(t, known)
	require.Equal(t, silence.Count{Silent: 1, All: 2}, count)
	_, known = c.Get(now.Add(time.Second))
	require.False(t, known)
	_, known = c.Get(now.Add(-time.Second))
	require.False(t, known, "the clock was set back")
}
