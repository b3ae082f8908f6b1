package garbage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// runs starts Run and returns what returns the passes since it was called last, as times after
// the start.
func (b *collectorTest) runs() (passes func() []time.Duration, stop func()) {
	began := time.Now()
	var mu sync.Mutex
	var times []time.Duration
	b.Contents = func(context.Context) (map[string]int, error) {
		mu.Lock()
		defer mu.Unlock()
		times = append(times, time.Since(began))
		return nil, nil
	}
	passes = func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		out := times
		times = nil
		return out
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Collector.Run(ctx) }()
	return passes, func() { cancel(); <-ended }
}

// elapse lets time pass, and all that is due happen.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestIntervals: a pass comes every half hour, or every retention if that is less, which takes
// effect within seconds; passes of several servers do not stay together.
func TestIntervals(t *testing.T) {
	runCollectorTest(t, "are jittered", func(t *testing.T, b *collectorTest) {
		var retention atomic.Int64
		retention.Store(int64(100 * time.Hour))
		b.Retention = func() time.Duration { return time.Duration(retention.Load()) }
		passes, stop := b.runs()
		defer stop()
		elapse(20 * time.Hour)
		found := passes()
		require.InDelta(t, 40, len(found), 4)
		last, different := time.Duration(0), map[time.Duration]bool{}
		for _, at := range found {
			require.GreaterOrEqual(t, at-last, 27*time.Minute)
			require.LessOrEqual(t, at-last, 33*time.Minute+time.Second)
			different[at-last] = true
			last = at
		}
		require.Greater(t, len(different), 10)

		retention.Store(int64(time.Minute))
		elapse(settingCheck + time.Second)
		require.LessOrEqual(t, len(passes()), 1)
		elapse(10 * time.Minute)
		require.InDelta(t, 10, len(passes()), 2)
	})
}

// TestRunEnds at once, also in the middle of a pass.
func TestRunEnds(t *testing.T) {
	runCollectorTest(t, "at once", func(t *testing.T, b *collectorTest) {
		passes, stop := b.runs()
		elapse(time.Hour)
		began := time.Now()
		stop()
		require.Equal(t, began, time.Now())
		require.NotEmpty(t, passes())
		require.Empty(t, b.Problems())

		b.Contents = func(ctx context.Context) (map[string]int, error) { <-ctx.Done(); return nil, ctx.Err() }
		began = time.Now()
		b.pass(t.Context())
		require.Equal(t, 10*time.Minute, time.Since(began), "a pass that hangs ends by itself")
		require.Contains(t, b.Problems()[0], "definition/")
	})
}

// TestProblems: each kind has its own, until it is collected again.
func TestProblems(t *testing.T) {
	runCollectorTest(t, "of each kind", func(t *testing.T, b *collectorTest) {
		var log strings.Builder
		b.Collector.Log = slog.New(slog.NewTextHandler(&log, nil))
		contents, ledger := errors.New("no list"), errors.New("no ledger")
		b.Contents = func(context.Context) (map[string]int, error) {
			return map[string]int{"fetched/": 2, "definition/": 0}, contents
		}
		b.Ledger = func(context.Context) (int, error) { return 3, ledger }
		nonce, record := b.storeExpired()
		for range 3 {
			b.pass(t.Context())
		}
		require.False(t, b.objectExists(nonce) || b.objectExists(record), "the others are collected")
		require.Equal(t, []string{
			"garbage under definition/, fetched/, bootstrap/ is not collected: no list",
			"garbage under ledger/ is not collected: no ledger",
		}, b.Problems())
		require.Equal(t, 1, strings.Count(log.String(), "err=\"no list\""), "it is logged once")
		require.Equal(t, 3, strings.Count(log.String(), "prefix=fetched/ objects=2"))
		require.Equal(t, 3, strings.Count(log.String(), "prefix=ledger/ objects=3"))
		require.Equal(t, 1, strings.Count(log.String(), "prefix=nonce/ objects=1"))
		require.NotContains(t, log.String(), "objects=0")
		contents = errors.New("no list either")
		b.pass(t.Context())
		require.Contains(t, b.Problems()[0], "no list either")
		require.Contains(t, log.String(), "err=\"no list either\"")
		contents, ledger = nil, nil
		b.pass(t.Context())
		require.Empty(t, b.Problems())

		contents = fmt.Errorf("list: %w", context.Canceled)
		b.pass(t.Context())
		require.Empty(t, b.Problems(), "the end of the term is none")
	})
}

