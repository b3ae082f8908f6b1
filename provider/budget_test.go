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

// granted takes all tokens of the budget.
func granted(c *provider.Client) (n int) {
	for {
		if ok, _ := c.Reserve(time.Now()); !ok {
			return n
		}
		n++
	}
}

// throttle makes n creates be answered with Throttled.
func throttle(t *testing.T, c *provider.Client, n int) {
	t.Helper()
	for range n {
		_, err := c.Create(t.Context(), spec(t))
		require.ErrorIs(t, err, nstance.Throttled)
	}
}

func TestReserve(t *testing.T) {
	busy := scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
		return nstance.Machine{}, nstance.Errorf(nstance.Throttled, "slow down")
	}}
	// in runs f with a budget of 8 a second and a burst of 20.
	in := func(t *testing.T, f func(t *testing.T, c *provider.Client)) {
		synctest.Test(t, func(t *testing.T) {
			f(t, client(t, busy, &provider.Options{Rate: 8, Burst: 20}))
		})
	}
	t.Run("grants a burst, then the rate", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			require.Equal(t, 20, granted(c))
			<-time.After(time.Second)
			require.Equal(t, 8, granted(c))
			<-time.After(time.Hour)
			require.Equal(t, 20, granted(c))
		})
	})
	t.Run("names the time of the next token", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			granted(c)
			ok, at := c.Reserve(time.Now())
			require.False(t, ok)
			require.Equal(t, time.Second/8, time.Until(at))
			<-time.After(time.Until(at))
			ok, _ = c.Reserve(time.Now())
			require.True(t, ok)
		})
	})
	t.Run("a throttled create takes the burst and half the rate", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			throttle(t, c, 1)
			require.Zero(t, granted(c))
			<-time.After(time.Second)
			require.Equal(t, 4, granted(c))
		})
	})
	t.Run("creates refused together halve it once", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			throttle(t, c, 100)
			<-time.After(time.Second)
			require.Equal(t, 4, granted(c))
		})
	})
	t.Run("further refusals halve it again, down to a floor", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			for range 20 {
				throttle(t, c, 1)
				<-time.After(time.Second)
			}
			granted(c)
			<-time.After(8 * time.Second)
			require.Equal(t, 1, granted(c)) // 8 / 64 a second
		})
	})
	t.Run("recovers while nothing is throttled", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			for range 2 {
				throttle(t, c, 1)
				<-time.After(time.Second)
			}
			granted(c)
			<-time.After(10 * time.Second)
			granted(c)
			<-time.After(10 * time.Second)
			granted(c)
			<-time.After(time.Second)
			require.Equal(t, 8, granted(c))
		})
	})
	t.Run("a refusal right after the recovery halves it again", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			throttle(t, c, 1)
			<-time.After(10*time.Second + time.Second/2)
			throttle(t, c, 1)
			<-time.After(time.Second)
			require.Equal(t, 4, granted(c))
		})
	})
	t.Run("other errors of creates take nothing", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Capacity, nstance.Quota, nstance.Ambiguous, nstance.Unavailable, nstance.Denied} {
			c := client(t, scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
				return nstance.Machine{}, nstance.Errorf(code, "no")
			}}, &provider.Options{Rate: 0.001, Burst: 20})
			_, err := c.Create(t.Context(), spec(t))
			require.ErrorIs(t, err, code)
			require.Equal(t, 20, granted(c), code)
		}
	})
	t.Run("a clock that goes backwards grants nothing extra", func(t *testing.T) {
		in(t, func(t *testing.T, c *provider.Client) {
			granted(c)
			ok, _ := c.Reserve(time.Now().Add(-time.Hour))
			require.False(t, ok)
			require.Zero(t, granted(c))
		})
	})
}
