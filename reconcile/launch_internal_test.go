package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

func TestLaunchWindow(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := launches{}.of(nstance.Definition{}, now)
	// succeed lets as many creates go as may, has some of them succeed, and
	// returns how many may be under way then.
	succeed := func(n int) int {
		for range n {
			require.True(t, b.admit(true, false, now).ok)
			b.succeeded(now)
		}
		return b.window
	}
	require.Equal(t, firstLaunches<<3, succeed(3), "it doubles")
	for range 6 {
		require.True(t, b.admit(true, false, now).ok)
	}
	for range 6 {
		b.failed(now)
	}
	require.Equal(t, 1, b.window)
	require.Equal(t, 1+5, succeed(5), "what comes back may be a little")
	now = now.Add(rememberFor)
	require.Equal(t, 6<<2, succeed(2), "it comes back for good")
}

// probes returns when attempts are let through while everything is sold out,
// counted from the present, and fails each of them.
func probes(t *testing.T, b *launch, free bool, from time.Time, n int) (out []time.Duration) {
	t.Helper()
	for now := from; len(out) < n; now = now.Add(time.Second) {
		p := b.admit(free, true, now)
		if !p.ok {
			require.False(t, p.until.IsZero())
			continue
		}
		require.True(t, p.probe)
		b.failed(now)
		out = append(out, now.Sub(from))
	}
	return out
}

func TestLaunchProbes(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	t.Run("the pauses double to a minute, and a success ends them", func(t *testing.T) {
		b := launches{}.of(nstance.Definition{}, now)
		growing := []time.Duration{0, 20 * time.Second, 60 * time.Second, 120 * time.Second, 180 * time.Second}
		require.Equal(t, growing, probes(t, b, false, now, 5))
		now := now.Add(10 * time.Minute)
		require.True(t, b.admit(false, false, now).probe)
		b.succeeded(now)
		require.Equal(t, growing[:3], probes(t, b, false, now, 3), "the next shortage begins anew, at once")
	})
	t.Run("what was learned is forgotten", func(t *testing.T) {
		b := launches{}.of(nstance.Definition{}, now)
		for range 5 {
			require.True(t, b.admit(true, false, now).ok)
			b.succeeded(now)
		}
		now := now.Add(rememberFor + time.Second)
		for range firstLaunches {
			require.True(t, b.admit(true, false, now).ok)
		}
		require.False(t, b.admit(true, false, now).ok)
		require.True(t, b.admit(true, true, now).ok, "losses wait for no answer")
	})
}

func TestLaunchBudgetsAreByShapes(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	def := nstance.Definition{InstanceTypes: []string{"a", "b"}, Subnets: []string{"x", "y"}, Market: nstance.Market{Type: nstance.Spot}}
	all := launches{}
	b := all.of(def, now)
	b.waiting[nstance.GroupKey{}] = true // else it is forgotten while nothing is under way
	swapped := def
	swapped.InstanceTypes, swapped.Subnets, swapped.Image = []string{"b", "a"}, []string{"y", "x"}, "i"
	require.Same(t, b, all.of(swapped, now))
	for name, change := range map[string]func(*nstance.Definition){
		"type":     func(d *nstance.Definition) { d.InstanceTypes = []string{"a"} },
		"subnet":   func(d *nstance.Definition) { d.Subnets = []string{"x"} },
		"market":   func(d *nstance.Definition) { d.Market.Type = nstance.OnDemand },
		"fallback": func(d *nstance.Definition) { d.Market.Fallback = nstance.OnDemand },
	} {
		other := def
		change(&other)
		require.NotSame(t, b, all.of(other, now), name)
	}
}

func TestShelf(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	def := nstance.Definition{InstanceTypes: []string{"a", "b", "c"}, Market: nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: 5 * time.Minute}}
	spot := func(typ string) storage.Shape { return storage.Shape{InstanceType: typ, Market: nstance.Spot} }
	choose := func(s *shelf, at time.Duration) (storage.Shape, bool) {
		return s.choose(def, nil, func(string) bool { return false }, now.Add(at))
	}
	t.Run("a success clears a shortage, unless it was asked for before the last refusal", func(t *testing.T) {
		s := newShelf()
		s.refused(spot("a"), now.Add(2*time.Second))
		s.had(spot("a"), now.Add(time.Second))
		shape, free := choose(s, 3*time.Second)
		require.True(t, free)
		require.Equal(t, spot("b"), shape)
		s.had(spot("a"), now.Add(3*time.Second))
		shape, _ = choose(s, 4*time.Second)
		require.Equal(t, spot("a"), shape)
	})
	t.Run("the probe is for what was left alone the longest", func(t *testing.T) {
		s := newShelf()
		for i, typ := range []string{"c", "a", "b"} {
			s.refused(spot(typ), now.Add(time.Duration(i)*time.Second))
		}
		shape, free := choose(s, 10*time.Second)
		require.False(t, free)
		require.Equal(t, spot("c"), shape)
	})
	t.Run("the fallback is for a shortage that lasts, not for two that lie apart", func(t *testing.T) {
		s := newShelf()
		out := func(at time.Duration) {
			for _, typ := range def.InstanceTypes {
				s.refused(spot(typ), now.Add(at))
			}
		}
		out(0)
		out(time.Hour)
		_, free := choose(s, time.Hour+time.Second)
		require.False(t, free, "spot was to be had, as far as is known, in between")
		out(time.Hour + 4*time.Minute)
		_, free = choose(s, time.Hour+5*time.Minute)
		require.True(t, free)
		shape, free := choose(s, 2*time.Hour)
		require.True(t, free)
		require.Equal(t, spot("a"), shape, "and what was refused long ago says nothing")
	})
}
