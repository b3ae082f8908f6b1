package records_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestRefresh(t *testing.T) {
	bubble(t, "sees a late write", func(t *testing.T) {
		b, rec := with(t)
		b.foreign(t, 7, rec.ID, func(r *records.Instance) { r.Hostname = "late" })
		got, err := b.recs.Refresh(t.Context(), rec.ID)
		require.NoError(t, err)
		require.Equal(t, "late", got.Hostname)
		got, _ = b.recs.Get(rec.ID)
		require.Equal(t, "late", got.Hostname)
	})
	bubble(t, "sees each of several late writes, with any calls between them", func(t *testing.T) {
		between := map[string]func(b recordsTest, rec records.Instance){
			"nothing": func(recordsTest, records.Instance) {},
			"a refresh that fails": func(b recordsTest, rec records.Instance) {
				b.Inject(storagetest.Fault{Op: storagetest.Get})
				_, err := b.recs.Refresh(t.Context(), rec.ID)
				require.Error(t, err)
			},
			"another refresh": func(b recordsTest, rec records.Instance) {
				_, err := b.recs.Refresh(t.Context(), rec.ID)
				require.NoError(t, err)
			},
			"a load": func(b recordsTest, _ records.Instance) {
				_, _, err := b.recs.Load(t.Context())
				require.NoError(t, err)
			},
			"an update": func(b recordsTest, rec records.Instance) {
				_, err := b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error { r.Reclaims++; return nil })
				require.NoError(t, err)
			},
			"many at once": func(b recordsTest, rec records.Instance) {
				var wg sync.WaitGroup
				for range 5 {
					wg.Go(func() { _, _ = b.recs.Refresh(t.Context(), rec.ID) })
				}
				wg.Wait()
			},
		}
		for name, call := range between {
			b, rec := with(t)
			for i := range 6 {
				want := fmt.Sprint("late", i)
				call(b, rec)
				b.foreign(t, 7, rec.ID, func(r *records.Instance) { r.Hostname = want })
				b.Reset()
				got, err := b.recs.Refresh(t.Context(), rec.ID)
				require.NoError(t, err)
				require.Equal(t, want, got.Hostname, "%d, after %s", i, name)
				require.Equal(t, 1, b.Count(""), "one read, after %s", name)
			}
		}
	})
	bubble(t, "returns no state from before the call", func(t *testing.T) {
		b, rec := with(t)
		var written atomic.Int64
		b.Inject(storagetest.Fault{Op: storagetest.Get, Times: -1, Pass: true, Do: func() { wait(time.Millisecond) }})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 30 {
					before := written.Load()
					got, err := b.recs.Refresh(t.Context(), rec.ID)
					require.NoError(t, err)
					require.GreaterOrEqual(t, int64(got.Reclaims), before)
					wait(rand.N(3 * time.Millisecond))
				}
			})
		}
		for range 60 {
			b.foreign(t, 7, rec.ID, func(r *records.Instance) { r.Reclaims++ })
			written.Add(1)
			wait(rand.N(2 * time.Millisecond))
		}
		wg.Wait()
	})
	bubble(t, "finds a record that is not in memory", func(t *testing.T) {
		b, rec := with(t)
		fresh := records.New(b, shard, nil)
		got, err := fresh.Refresh(t.Context(), rec.ID)
		require.NoError(t, err)
		require.Equal(t, rec, got)
		_, err = fresh.Refresh(t.Context(), newInstance(2).ID)
		require.ErrorIs(t, err, nstance.NotFound)
		_, err = fresh.Refresh(t.Context(), "x")
		require.ErrorIs(t, err, nstance.Invalid)
		b.Inject(storagetest.Fault{Op: storagetest.List, Mode: storagetest.LoseAnswer})
		_, err = fresh.Refresh(t.Context(), newInstance(2).ID)
		require.ErrorIs(t, err, nstance.Unavailable, "a broken list proves no absence")
	})
	bubble(t, "shares no read from before a write without an answer", func(t *testing.T) {
		b, rec := with(t)
		blocked := make(chan struct{})
		b.Inject(storagetest.Fault{Op: storagetest.Get, Pass: true, Do: func() { <-blocked }})
		var wg sync.WaitGroup
		refresh := func(got *records.Instance) {
			wg.Go(func() {
				var err error
				*got, err = b.recs.Refresh(t.Context(), rec.ID)
				require.NoError(t, err)
			})
			synctest.Wait()
		}
		var first, second, third records.Instance
		refresh(&first)  // its read is in flight
		refresh(&second) // waits for it, then reads for third too
		writer, giveUp := context.WithCancel(t.Context())
		wg.Go(func() {
			_, err := b.recs.Update(writer, rec.ID, func(r *records.Instance) error { r.Hostname = "landed"; return nil })
			require.Error(t, err)
		})
		synctest.Wait()
		refresh(&third)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer})
		b.Inject(storagetest.Fault{Op: storagetest.Get, Skip: 1, Do: giveUp}) // it cannot be read back
		close(blocked)
		wg.Wait()
		require.Empty(t, second.Hostname)
		require.Equal(t, "landed", third.Hostname)
	})
	bubble(t, "an error is not absence", func(t *testing.T) {
		b, rec := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.Get})
		_, err := b.recs.Refresh(t.Context(), rec.ID)
		require.ErrorIs(t, err, nstance.Unavailable)
		_, ok := b.recs.Get(rec.ID)
		require.True(t, ok)
	})
	bubble(t, "waiting callers share one read that started after their calls", func(t *testing.T) {
		b, rec := with(t)
		blocked := make(chan struct{})
		b.Inject(storagetest.Fault{Op: storagetest.Get, Pass: true, Do: func() { <-blocked }})
		var wg sync.WaitGroup
		for caller := range 10 {
			wg.Go(func() {
				_, err := b.recs.Refresh(t.Context(), rec.ID)
				require.NoError(t, err)
			})
			if caller == 0 {
				synctest.Wait() // its read is in flight
			}
		}
		synctest.Wait()
		close(blocked)
		wg.Wait()
		require.Equal(t, 2, b.Count(storagetest.Get), "the read in flight may be too old for later callers")
	})
}
