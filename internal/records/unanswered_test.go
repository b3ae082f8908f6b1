package records_test

import (
	"context"
	"errors"
	"fmt"
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

// recordReads counts the reads of records from now on.
func (b recordsTest) recordReads() *atomic.Int32 {
	var n atomic.Int32
	b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "instance/", Times: -1, Pass: true, Do: func() { n.Add(1) }})
	return &n
}

func TestUnansweredCreates(t *testing.T) {
	for calls, want := range map[int]error{1: nil, 3: nil, 7: nil, 8: nstance.Conflict} {
		bubble(t, fmt.Sprintf("of %d the first lands at last: only the latest writes are recognised", calls), func(t *testing.T) {
			b := newBed()
			rec := newInstance(1)
			b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.Late, Err: nstance.Ambiguous, Times: 6})
			b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.Refuse, Err: nstance.Ambiguous, Times: 6 * (calls - 1)})
			for range calls {
				_, err := b.recs.Create(t.Context(), rec)
				require.ErrorIs(t, err, nstance.Ambiguous)
			}
			b.ClearFaults()
			b.ApplyLate()
			made, err := b.recs.Create(t.Context(), rec)
			if want != nil {
				require.ErrorIs(t, err, want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, made, b.stored(t, rec))
		})
	}
	bubble(t, "the next call writes nothing when it cannot read", func(t *testing.T) {
		b := newBed()
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer}, storagetest.Fault{Op: storagetest.Get, Times: 2})
		_, err := b.recs.Create(t.Context(), newInstance(1))
		require.ErrorIs(t, err, nstance.Ambiguous)
		b.Reset()
		_, err = b.recs.Create(t.Context(), newInstance(1))
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Equal(t, 1, b.Count(""), "one read")
		_, err = b.recs.Create(t.Context(), newInstance(1))
		require.NoError(t, err)
	})
	bubble(t, "the ID stays reserved for its group", func(t *testing.T) {
		b := newBed()
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.Late, Err: nstance.Ambiguous, Times: 6})
		_, err := b.recs.Create(t.Context(), newInstance(1))
		require.ErrorIs(t, err, nstance.Ambiguous)
		other := newInstance(1)
		other.Group = "zoo"
		b.Reset()
		_, err = b.recs.Create(t.Context(), other)
		require.ErrorIs(t, err, nstance.Conflict)
		require.Zero(t, b.Count(""))
	})
	bubble(t, "one that lands after a look is found by a load", func(t *testing.T) {
		b := newBed()
		rec := newInstance(1)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.Late, Err: nstance.Ambiguous, Times: 6})
		_, err := b.recs.Create(t.Context(), rec)
		require.ErrorIs(t, err, nstance.Ambiguous)
		_, err = b.recs.Refresh(t.Context(), rec.ID)
		require.ErrorIs(t, err, nstance.NotFound)
		_, err = b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err, "a snapshot has no place for it")
		b.ApplyLate()
		recs, problems, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Empty(t, problems)
		require.Len(t, recs, 1)
	})
}

// TestForgottenRecords: what is known to be absent is not looked for, and its ID is free.
func TestForgottenRecords(t *testing.T) {
	for name, c := range map[string]struct {
		faults []storagetest.Fault // of the create
		fails  bool
		after  time.Duration
	}{
		"one that was deleted":                                {},
		"one whose create had no answer and that was deleted": {faults: []storagetest.Fault{{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer}}},
		"one whose create never landed":                       {faults: []storagetest.Fault{{Op: storagetest.PutIfAbsent, Times: 6}}, fails: true, after: 10 * time.Minute},
	} {
		bubble(t, name, func(t *testing.T) {
			b := newBed()
			_, err := b.recs.Create(t.Context(), newInstance(2)) // so that loads use no snapshot
			require.NoError(t, err)
			b.Inject(c.faults...)
			_, err = b.recs.Create(t.Context(), newInstance(1))
			require.Equal(t, c.fails, err != nil)
			wait(c.after)
			require.NoError(t, b.recs.Delete(t.Context(), newInstance(1).ID))
			_, _, err = b.recs.Load(t.Context())
			require.NoError(t, err)
			reads := b.recordReads()
			_, _, err = b.recs.Load(t.Context())
			require.NoError(t, err)
			require.Zero(t, reads.Load())
			other := newInstance(1)
			other.Group = "zoo"
			_, err = b.recs.Create(t.Context(), other)
			require.NoError(t, err)
		})
	}
	bubble(t, "one whose create may still land is looked for", func(t *testing.T) {
		b := newBed()
		_, err := b.recs.Create(t.Context(), newInstance(2))
		require.NoError(t, err)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Times: 6})
		_, err = b.recs.Create(t.Context(), newInstance(1))
		require.ErrorIs(t, err, nstance.Unavailable)
		wait(10*time.Minute - time.Second)
		reads := b.recordReads()
		_, _, err = b.recs.Load(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, reads.Load())
	})
}