// TestClockThatTurnsWrong: the clock is asked before each deletion, and a pass that it ends says
// how many objects are gone.
func TestClockThatTurnsWrong(t *testing.T) {
	runCollectorTest(t, "between two deletions", func(t *testing.T, b *collectorTest) {
		for i := range 3 {
			b.put(registered(fmt.Sprint("old-", i), time.Hour, time.Hour))
		}
		<-time.After(2 * day)
		b.store.Inject(storagetest.Fault{Op: storagetest.Delete, Prefix: "nonce/", Skip: 1, Pass: true, Do: func() { b.right = false }})
		n, err := b.deleteExpired(t.Context(), b.Kinds[0])
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Equal(t, 2, n)
		left := 0
		for range b.store.List(t.Context(), "nonce/", "") {
			left++
		}
		require.Equal(t, 1, left)
	})
}

// TestAnotherLeaderDeleted: what is gone between list, read and deletion is no error, and is not
// counted.
func TestAnotherLeaderDeleted(t *testing.T) {
	for _, op := range []storagetest.Op{storagetest.Get, storagetest.Delete} {
		runCollectorTest(t, string(op), func(t *testing.T, b *collectorTest) {
			nonce, _ := b.storeExpired()
			obj, err := b.store.Get(t.Context(), nonce)
			require.NoError(t, err)
			b.store.Inject(storagetest.Fault{Op: op, Prefix: nonce, Pass: true, Do: func() {
				_ = b.store.DeleteIfMatch(t.Context(), nonce, obj.Version)
			}})
			n, err := b.deleteExpired(t.Context(), b.Kinds[0])
			require.NoError(t, err)
			require.Zero(t, n)
			require.False(t, b.objectExists(nonce))
		})
	}
}

// TestPages: a page is the next one after the last, and the first one follows the last page.
func TestPages(t *testing.T) {
	store := storage.NewMemory()
	var keys []string
	for i := range 5 {
		key := layout.NonceKey(fmt.Sprint(i))
		_, err := store.PutIfAbsent(t.Context(), key, nil)
		require.NoError(t, err)
		keys = append(keys, key)
	}
	for limit, want := range map[int][][]string{
		2: {keys[:2], keys[2:4], keys[4:], keys[:2]},
		4: {keys[:4], keys[4:], keys[:4]},
		5: {keys, keys},
		6: {keys, keys},
	} {
		after := ""
		for i, names := range want {
			page, next, err := listPage(t.Context(), store, "nonce/", after, limit)
			require.NoError(t, err)
			var got []string
			for _, e := range page {
				got = append(got, e.Key)
			}
			require.Equal(t, names, got, "limit %d, page %d", limit, i)
			after = next
		}
	}
}

// TestReadAhead: one pass reads so many objects at a time, and no more.
func TestReadAhead(t *testing.T) {
	runCollectorTest(t, "of sixteen", func(t *testing.T, b *collectorTest) {
		for i := range 40 {
			b.put(registered(fmt.Sprint("a", i), time.Hour, time.Hour))
		}
		b.Contents = func(context.Context) (map[string]int, error) { return nil, nil }
		release := make(chan struct{})
		b.store.Inject(storagetest.Fault{Op: storagetest.Get, Times: -1, Pass: true, Do: func() { <-release }})
		b.store.Reset()
		go b.pass(t.Context())
		synctest.Wait()
		require.Equal(t, parallelReads, b.store.Count(storagetest.Get))
		close(release)
		synctest.Wait()
	})
}
