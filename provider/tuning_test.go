package provider_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

func TestTune(t *testing.T) {
	busy := scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
		return nstance.Machine{}, nstance.Errorf(nstance.Throttled, "slow down")
	}}
	in := func(t *testing.T, f func(t *testing.T, c *provider.Client)) {
		synctest.Test(t, func(t *testing.T) {
			f(t, client(t, busy, &provider.Options{Rate: 8, Burst: 20}))
		})
	}
	after := func(d time.Duration) { <-time.After(d) }
	t.Run("another rate applies from now on", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			require.Equal(t, 20, granted(c))
			after(time.Second / 2)
			require.NoError(t, c.Tune(provider.Tuning{Rate: 16, Burst: 20}))
			require.Equal(t, 4, granted(c), "what came in before came in at the old rate")
			after(time.Second)
			require.Equal(t, 16, granted(c))
		})
	})
	t.Run("a smaller burst leaves no more than it", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			require.NoError(t, c.Tune(provider.Tuning{Rate: 8, Burst: 3}))
			require.Equal(t, 3, granted(c))
			after(time.Hour)
			require.Equal(t, 3, granted(c))
		})
	})
	t.Run("a larger burst fills at the rate", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			require.NoError(t, c.Tune(provider.Tuning{Rate: 8, Burst: 40}))
			require.Equal(t, 20, granted(c))
			after(time.Hour)
			require.Equal(t, 40, granted(c))
		})
	})
	t.Run("a rate lowered by throttling stays lowered, and recovers to the new one", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			throttle(t, c, 1) // 4 a second
			require.NoError(t, c.Tune(provider.Tuning{Rate: 16, Burst: 20}))
			after(time.Second)
			require.Equal(t, 4, granted(c))
			after(20 * time.Second) // 8, then 16 a second
			granted(c)
			after(time.Second)
			require.Equal(t, 16, granted(c))
		})
	})
	t.Run("a lowered rate is never above the new one", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			throttle(t, c, 1)
			require.NoError(t, c.Tune(provider.Tuning{Rate: 2, Burst: 20}))
			after(time.Second)
			require.Equal(t, 2, granted(c))
		})
	})
	t.Run("another timeout bounds the next call", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := client(t, scripted{get: func(ctx context.Context, _ nstance.InstanceID) (nstance.Machine, error) {
				<-ctx.Done()
				return nstance.Machine{}, ctx.Err()
			}}, &provider.Options{Timeout: time.Minute, Retries: -1})
			require.NoError(t, c.Tune(provider.Tuning{Timeout: time.Second}))
			began := time.Now()
			_, err := c.Get(t.Context(), spec(t).ID)
			require.ErrorIs(t, err, nstance.Unavailable)
			require.Equal(t, time.Second, time.Since(began))
		})
	})
	t.Run("an invalid value changes nothing", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			require.ErrorIs(t, c.Tune(provider.Tuning{Rate: -1, Burst: 1}), nstance.Invalid)
			require.Equal(t, 20, granted(c))
		})
	})
}