func TestUnansweredUpdates(t *testing.T) {
	count := func(r *records.Instance) error { r.Reclaims++; return nil }
	bubble(t, "each of two counts, although the first lands after it was given up", func(t *testing.T) {
		b, rec := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.Late, Err: nstance.Ambiguous}, storagetest.Fault{Op: storagetest.Get})
		_, err := b.recs.Update(t.Context(), rec.ID, count)
		require.ErrorIs(t, err, nstance.Ambiguous)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Pass: true, Do: b.ApplyLate})
		got, err := b.recs.Update(t.Context(), rec.ID, count)
		require.NoError(t, err)
		require.Equal(t, 2, got.Reclaims)
		require.Equal(t, got, b.stored(t, rec))
	})
	bubble(t, "is not sent when its caller has left", func(t *testing.T) {
		b, rec := with(t)
		ctx, leave := context.WithCancel(t.Context())
		_, err := b.recs.Update(ctx, rec.ID, func(r *records.Instance) error { leave(); return count(r) })
		require.ErrorIs(t, err, nstance.Unavailable, "it can be told that nothing was changed")
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, b.Count(""))
	})
	bubble(t, "is Ambiguous when its caller leaves before the answer is settled", func(t *testing.T) {
		b, rec := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.Late, Err: nstance.Ambiguous})
		ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		_, err := b.recs.Update(ctx, rec.ID, count)
		require.ErrorIs(t, err, nstance.Ambiguous, "it may land still")
		require.Equal(t, 1, b.Count(storagetest.PutIfMatch))
	})
	bubble(t, "is repeated with pauses that grow", func(t *testing.T) {
		b, rec := with(t)
		var at []time.Time
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Times: -1, Do: func() { at = append(at, time.Now()) }})
		_, err := b.recs.Update(t.Context(), rec.ID, count)
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Greater(t, len(at), 2)
		for i := 1; i < len(at); i++ {
			require.Positive(t, at[i].Sub(at[i-1]))
		}
		first, last := at[1].Sub(at[0]), at[len(at)-1].Sub(at[len(at)-2])
		require.Greater(t, last, 4*first)
		require.Less(t, last, 2*time.Second)
	})
	bubble(t, "is Invalid when what is stored then cannot be read", func(t *testing.T) {
		b, rec := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Do: func() {
			obj, err := b.mem.Get(t.Context(), keyOf(rec))
			require.NoError(t, err)
			_, err = b.mem.PutIfMatch(t.Context(), keyOf(rec), []byte("{"), obj.Version)
			require.NoError(t, err)
		}})
		_, err := b.recs.Update(t.Context(), rec.ID, count)
		require.ErrorIs(t, err, nstance.Invalid)
		require.NotErrorIs(t, err, nstance.Ambiguous, "what is stored is not this write")
		require.Len(t, b.recs.Problems(), 1)
	})
	bubble(t, "a document that was settled is not written again", func(t *testing.T) {
		for name, faults := range map[string][]storagetest.Fault{
			"by reading back":     {{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer}},
			"by the next attempt": {{Op: storagetest.PutIfMatch, Mode: storagetest.Refuse}},
		} {
			b := newBed()
			d := records.NewDoc[state](b, stateKey, &records.DocOptions{Epoch: 7})
			_, err := d.Update(t.Context(), pauseGroup("a"))
			require.NoError(t, err)
			b.Inject(faults...)
			_, err = d.Update(t.Context(), pauseGroup("b"))
			require.NoError(t, err)
			b.Reset()
			got, err := d.Update(t.Context(), func(*state) error { return nil })
			require.NoError(t, err)
			require.Len(t, got.Groups, 2)
			require.Zero(t, b.Count(""), name)
		}
	})
}

func TestUnansweredDeletes(t *testing.T) {
	bubble(t, "one that is refused is not repeated", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Denied, nstance.Throttled, nstance.Quota} {
			b, rec := with(t)
			b.Inject(storagetest.Fault{Op: storagetest.Delete, Err: code})
			require.ErrorIs(t, b.recs.Delete(t.Context(), rec.ID), code)
			require.Equal(t, 1, b.Count(""))
			require.Equal(t, rec, b.stored(t, rec))
			require.NoError(t, b.recs.Delete(t.Context(), rec.ID))
		}
	})
	bubble(t, "one of a record that is gone needs no look", func(t *testing.T) {
		b, rec := with(t)
		require.NoError(t, records.New(b.mem, shard, nil).Delete(t.Context(), rec.ID), "not in its memory")
		require.Equal(t, rec, b.stored(t, rec))
		obj, err := b.mem.Get(t.Context(), keyOf(rec))
		require.NoError(t, err)
		require.NoError(t, b.mem.DeleteIfMatch(t.Context(), keyOf(rec), obj.Version))
		require.NoError(t, b.recs.Delete(t.Context(), rec.ID))
		require.Equal(t, 1, b.Count(""))
	})
	bubble(t, "gives up in the end", func(t *testing.T) {
		for code, want := range map[nstance.Code]nstance.Code{nstance.Ambiguous: nstance.Ambiguous, nstance.Conflict: nstance.Unavailable} {
			b, rec := with(t)
			b.Inject(storagetest.Fault{Op: storagetest.Delete, Err: code, Times: -1})
			err := b.recs.Delete(t.Context(), rec.ID)
			require.ErrorIs(t, err, want)
			require.NotErrorIs(t, err, nstance.NotFound)
			require.Less(t, b.Count(storagetest.Delete), 20)
			require.Equal(t, rec, b.stored(t, rec))
		}
	})
}

