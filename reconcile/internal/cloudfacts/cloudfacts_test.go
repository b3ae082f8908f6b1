package cloudfacts_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile/internal/cloudfacts"
)

// A cloud answers, fails, or hangs until the caller gives up.
type cloud struct {
	mu     sync.Mutex
	free   map[string]int
	zones  map[string]string
	err    error
	hangs  string   // which call does
	asked  []string // every call with what it was asked
	shifts []nstance.ZoneShift
}

func (c *cloud) answer(ctx context.Context, call string, about ...string) error {
	c.mu.Lock()
	c.asked = append(c.asked, strings.Join(append([]string{call}, about...), " "))
	err, hangs := c.err, c.hangs == call
	c.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (c *cloud) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// calls returns how often a call came, and forgets it.
func (c *cloud) calls(call string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, a := range c.asked {
		if strings.HasPrefix(a, call) {
			c.asked[i] = ""
			n++
		}
	}
	return n
}

func (c *cloud) FreeAddresses(ctx context.Context, subnets []string) (map[string]int, error) {
	return c.free, c.answer(ctx, "count", subnets...)
}

func (c *cloud) SubnetZones(ctx context.Context, subnets []string) (map[string]string, error) {
	return c.zones, c.answer(ctx, "locate", subnets...)
}

func (c *cloud) Prices(ctx context.Context, types []string) ([]nstance.Price, error) {
	return nil, c.answer(ctx, "price", types...)
}

func (c *cloud) ZoneScores(ctx context.Context, types []string, _ int) (map[string]int, error) {
	return map[string]int{"z": 7}, c.answer(ctx, "score", types...)
}

func (c *cloud) ShiftedZones(ctx context.Context) ([]nstance.ZoneShift, error) {
	return c.shifts, c.answer(ctx, "shift")
}

// facts is what a reader has handed on.
type facts struct {
	mu      sync.Mutex
	free    map[string]int
	zones   map[string]string
	located int
	scores  map[string]map[string]int
	priced  int
	shifts  int
}

func (f *facts) options(question func() cloudfacts.Question, log *slog.Logger) cloudfacts.Options {
	f.zones, f.scores = map[string]string{}, map[string]map[string]int{}
	locked := func(change func()) { f.mu.Lock(); defer f.mu.Unlock(); change() }
	return cloudfacts.Options{
		Question: question, Now: time.Now, Log: log,
		Addresses: func(free map[string]int, _ time.Time) { locked(func() { f.free = free }) },
		Zones:     func(zones map[string]string) { locked(func() { maps.Copy(f.zones, zones); f.located++ }) },
		Prices:    func([]string, []nstance.Price, time.Time) { locked(func() { f.priced++ }) },
		Scores:    func(key string, scores map[string]int) { locked(func() { f.scores[key] = scores }) },
		Shifts:    func([]nstance.ZoneShift) { locked(func() { f.shifts++ }) },
	}
}

func abilities(c *cloud) provider.Abilities {
	return provider.Abilities{Subnets: c, Zones: c, Prices: c, Scores: c, Shifts: c}
}

var silent = slog.New(slog.DiscardHandler)

func subnets(names ...string) func() cloudfacts.Question {
	return func() cloudfacts.Question { return cloudfacts.Question{Subnets: names} }
}

// TestZonesAreAskedOnce: a subnet's zone is asked for until it is known.
func TestZonesAreAskedOnce(t *testing.T) {
	c, f := &cloud{err: &nstance.Error{Code: nstance.Throttled}}, &facts{}
	r := cloudfacts.New(provider.Abilities{Zones: c}, f.options(subnets("a"), silent))
	r.ReadFirst(t.Context(), []string{"b", "a"})
	require.Zero(t, f.located, "an error says nothing")
	c.err, c.zones = nil, map[string]string{"a": "z1"}
	r.ReadFirst(t.Context(), []string{"b"})
	require.Equal(t, map[string]string{"a": "z1"}, f.zones)
	c.zones = map[string]string{"b": "z2"}
	r.ReadFirst(t.Context(), []string{"b"})
	r.ReadFirst(t.Context(), []string{"b"})
	require.Equal(t, map[string]string{"a": "z1", "b": "z2"}, f.zones)
	require.Equal(t, []string{"locate a b", "locate a b", "locate b"}, c.asked)
}

// TestAddressesAreCountedWhenOld: not more often than the pause permits, and an error leaves
// the count that there is.
func TestAddressesAreCountedWhenOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		c, f := &cloud{free: map[string]int{"a": 3}}, &facts{}
		question := subnets("a", "b")
		r := cloudfacts.New(provider.Abilities{Subnets: c}, f.options(func() cloudfacts.Question { return question() }, silent))
		var run sync.WaitGroup
		run.Go(func() { r.Run(ctx) })

		pause := func() { sleep.For(ctx, cloudfacts.CountPause+time.Millisecond); synctest.Wait() }
		synctest.Wait()
		require.Zero(t, c.calls("count"), "the count is not old")
		r.CountAddresses()
		synctest.Wait()
		require.Equal(t, map[string]int{"a": 3}, f.free)
		pause()
		require.Equal(t, 1, c.calls("count"))

		c.set(func() { c.err, c.free = &nstance.Error{Code: nstance.Throttled}, nil })
		r.CountAddresses()
		synctest.Wait()
		require.Equal(t, 1, c.calls("count"))
		require.Equal(t, map[string]int{"a": 3}, f.free)

		c.set(func() { c.err, c.free = nil, map[string]int{"a": 9} })
		for range 5 {
			r.CountAddresses()
		}
		synctest.Wait()
		require.Zero(t, c.calls("count"), "within the pause")
		pause()
		require.Equal(t, 1, c.calls("count"))
		require.Equal(t, map[string]int{"a": 9}, f.free)

		pause()
		question = subnets()
		r.CountAddresses()
		synctest.Wait()
		require.Zero(t, c.calls("count"), "no subnets to choose among")
		stop()
		run.Wait()
	})
}

