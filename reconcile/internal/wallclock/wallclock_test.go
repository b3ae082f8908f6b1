package wallclock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	ahead "github.com/nstance-go/nstance/internal/test/wallclock"
	"github.com/nstance-go/nstance/reconcile/internal/wallclock"
	"github.com/nstance-go/nstance/storage"
)

// clocks are those of a server and of storage, which may be off.
type clocks struct {
	server  time.Duration // ahead of the true time
	storage time.Duration
	silent  bool // storage no longer answers
	last    *storage.Reading
}

func (c *clocks) wall() time.Time { return ahead.Ahead(c.server) }

// Date implements storage.Dated: an answer that took 200 ms, in whole seconds.
func (c *clocks) Date() (storage.Reading, bool) {
	if !c.silent {
		local := time.Now().Add(-200 * time.Millisecond)
		c.last = &storage.Reading{Local: local, Remote: local.Add(c.storage).UTC().Truncate(time.Second), Within: 1200 * time.Millisecond}
	}
	if c.last == nil {
		return storage.Reading{}, false
	}
	return *c.last, true
}

// look lets time pass, looking every second, and returns why the clock is distrusted.
func look(c *wallclock.Clock, d time.Duration) string {
	for range d / time.Second {
		<-time.After(time.Second)
		c.Look()
	}
	return c.Distrust()
}

func TestComparedWithStorage(t *testing.T) {
	for name, c := range map[string]struct {
		server, storage time.Duration
		why             string
	}{
		"equal":             {0, 0, ""},
		"ahead, within":     {29 * time.Second, 0, ""},
		"ahead, inexact":    {30 * time.Second, 0, ""}, // storage's answer leaves a second of doubt
		"behind, within":    {0, 28 * time.Second, ""},
		"ahead":             {33 * time.Second, 0, "ahead of storage's"},
		"behind":            {0, 31 * time.Second, "behind storage's"},
		"both, by the same": {time.Hour, time.Hour, ""},
		"both, apart":       {-time.Hour, time.Hour, "1h59m59s behind storage's"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				k := &clocks{server: c.server, storage: c.storage}
				clock := wallclock.New(wallclock.Options{Wall: k.wall, Dated: k, Elapsed: func() time.Duration { return time.Since(began) }})
				why := look(clock, time.Minute)
				if c.why == "" {
					require.Empty(t, why)
					return
				}
				require.Contains(t, why, c.why)
				require.False(t, clock.Since().IsZero())
			})
		})
	}
}

func TestTrustReturnsWhenStable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &clocks{server: time.Minute}
		clock := wallclock.New(wallclock.Options{Wall: k.wall, Dated: k})
		require.NotEmpty(t, look(clock, time.Second))
		k.server = 0
		require.NotEmpty(t, look(clock, wallclock.Calm/2))
		k.server = time.Minute // flapping
		require.NotEmpty(t, look(clock, time.Second))
		k.server = 0
		require.NotEmpty(t, look(clock, wallclock.Calm), "the stable time starts again")
		require.Empty(t, look(clock, 2*time.Second))
		require.Zero(t, clock.Since())

		k.server = time.Minute
		require.NotEmpty(t, look(clock, time.Second))
		k.server = 0
		require.NotEmpty(t, look(clock, wallclock.Calm), "and with each distrust")
		require.Empty(t, look(clock, 2*time.Second))
	})
}

// TestStepWhileStorageIsSilent: the time elapsed since storage's last answer counts.
func TestStepWhileStorageIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		k := &clocks{}
		clock := wallclock.New(wallclock.Options{Wall: k.wall, Dated: k, Elapsed: func() time.Duration { return time.Since(began) }})
		require.Empty(t, look(clock, time.Second))
		k.silent = true
		require.Empty(t, look(clock, time.Hour), "a missing answer is no evidence")
		k.server = time.Minute
		require.Contains(t, look(clock, time.Second), "ahead of storage's")
	})
}

// TestSleepWhileStorageIsSilent: the process's own clock stands still meanwhile.
func TestSleepWhileStorageIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, slept := time.Now(), time.Duration(0)
		k := &clocks{}
		clock := wallclock.New(wallclock.Options{Wall: k.wall, Dated: k, Elapsed: func() time.Duration { return time.Since(began) + slept }})
		require.Empty(t, look(clock, time.Second))
		k.silent, k.server, slept = true, time.Hour, time.Hour
		require.Empty(t, look(clock, time.Minute))
	})
}

func TestStepsWithoutStorage(t *testing.T) {
	for name, c := range map[string]struct {
		blind  bool // no clock counts sleep
		change time.Duration
		why    string
	}{
		"forward":               {false, time.Minute, "was set 1m0s forward"},
		"back":                  {false, -time.Minute, "was set 1m0s back"},
		"small":                 {false, 20 * time.Second, ""},
		"sleep cannot be known": {true, time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				k := &clocks{}
				o := wallclock.Options{Wall: k.wall, Elapsed: func() time.Duration { return time.Since(began) }}
				if c.blind {
					o.Elapsed = nil
				}
				clock := wallclock.New(o)
				require.Empty(t, look(clock, time.Minute))
				k.server = c.change
				require.Contains(t, look(clock, time.Second), c.why)
				require.Equal(t, c.why == "", clock.Distrust() == "")
			})
		})
	}
	t.Run("distrust lasts until the step is undone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			k := &clocks{}
			clock := wallclock.New(wallclock.Options{Wall: k.wall, Elapsed: func() time.Duration { return time.Since(began) }})
			k.server = time.Minute
			require.NotEmpty(t, look(clock, 10*wallclock.Calm))
			k.server = 0
			require.Empty(t, look(clock, wallclock.Calm+2*time.Second))
		})
	})
	t.Run("slewing moves both", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			k := &clocks{}
			clock := wallclock.New(wallclock.Options{Wall: k.wall, Elapsed: func() time.Duration { return time.Since(began) }})
			for range 100 {
				k.server += 10 * time.Second // small steps are accepted
				require.Empty(t, look(clock, time.Minute))
			}
		})
	})
}
