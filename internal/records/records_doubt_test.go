package records_test

import (
	"bytes"
	"context"
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
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// logged returns the records of a term with their log.
func (b recordsTest) logged(epoch uint64) (*records.Records, *bytes.Buffer) {
	var out bytes.Buffer
	return records.New(b, shard, &records.Options{Epoch: epoch, Log: slog.New(slog.NewTextHandler(&out, nil))}), &out
}

// TestOptions: what a caller sets is used.
func TestOptions(t *testing.T) {
	bubble(t, "width bounds the reads in flight", func(t *testing.T) {
		b := recordsTestWith(t, 20)
		var mu sync.Mutex
		var now, most int
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			now += n
			most = max(most, now)
		}
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "instance/", Times: -1, Pass: true, Do: func() {
			count(1)
			wait(time.Millisecond)
			count(-1)
		}})
		_, _, err := records.New(b, shard, &records.Options{Width: 3}).Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, most)
	})
	bubble(t, "the log names each damaged record once, and each foreign object", func(t *testing.T) {
		b := recordsTestWith(t, 2)
		b.put(t, keyOf(newInstance(9)), "{")
		b.put(t, "instance/z1/stray", "{")
		recs, log := b.logged(8)
		_, problems, err := recs.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, problems, 2)
		require.Equal(t, 1, strings.Count(log.String(), "record cannot be read"))
		require.Contains(t, log.String(), "key="+keyOf(newInstance(9)))
		require.Contains(t, log.String(), "code=invalid")
		require.Equal(t, 1, strings.Count(log.String(), "key=instance/z1/stray"))
	})
	bubble(t, "the log says once that the snapshot is not used, and nothing of a good one", func(t *testing.T) {
		b := snapshotTest(t, 2)
		recs, log := b.logged(8)
		_, _, err := recs.Load(t.Context())
		require.NoError(t, err)
		_, err = recs.Update(t.Context(), newInstance(1).ID, host("h"))
		require.NoError(t, err)
		_, err = recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		require.Empty(t, log.String())
		b.replace(t, []byte("damaged"))
		recs, log = b.logged(9)
		_, _, err = recs.Load(t.Context())
		require.NoError(t, err)
		_, err = recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(log.String(), "snapshot not used"))
	})
}

// TestProblemsAreSorted: records and foreign objects stand in one order, that of their keys.
func TestProblemsAreSorted(t *testing.T) {
	b := recordsTestWith(t, 1)
	for i := range byte(9) {
		b.put(t, keyOf(newInstance(20-i)), "{")
		b.put(t, fmt.Sprintf("instance/z1/default/web/knd0400000001r0100000000000%dx", i), "{}")
	}
	b.put(t, "instance/z1/aaa", "{}")
	b.put(t, "instance/z1/zzz", "{}")
	_, problems, err := b.recs.Load(t.Context())
	require.NoError(t, err)
	require.Len(t, problems, 20)
	for i := 1; i < len(problems); i++ {
		require.Less(t, problems[i-1].Key, problems[i].Key)
	}
	require.Equal(t, problems, b.recs.Problems())
}

func TestRecordsWithOneID(t *testing.T) {
	twin := newInstance(1)
	twin.Group = "aaa" // which comes first
	addTwin := func(t *testing.T, b recordsTest) {
		t.Helper()
		b.put(t, keyOf(twin), `{"format":"1.0","id":"`+string(twin.ID)+`","tenant":"default","group":"aaa"}`)
	}
	bubble(t, "the one that is known stays, and the other is not read", func(t *testing.T) {
		b, rec := with(t)
		addTwin(t, b)
		for range 2 {
			b.Reset()
			recs, problems, err := b.recs.Load(t.Context())
			require.NoError(t, err)
			require.Equal(t, []records.Instance{rec}, recs)
			require.Len(t, problems, 1)
			require.Equal(t, keyOf(twin), problems[0].Key)
			require.ErrorContains(t, problems[0].Err, keyOf(rec))
			require.Zero(t, b.Count(storagetest.Get))
		}
	})
	bubble(t, "of many that are not known, the first by key stays", func(t *testing.T) {
		b, _ := with(t)
		for _, group := range []string{"b", "c", "d", "e", "f", "g"} {
			b.put(t, "instance/z1/default/"+group+"/"+string(twin.ID)+".json", "{}")
		}
		addTwin(t, b)
		for range 5 {
			recs, problems, err := b.next(8).recs.Load(t.Context())
			require.NoError(t, err)
			require.Len(t, recs, 1)
			require.EqualValues(t, "aaa", recs[0].Group)
			require.Len(t, problems, 7)
		}
	})
}