// TestHangingCallDelaysNoOther: a call that hangs keeps no other kind of fact from being read,
// neither the first time nor later.
func TestHangingCallDelaysNoOther(t *testing.T) {
	question := func() cloudfacts.Question {
		return cloudfacts.Question{Subnets: []string{"a", "b"}, SpotTypes: []string{"m"}, GroupSizes: map[string]int{"m": 3}}
	}
	for _, hangs := range []string{"count", "locate", "price", "score", "shift"} {
		t.Run(hangs, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				c, f := &cloud{hangs: hangs}, &facts{}
				r := cloudfacts.New(abilities(c), f.options(question, silent))
				first, cancel := context.WithTimeout(ctx, time.Second)
				r.ReadFirst(first, nil)
				cancel()
				c.calls("")
				var run sync.WaitGroup
				run.Go(func() { r.Run(ctx) })
				for range 2 {
					r.CountAddresses()
					sleep.For(ctx, 2*cloudfacts.PriceInterval)
				}
				synctest.Wait()
				if hangs != "count" && hangs != "locate" {
					require.Equal(t, 2, c.calls("count"))
				}
				if hangs != "price" && hangs != "score" && hangs != "locate" {
					require.GreaterOrEqual(t, c.calls("price"), 3)
				}
				if hangs != "shift" {
					require.Equal(t, int(4*cloudfacts.PriceInterval/cloudfacts.ShiftInterval), c.calls("shift"))
				}
				stop()
				run.Wait()
			})
		})
	}
}

// TestPrices: they are read for the types that groups may have on spot, at once for new ones,
// and again when they are old. An error leaves the prices that there are.
func TestPrices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		c, f := &cloud{zones: map[string]string{"s": "z"}}, &facts{}
		q := cloudfacts.Question{SpotTypes: []string{"m"}, SpotSubnets: []string{"s"}}
		r := cloudfacts.New(provider.Abilities{Zones: c, Prices: c}, f.options(func() cloudfacts.Question {
			c.mu.Lock()
			defer c.mu.Unlock()
			return q
		}, silent))
		r.ReadFirst(ctx, nil)
		require.Equal(t, []string{"locate s", "price m"}, c.asked, "prices are by zone")
		require.Equal(t, 1, f.priced)
		require.Equal(t, c.zones, f.zones)

		c.asked = nil
		var run sync.WaitGroup
		run.Go(func() { r.Run(ctx) })
		wait := func(d time.Duration) (asked []string) {
			sleep.For(ctx, d)
			synctest.Wait()
			c.set(func() { asked, c.asked = c.asked, nil })
			return asked
		}
		require.Equal(t, []string{"price m"}, wait(0))
		require.Empty(t, wait(cloudfacts.PriceInterval*8/10))
		require.Equal(t, []string{"price m"}, wait(cloudfacts.PriceInterval*4/10))

		r.GroupsChanged()
		require.Empty(t, wait(time.Second), "nothing is new")
		c.set(func() { q.GroupSizes = map[string]int{"m": 1} })
		r.GroupsChanged()
		require.NotEmpty(t, wait(time.Second), "scores are wanted, which this provider does not have")
		r.GroupsChanged()
		require.Empty(t, wait(time.Second), "nothing is new")
		priced := f.priced
		c.set(func() { c.err, q.SpotTypes = errors.New("no"), []string{"m", "n"} })
		r.GroupsChanged()
		require.Equal(t, []string{"price m n"}, wait(time.Second))
		require.Equal(t, priced, f.priced)
		c.set(func() { c.err, q.SpotSubnets = nil, []string{"s", "t"} })
		r.GroupsChanged()
		require.Equal(t, []string{"locate t", "price m n"}, wait(time.Second))
		require.Equal(t, priced+1, f.priced)
		c.set(func() { q.SpotTypes, q.SpotSubnets = nil, nil })
		require.Empty(t, wait(2*cloudfacts.PriceInterval), "no group is on spot")
		stop()
		run.Wait()
	})
}

