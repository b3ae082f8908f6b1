package records_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestSnapshotOfATerm: which terms use a snapshot of term 7.
func TestSnapshotOfATerm(t *testing.T) {
	for name, c := range map[string]struct {
		epoch uint64
		reads int
	}{
		"a tool without a term": {0, 0},
		"an earlier term":       {6, 3},
		"the same term":         {7, 0},
		"a later term":          {8, 0},
	} {
		bubble(t, name, func(t *testing.T) {
			b := snapshotTest(t, 3).next(c.epoch)
			recs, reads := b.load(t)
			require.Len(t, recs, 3)
			require.Equal(t, c.reads, reads)
			if c.reads > 0 {
				require.ErrorIs(t, b.recs.SnapshotProblem(), nstance.Conflict)
				return
			}
			require.NoError(t, b.recs.SnapshotProblem())
		})
	}
}

func TestDamagedSnapshot(t *testing.T) {
	bubble(t, "one that lost its checksum is not used", func(t *testing.T) {
		b := snapshotTest(t, 3)
		obj, err := b.mem.Get(t.Context(), snapshotKey)
		require.NoError(t, err)
		b.replace(t, obj.Data[:len(obj.Data)-1])
		recs, reads := b.load(t)
		require.Len(t, recs, 3)
		require.Equal(t, 3, reads)
		require.ErrorIs(t, b.recs.SnapshotProblem(), nstance.Invalid)
	})
	bubble(t, "a passing fault does not cost the snapshot", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Unavailable, nstance.Throttled, nstance.Ambiguous} {
			b := snapshotTest(t, 3)
			b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey, Err: code})
			reads := b.recordReads()
			_, _, err := b.recs.Load(t.Context())
			require.NoError(t, err)
			require.Zero(t, reads.Load())
			require.NoError(t, b.recs.SnapshotProblem())
		}
	})
	bubble(t, "an old state of a record that cannot be read is not shown", func(t *testing.T) {
		b := snapshotTest(t, 3)
		b.foreign(t, 7, newInstance(2).ID, func(r *records.Instance) { r.Hostname = "new" })
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: keyOf(newInstance(2)), Err: nstance.Denied})
		recs, problems, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, recs, 2)
		require.Len(t, problems, 1)
		_, ok := b.recs.Get(newInstance(2).ID)
		require.False(t, ok)
	})
	bubble(t, "one that a load was cancelled for is no problem", func(t *testing.T) {
		b := snapshotTest(t, 1)
		recs, log := b.logged(8)
		ctx, leave := context.WithCancel(t.Context())
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey, Do: leave})
		_, _, err := recs.Load(ctx)
		require.ErrorIs(t, err, nstance.Unavailable)
		require.NoError(t, recs.SnapshotProblem())
		require.Empty(t, log.String())
	})
}

// TestRestoreKeepsNewerKnowledge: a load that is slow does not undo what this process has learned meanwhile.
func TestRestoreKeepsNewerKnowledge(t *testing.T) {
	// loading starts a load that has listed the keys and waits for the snapshot.
	loading := func(ctx context.Context, t *testing.T, b recordsTest) (goOn func() error) {
		blocked := make(chan struct{})
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey, Pass: true, Do: func() { <-blocked }})
		var wg sync.WaitGroup
		var err error
		wg.Go(func() { _, _, err = b.recs.Load(ctx) })
		synctest.Wait()
		return func() error {
			close(blocked)
			wg.Wait()
			return err
		}
	}
	bubble(t, "of an update", func(t *testing.T) {
		b := snapshotTest(t, 2)
		goOn := loading(t.Context(), t, b)
		_, err := b.recs.Refresh(t.Context(), newInstance(1).ID)
		require.NoError(t, err)
		_, err = b.recs.Update(t.Context(), newInstance(1).ID, host("new"))
		require.NoError(t, err)
		require.NoError(t, goOn())
		got, _ := b.recs.Get(newInstance(1).ID)
		require.Equal(t, "new", got.Hostname)
	})
	bubble(t, "of a record that could not be read", func(t *testing.T) {
		b := snapshotTest(t, 2)
		goOn := loading(t.Context(), t, b)
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: keyOf(newInstance(1))})
		_, err := b.recs.Refresh(t.Context(), newInstance(1).ID)
		require.ErrorIs(t, err, nstance.Unavailable)
		reads := b.recordReads()
		require.NoError(t, goOn())
		require.EqualValues(t, 1, reads.Load(), "it is in doubt, and read")
	})
	bubble(t, "and ends with its context while another call holds a record", func(t *testing.T) {
		b := snapshotTest(t, 2)
		ctx, leave := context.WithCancel(t.Context())
		goOn := loading(ctx, t, b)
		blocked := make(chan struct{})
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: keyOf(newInstance(1)), Pass: true, Do: func() { <-blocked }})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := b.recs.Refresh(t.Context(), newInstance(1).ID)
			require.NoError(t, err)
		})
		synctest.Wait()
		wg.Go(func() { require.ErrorIs(t, goOn(), nstance.Unavailable) })
		synctest.Wait()
		leave()
		synctest.Wait()
		close(blocked)
		wg.Wait()
		_, ok := b.recs.Get(newInstance(1).ID)
		require.True(t, ok)
	})
}

