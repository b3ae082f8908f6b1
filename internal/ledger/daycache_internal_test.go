package ledger

import (
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// TestDayCache keeps the latest days that fit, while they have the same objects.
func TestDayCache(t *testing.T) {
	c := newDayCache(2000)
	keep := func(date string, lives int) {
		day := Day{Date: date}
		for range lives {
			day.Lives = append(day.Lives, Life{ID: nstance.InstanceID(rand.Text())})
		}
		c.keep([]string{date}, day)
		require.LessOrEqual(t, c.size, 2000)
	}
	kept := func(date string) bool {
		day, ok := c.get(date, []string{date})
		require.Equal(t, ok, len(day.Lives) > 0)
		return ok
	}
	for _, date := range []string{"2026-01-03", "2026-01-02", "2026-01-01", "2025-12-31"} {
		keep(date, 20)
	}
	require.True(t, kept("2026-01-03"))
	require.False(t, kept("2025-12-31"), "it is the oldest")
	keep("2026-01-04", 20)
	require.True(t, kept("2026-01-04"))
	_, ok := c.get("2026-01-04", []string{"2026-01-04", "one more"})
	require.False(t, ok)
	for range 100 {
		keep("2026-01-04", 1) // in place of itself
	}
	require.True(t, kept("2026-01-03"))
	keep("2026-01-05", 1000)
	require.False(t, kept("2026-01-05"), "it does not fit")
	require.True(t, kept("2026-01-04"))
	c.keep([]string{"2026-01-06"}, Day{Date: "2026-01-06", Problems: []Problem{{Err: nstance.NotFound}}})
	require.Nil(t, c.find("2026-01-06", []string{"2026-01-06"}), "what could not be read is read again")
}