// TestScoresAreAskedRarely: each set of types once an hour, ten sets at most, failures
// included. New sets are asked for as soon as groups have them.
func TestScoresAreAskedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		c, f := &cloud{err: errors.New("no")}, &facts{}
		var mu sync.Mutex
		sizes := map[string]int{"m": 3}
		r := cloudfacts.New(abilities(c), f.options(func() cloudfacts.Question {
			mu.Lock()
			defer mu.Unlock()
			return cloudfacts.Question{GroupSizes: maps.Clone(sizes)}
		}, silent))
		var run sync.WaitGroup
		run.Go(func() { r.Run(ctx) })
		sleep.For(ctx, 50*time.Minute)
		synctest.Wait()
		require.Equal(t, 1, c.calls("score"))
		require.Empty(t, f.scores)
		c.set(func() { c.err = nil })
		sleep.For(ctx, 25*time.Minute)
		synctest.Wait()
		require.Equal(t, 1, c.calls("score"))
		require.Equal(t, map[string]map[string]int{"m": {"z": 7}}, f.scores)

		r.GroupsChanged()
		synctest.Wait()
		require.Zero(t, c.calls("score"), "nothing is new")
		mu.Lock()
		for _, name := range strings.Split("abcdefghijklno", "") {
			sizes[name] = 1
		}
		mu.Unlock()
		r.GroupsChanged()
		synctest.Wait()
		require.Equal(t, 9, c.calls("score"), "ten sets in all")
		sleep.For(ctx, 2*time.Hour)
		synctest.Wait()
		require.GreaterOrEqual(t, c.calls("score"), 10, "all of them again after an hour")
		stop()
		run.Wait()
	})
}

// TestScoresOfNextDay: sets of types that no group has any more make room for others a day
// later. Until then it is logged once that the others have no scores.
func TestScoresOfNextDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		c, f := &cloud{}, &facts{}
		var mu sync.Mutex
		var log bytes.Buffer
		sizes := map[string]int{}
		for _, name := range strings.Split("abcdefghij", "") {
			sizes[name] = 1
		}
		r := cloudfacts.New(abilities(c), f.options(func() cloudfacts.Question {
			mu.Lock()
			defer mu.Unlock()
			return cloudfacts.Question{GroupSizes: maps.Clone(sizes)}
		}, slog.New(slog.NewTextHandler(&log, nil))))
		var run sync.WaitGroup
		run.Go(func() { r.Run(ctx) })
		synctest.Wait()
		require.Equal(t, 10, c.calls("score"))
		mu.Lock()
		sizes = map[string]int{"new": 1}
		mu.Unlock()
		sleep.For(ctx, 23*time.Hour)
		synctest.Wait()
		require.Zero(t, c.calls("score"), "ten different questions in a day")
		require.Equal(t, 1, strings.Count(log.String(), "types=new"))
		sleep.For(ctx, 2*time.Hour)
		synctest.Wait()
		require.Contains(t, f.scores, "new")
		require.Equal(t, 1, strings.Count(log.String(), "\n"))
		stop()
		run.Wait()
	})
}

// TestShiftErrorIsLoggedOnce: not every minute, but again after an answer.
func TestShiftErrorIsLoggedOnce(t *testing.T) {
	var out strings.Builder
	c, f := &cloud{err: errors.New("denied")}, &facts{}
	r := cloudfacts.New(provider.Abilities{Shifts: c}, f.options(subnets(), slog.New(slog.NewTextHandler(&out, nil))))
	for _, fails := range []bool{true, true, false, true} {
		if c.err = nil; fails {
			c.err = errors.New("denied")
		}
		r.ReadFirst(t.Context(), nil)
	}
	require.Equal(t, 2, strings.Count(out.String(), "denied"), out.String())
	require.Equal(t, 1, f.shifts)

	ended, stop := context.WithCancel(t.Context())
	stop()
	c.err = ended.Err()
	r.ReadFirst(ended, nil)
	require.NotContains(t, out.String(), "canceled", "the end of a term is no error")
}

// TestNothingToAsk: neither a provider that cannot tell is asked, nor one about nothing.
func TestNothingToAsk(t *testing.T) {
	c, f := &cloud{}, &facts{}
	all := func() cloudfacts.Question {
		return cloudfacts.Question{Subnets: []string{"a"}, SpotTypes: []string{"m"}, SpotSubnets: []string{"a"}, GroupSizes: map[string]int{"m": 1}}
	}
	cloudfacts.New(provider.Abilities{}, f.options(all, silent)).ReadFirst(t.Context(), nil)
	cloudfacts.New(provider.Abilities{Subnets: c, Zones: c, Prices: c}, f.options(subnets(), silent)).ReadFirst(t.Context(), nil)
	require.Empty(t, c.asked)
}
