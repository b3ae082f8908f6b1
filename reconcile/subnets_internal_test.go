package reconcile

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// A subnetTable answers with counts, or with an error.
type subnetTable struct {
	free  map[string]int
	err   error
	asked int
}

func (s *subnetTable) FreeAddresses(context.Context, []string) (map[string]int, error) {
	s.asked++
	return s.free, s.err
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
		c := newAddressCounter(table, func(free map[string]int, asked time.Time) {
			counted, askedAt = append(counted, free), append(askedAt, asked)
		}, &o)
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
		require.Equal(t, 1, table.asked, "nobody has asked since")
		c.ask()
		synctest.Wait()
		require.Equal(t, 2, table.asked)
		require.Len(t, counted, 1)

		table.err, table.free = nil, map[string]int{"a": 9}
		for range 5 {
			c.ask()
		}
		synctest.Wait()
		require.Equal(t, 2, table.asked, "within the pause")
		sleep.For(ctx, countPause+time.Millisecond)
		synctest.Wait()
		require.Equal(t, map[string]int{"a": 9}, counted[1])

		sleep.For(ctx, countPause+time.Millisecond)
		synctest.Wait()
		inUse = nil
		c.ask()
		synctest.Wait()
		require.Equal(t, 3, table.asked, "no subnets to choose among")
		stop()
		<-ended
		newAddressCounter(nil, nil, &o).count(ctx, []string{"a"}) // a provider that cannot tell
	})
}
