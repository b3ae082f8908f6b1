package reconcile

import (
	"context"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider"
)

// A subnetTable answers with counts, or with an error.
type subnetTable struct {
	free    map[string]int
	zones   map[string]string
	err     error
	asked   atomic.Int32
	located [][]string
}

func (s *subnetTable) FreeAddresses(context.Context, []string) (map[string]int, error) {
	s.asked.Add(1)
	return s.free, s.err
}

func (s *subnetTable) SubnetZones(_ context.Context, subnets []string) (map[string]string, error) {
	s.located = append(s.located, subnets)
	return s.zones, s.err
}

// TestSubnetZonesAreAskedOnce: a subnet's zone is asked for until it is known.
func TestSubnetZonesAreAskedOnce(t *testing.T) {
	table := &subnetTable{err: &nstance.Error{Code: nstance.Throttled}}
	zones := map[string]string{}
	o := withDefaults(nil)
	r := newSubnetReader(provider.Abilities{Zones: table}, nil, func(z map[string]string) { maps.Copy(zones, z) }, &o)
	r.read(t.Context(), []string{"a", "b"})
	require.Empty(t, zones, "an error says nothing")
	table.err, table.zones = nil, map[string]string{"a": "z1"}
	r.read(t.Context(), []string{"a", "b"})
	require.Equal(t, map[string]string{"a": "z1"}, zones)
	table.zones = map[string]string{"b": "z2"}
	r.read(t.Context(), []string{"a", "b"})
	r.read(t.Context(), []string{"a", "b"})
	require.Equal(t, map[string]string{"a": "z1", "b": "z2"}, zones)
	require.Equal(t, [][]string{{"a", "b"}, {"a", "b"}, {"b"}}, table.located)
}

// TestAddressCounter: counts are asked for when they are old, not more often than the
// pause permits, and an error leaves the count that there is.
func TestAddressCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		table := &subnetTable{free: map[string]int{"a": 3}}
		var counted []map[string]int
		var askedAt []time.Time
		o := withDefaults(nil)
		c := newSubnetReader(provider.Abilities{Subnets: table}, func(free map[string]int, asked time.Time) {
			counted, askedAt = append(counted, free), append(askedAt, asked)
		}, nil, &o)
		inUse := []string{"a", "b"}
		ended := make(chan struct{})
		go func() { c.run(ctx, func() []string { return inUse }); close(ended) }()

		began := time.Now()
		c.ask()
		synctest.Wait()
		require.Equal(t, []map[string]int{{"a": 3}}, counted)
		require.Equal(t, []time.Time{began}, askedAt)

		table.err = &nstance.Error{Code: nstance.Throttled}
		sleep.For(ctx, countPause+time.Millisecond)
		synctest.Wait()
		require.EqualValues(t, 1, table.asked.Load(), "no further lookup")
		c.ask()
		synctest.Wait()
		require.EqualValues(t, 2, table.asked.Load())
		require.Len(t, counted, 1)

		table.err, table.free = nil, map[string]int{"a": 9}
		for range 5 {
			c.ask()
		}
		synctest.Wait()
		require.EqualValues(t, 2, table.asked.Load(), "within the pause")
		sleep.For(ctx, countPause+time.Millisecond)
		synctest.Wait()
		require.Equal(t, map[string]int{"a": 9}, counted[1])

		sleep.For(ctx, countPause+time.Millisecond)
		synctest.Wait()
		inUse = nil
		c.ask()
		synctest.Wait()
		require.EqualValues(t, 3, table.asked.Load(), "no subnets to choose among")
		stop()
		<-ended
		newSubnetReader(provider.Abilities{}, nil, nil, &o).read(ctx, []string{"a"}) // a provider that cannot tell
	})
}
