package spot_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/spot"
)

func TestPollWithNegativeInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*spot.DefaultPollInterval)
		defer cancel()
		reads := 0
		for range spot.Poll(ctx, -time.Second, func(context.Context) ([]nstance.Notice, error) {
			if reads++; reads > 100 {
				cancel()
			}
			return nil, nil
		}) {
			require.Fail(t, "nothing is announced")
		}
		require.LessOrEqual(t, reads, 20, "the default interval is used")
	})
}

func TestPollWithoutRead(t *testing.T) {
	items := 0
	for n, err := range spot.Poll(t.Context(), 0, nil) {
		items++
		require.Zero(t, n)
		require.ErrorIs(t, err, nstance.Invalid)
	}
	require.Equal(t, 1, items)
}

// TestPollWithoutUnit: an interval without a unit is refused, and so is one that is absurd.
func TestPollWithoutUnit(t *testing.T) {
	for interval, remedy := range map[time.Duration]string{5: "forgot the unit?", 48 * time.Hour: "1h"} {
		items := 0
		for _, err := range spot.Poll(t.Context(), interval, func(context.Context) ([]nstance.Notice, error) { return nil, nil }) {
			items++
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "interval")
			require.ErrorContains(t, err, remedy)
		}
		require.Equal(t, 1, items)
	}
}