func TestLoadInDoubt(t *testing.T) {
	bubble(t, "reads a record in doubt, although its version is the one in memory", func(t *testing.T) {
		b, rec := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch}, storagetest.Fault{Op: storagetest.Get})
		_, err := b.recs.Update(t.Context(), rec.ID, host("lost"))
		require.ErrorIs(t, err, nstance.Ambiguous)
		_, _, err = b.recs.Load(t.Context())
		require.NoError(t, err)
		b.Reset()
		_, err = b.recs.Update(t.Context(), rec.ID, host("h"))
		require.NoError(t, err)
		require.Equal(t, 1, b.Count(""), "it is in doubt no more")
	})
	bubble(t, "an error that no retry can mend is a problem at once", func(t *testing.T) {
		for code, attempts := range map[nstance.Code]int32{nstance.Denied: 1, nstance.Internal: 1, nstance.Ambiguous: 6, nstance.Throttled: 6, nstance.Unavailable: 6} {
			b := recordsTestWith(t, 2)
			var n atomic.Int32
			b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: keyOf(newInstance(2)), Err: code, Times: -1, Do: func() { n.Add(1) }})
			recs, problems, err := b.recs.Load(t.Context())
			require.NoError(t, err)
			require.Len(t, recs, 1)
			require.Len(t, problems, 1)
			require.ErrorIs(t, problems[0].Err, code)
			require.Equal(t, attempts, n.Load(), code)
		}
	})
	bubble(t, "retries with pauses", func(t *testing.T) {
		b := recordsTestWith(t, 1)
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "instance/", Times: -1})
		began := time.Now()
		_, _, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Greater(t, time.Since(began), 100*time.Millisecond)
	})
	for name, c := range map[string]struct {
		code nstance.Code
		end  func(leave func())
	}{
		"while it reads":             {nstance.Denied, func(leave func()) { leave() }},
		"while it waits for a retry": {nstance.Unavailable, func(leave func()) { time.AfterFunc(time.Millisecond, leave) }},
	} {
		bubble(t, "one that is cancelled "+name+" leaves no problems behind", func(t *testing.T) {
			b := recordsTestWith(t, 30)
			ctx, leave := context.WithCancel(t.Context())
			b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "instance/", Err: c.code, Times: -1, Do: func() { c.end(leave) }})
			_, _, err := b.recs.Load(ctx)
			require.ErrorIs(t, err, nstance.Unavailable)
			require.Empty(t, b.recs.Problems(), "no record is known to be unreadable")
		})
	}
	bubble(t, "a broken list does not wait for the whole snapshot", func(t *testing.T) {
		b := snapshotTest(t, 1)
		b.Inject(storagetest.Fault{Op: storagetest.List})
		recs, log := b.logged(8)
		began := time.Now()
		_, _, err := records.New(hanging{b}, shard, nil).Load(t.Context())
		require.ErrorIs(t, err, nstance.Unavailable)
		require.LessOrEqual(t, time.Since(began), time.Second)
		require.NoError(t, recs.SnapshotProblem())
		require.Empty(t, log.String())
	})
	for name, end := range map[string]bool{"stays readable when another call reads it": false, "is left alone when the load ends": true} {
		bubble(t, "a record that the load cannot read "+name, func(t *testing.T) {
			b, rec := with(t)
			reading, waiting, blocked := make(chan struct{}), make(chan struct{}), make(chan struct{})
			b.Inject(
				storagetest.Fault{Op: storagetest.Get, Prefix: keyOf(rec), Err: nstance.Denied, Do: func() { close(reading); <-waiting }},
				storagetest.Fault{Op: storagetest.Get, Prefix: keyOf(rec), Pass: true, Do: func() { <-blocked }},
			)
			b.foreign(t, 7, rec.ID, func(r *records.Instance) { r.Hostname = "new" })
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var wg sync.WaitGroup
			wg.Go(func() {
				_, problems, err := b.recs.Load(ctx)
				require.Equal(t, end, err != nil)
				require.Empty(t, problems)
			})
			<-reading
			wg.Go(func() {
				_, err := b.recs.Refresh(t.Context(), rec.ID)
				require.NoError(t, err)
			})
			synctest.Wait()
			close(waiting)
			synctest.Wait() // the refresh has the lock, the load waits for it
			if end {
				leave()
				synctest.Wait()
			}
			close(blocked)
			wg.Wait()
			require.Empty(t, b.recs.Problems())
			got, _ := b.recs.Get(rec.ID)
			require.Equal(t, "new", got.Hostname)
		})
	}
}