// TestConflictSaysWhy: an operator sees whether the record existed or was changed.
func TestConflictSaysWhy(t *testing.T) {
	b, rec := with(t)
	_, err := b.recs.Create(t.Context(), newInstance(1))
	require.ErrorContains(t, err, "it exists already")
	b.foreign(t, 7, rec.ID, func(r *records.Instance) { r.Hostname = "h" })
	err = b.recs.Delete(t.Context(), rec.ID)
	require.ErrorIs(t, err, nstance.Conflict)
	require.ErrorContains(t, err, "another writer has changed it")
}

// TestReturnsWhatIsStored: a caller sees what a reader will decode, not what it has passed.
func TestReturnsWhatIsStored(t *testing.T) {
	b := newBed()
	rec := newInstance(1)
	rec.CreatedAt, rec.Drifted, rec.Notices = time.Now(), []string{}, []nstance.Notice{}
	made, err := b.recs.Create(t.Context(), rec)
	require.NoError(t, err)
	require.Equal(t, b.stored(t, rec), made)
	require.NotEqual(t, rec.CreatedAt, made.CreatedAt, "an instant on record has no monotonic clock")
	require.Nil(t, made.Drifted)
}

// TestWaitingForARecord: a call that waits for another one ends with its context, and changes nothing.
func TestWaitingForARecord(t *testing.T) {
	type call = func(context.Context, recordsTest, *records.Doc[state]) error
	create := func(ctx context.Context, b recordsTest, _ *records.Doc[state]) error {
		_, err := b.recs.Create(ctx, newInstance(1))
		return err
	}
	pause := func(ctx context.Context, _ recordsTest, d *records.Doc[state]) error {
		_, err := d.Update(ctx, pauseGroup("a"))
		return err
	}
	for name, c := range map[string]struct{ holds, waits call }{
		"a create": {create, create},
		"a delete": {
			create,
			func(ctx context.Context, b recordsTest, _ *records.Doc[state]) error {
				return b.recs.Delete(ctx, newInstance(1).ID)
			},
		},
		"a refresh": {
			create,
			func(ctx context.Context, b recordsTest, _ *records.Doc[state]) error {
				_, err := b.recs.Refresh(ctx, newInstance(1).ID)
				return err
			},
		},
		"an update of a document": {
			pause,
			func(ctx context.Context, _ recordsTest, d *records.Doc[state]) error {
				_, err := d.Update(ctx, func(*state) error { return errors.New("it was called too early") })
				return err
			},
		},
		"a load of a document": {
			pause,
			func(ctx context.Context, _ recordsTest, d *records.Doc[state]) error {
				_, err := d.Load(ctx)
				return err
			},
		},
	} {
		bubble(t, name, func(t *testing.T) {
			b := newBed()
			d := records.NewDoc[state](b, stateKey, &records.DocOptions{Epoch: 7})
			blocked := make(chan struct{})
			b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Pass: true, Do: func() { <-blocked }})
			var wg sync.WaitGroup
			wg.Go(func() { require.NoError(t, c.holds(t.Context(), b, d)) })
			synctest.Wait()
			calls := b.Count("")
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			err := c.waits(ctx, b, d)
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, calls, b.Count(""))
			close(blocked)
			wg.Wait()
		})
	}
	bubble(t, "each of several that waited for a deletion finds nothing", func(t *testing.T) {
		b, rec := with(t)
		blocked := make(chan struct{})
		b.Inject(storagetest.Fault{Op: storagetest.Delete, Pass: true, Do: func() { <-blocked }})
		var wg sync.WaitGroup
		wg.Go(func() { require.NoError(t, b.recs.Delete(t.Context(), rec.ID)) })
		synctest.Wait()
		for range 3 {
			wg.Go(func() {
				_, err := b.recs.Update(t.Context(), rec.ID, host("h"))
				require.ErrorIs(t, err, nstance.NotFound)
			})
		}
		synctest.Wait()
		close(blocked)
		wg.Wait()
	})
}
