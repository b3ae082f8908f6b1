package lease_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

func TestSystemClock(t *testing.T) {
	t.Run("advances", func(t *testing.T) {
		c := lease.SystemClock()
		rang := make(chan time.Duration, 1)
		began := c.Now()
		c.AfterFunc(300*time.Millisecond, func() { rang <- c.Now() })
		require.GreaterOrEqual(t, <-rang-began, 300*time.Millisecond)
	})
	t.Run("is what Elapsed reads, where it counts the sleep of the machine", func(t *testing.T) {
		elapsed := lease.Elapsed()
		if runtime.GOOS == "linux" {
			require.NotNil(t, elapsed)
		}
		if elapsed == nil {
			return
		}
		before := lease.SystemClock().Now()
		require.GreaterOrEqual(t, elapsed(), before)
		require.Less(t, elapsed(), before+time.Minute)
	})
	// jumping is a clock that jumps relative to Go's own, as after a sleep of the machine.
	jumping := func() (lease.Clock, *atomic.Int64) {
		var slept atomic.Int64
		began := time.Now()
		return lease.Sliced(func() time.Duration { return time.Since(began) + time.Duration(slept.Load()) }), &slept
	}
	bubble(t, "its timers count the sleep of the machine", func(t *testing.T) {
		c, slept := jumping()
		var rang atomic.Bool
		c.AfterFunc(time.Minute, func() { rang.Store(true) })
		after(t.Context(), 10*time.Second)
		require.False(t, rang.Load())
		slept.Store(int64(49 * time.Second))
		after(t.Context(), 900*time.Millisecond)
		require.False(t, rang.Load())
		after(t.Context(), 110*time.Millisecond)
		require.True(t, rang.Load())
	})
	bubble(t, "a term ends soon after its machine has slept", func(t *testing.T) {
		c, slept := jumping()
		term := campaign(t, candidate(t, newShardStore(t), lease.Options{Clock: c}))
		after(t.Context(), time.Second)
		slept.Store(int64(time.Hour))
		require.LessOrEqual(t, termDuration(term), 250*time.Millisecond)
	})
	bubble(t, "a stopped timer stays silent", func(t *testing.T) {
		c, _ := jumping()
		var rang atomic.Int32
		for _, wait := range []time.Duration{0, 100 * time.Millisecond, 900 * time.Millisecond} {
			stop := c.AfterFunc(time.Second, func() { rang.Add(1) })
			after(t.Context(), wait)
			require.True(t, stop())
			require.False(t, stop())
		}
		stop := c.AfterFunc(time.Second, func() { rang.Add(1) })
		after(t.Context(), time.Minute)
		synctest.Wait()
		require.False(t, stop())
		require.EqualValues(t, 1, rang.Load())
	})
}

// TestRealTime hands a lease over between two electors that share a directory, in real
// time.
func TestRealTime(t *testing.T) {
	dir := t.TempDir()
	open := func(o lease.Options) *lease.Lease {
		s, err := storage.OpenDir(dir, nil)
		require.NoError(t, err)
		o.Clock, o.TTL = lease.SystemClock(), records.MinLeaseTTL
		return candidate(t, s, o)
	}
	s, err := storage.OpenDir(dir, nil)
	require.NoError(t, err)
	_, err = lease.Prepare(t.Context(), s, "z1")
	require.NoError(t, err)
	a, b := open(lease.Options{Address: "a:1"}), open(lease.Options{})
	first := campaign(t, a)
	granted := startCampaign(t, b)
	require.Eventually(t, func() bool { return b.Holder().Address == "a:1" }, time.Minute, 10*time.Millisecond)
	require.NoError(t, first.Err())
	require.NoError(t, a.Resign(t.Context()))
	second := <-granted
	require.Greater(t, second.Epoch(), first.Epoch())
	require.Error(t, first.Err())
}

func ExampleLease() {
	ctx := context.Background()
	store := storage.NewMemory()           // shared by all servers of the shard
	_, _ = lease.Prepare(ctx, store, "z1") // a new shard: its first leader does not wait
	elector, err := lease.New(store, "z1", &lease.Options{Address: "10.0.0.1:8993"})
	if err != nil {
		fmt.Println(err)
		return
	}
	term, err := elector.Campaign(ctx)
	fmt.Println(term.Epoch(), term.Err(), err, elector.Holder().Address)
	// Work until term.Context() ends, check term.Err() before every mutation, then:
	err = elector.Resign(ctx)
	fmt.Println(term.Err(), err)
	// Output:
	// 1 <nil> <nil> 10.0.0.1:8993
	// term 1 is over: the lease was released <nil>
}