func TestSaveSnapshotInDoubt(t *testing.T) {
	bubble(t, "without reading the stored one, none is written", func(t *testing.T) {
		b, _ := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey})
		saved, err := b.recs.SaveSnapshot(t.Context())
		require.ErrorIs(t, err, nstance.Unavailable)
		require.False(t, saved)
		require.Equal(t, 1, b.Count(""), "one read")
		saved, err = b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		require.True(t, saved)
	})
	bubble(t, "each save replaces the last one with one put", func(t *testing.T) {
		b := recordsTestWith(t, 2)
		_, _ = b.load(t) // finds no snapshot
		for _, name := range []string{"", "a", "b"} {
			_, err := b.recs.Update(t.Context(), newInstance(1).ID, host(name))
			require.NoError(t, err)
			b.Reset()
			saved, err := b.recs.SaveSnapshot(t.Context())
			require.NoError(t, err)
			require.True(t, saved)
			require.Equal(t, 1, b.Count(""))
		}
	})
	bubble(t, "one that is damaged is replaced with one put", func(t *testing.T) {
		b := snapshotTest(t, 2)
		b.replace(t, []byte("damaged"))
		_, _ = b.load(t)
		b.Reset()
		saved, err := b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		require.True(t, saved)
		require.Equal(t, 1, b.Count(""))
	})
	bubble(t, "one that is damaged is replaced by a term that has not read it", func(t *testing.T) {
		for name, change := range map[string]func(string) string{
			"wholly":                 func(string) string { return "damaged" },
			"but says what it holds": func(s string) string { return s[:strings.LastIndex(s[:len(s)-1], "\n")+1] },
		} {
			b := snapshotTest(t, 2)
			b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey, Times: 3})
			_, _, err := b.recs.Load(t.Context())
			require.NoError(t, err)
			require.Error(t, b.recs.SnapshotProblem())
			b.rewrite(t, change)
			saved, err := b.recs.SaveSnapshot(t.Context())
			require.NoError(t, err, name)
			require.True(t, saved, name)
			_, reads := b.next(9).load(t)
			require.Zero(t, reads, name)
		}
	})
	damageRecord := func(s string) string { return strings.Replace(s, `"key":"instance/`, `"key":"x/`, 1) }
	bubble(t, "one with a damaged record is replaced, although no record has changed", func(t *testing.T) {
		for _, loaded := range []bool{true, false} {
			b := snapshotTest(t, 3)
			b.rewrite(t, damageRecord)
			if !loaded {
				b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey, Times: 3})
			}
			_, _, err := b.recs.Load(t.Context())
			require.NoError(t, err)
			require.Error(t, b.recs.SnapshotProblem())
			saved, err := b.recs.SaveSnapshot(t.Context())
			require.NoError(t, err)
			require.True(t, saved, "loaded: %t", loaded)
			require.NoError(t, b.recs.SnapshotProblem())
			_, reads := b.next(9).load(t)
			require.Zero(t, reads)
		}
	})
	bubble(t, "one that could not be read in time is no problem once it is read", func(t *testing.T) {
		b := snapshotTest(t, 3)
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey, Times: 3})
		_, _, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Error(t, b.recs.SnapshotProblem())
		saved, err := b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		require.False(t, saved, "no record has changed")
		require.NoError(t, b.recs.SnapshotProblem())
	})
}
