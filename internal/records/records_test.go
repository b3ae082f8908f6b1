package records_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

const shard nstance.ShardID = "z1"

var born = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

// newInstance returns the nth intent of its group.
func newInstance(n byte) records.Instance {
	const digits = "0123456789abcdefghjkmnpqrstvwxyz"
	id := nstance.InstanceID("knd0400000001r0100000000000" + string([]byte{digits[n>>3], digits[n&7<<2]}))
	return records.Instance{
		ID: id, Tenant: "default", Group: "web", Reason: "size", CreatedAt: born, CreatedEpoch: 7,
		LaunchTimeout: 10 * time.Minute, Shape: records.Shape{InstanceType: "t3.small", Market: nstance.Spot},
	}
}

func keyOf(rec records.Instance) string { return rec.Ref(shard).Key() }

// recordsTest is a store with injected faults, with the records of term 7.
type recordsTest struct {
	*storagetest.Faulty
	mem  *storage.Memory
	recs *records.Records
}

func newBed() recordsTest {
	mem := storage.NewMemory()
	f := storagetest.NewFaulty(mem)
	return recordsTest{f, mem, records.New(f, shard, &records.Options{Epoch: 7})}
}

// with returns a bed that holds one record.
func with(t *testing.T) (recordsTest, records.Instance) {
	b := newBed()
	rec, err := b.recs.Create(t.Context(), newInstance(1))
	require.NoError(t, err)
	b.Reset()
	return b, rec
}

// stored reads the durable record, bypassing the faults.
func (b recordsTest) stored(t *testing.T, rec records.Instance) records.Instance {
	t.Helper()
	obj, err := b.mem.Get(context.Background(), keyOf(rec))
	require.NoError(t, err)
	out, err := records.DecodeInstance(obj.Key, obj.Data)
	require.NoError(t, err)
	return out
}

// foreign changes the record as a writer of another term.
func (b recordsTest) foreign(t *testing.T, epoch uint64, id nstance.InstanceID, fn func(*records.Instance)) {
	t.Helper()
	other := records.New(b.mem, shard, &records.Options{Epoch: epoch})
	_, _, err := other.Load(context.Background())
	require.NoError(t, err)
	_, err = other.Update(context.Background(), id, func(r *records.Instance) error { fn(r); return nil })
	require.NoError(t, err)
}

func host(name string) func(*records.Instance) error {
	return func(r *records.Instance) error { r.Hostname = name; return nil }
}

// bubble runs f in virtual time, so that backoff is free.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestInstanceCostsThreePutsAndOneDelete(t *testing.T) {
	b := newBed()
	_, err := b.recs.PutDefinition(t.Context(), nstance.Definition{Kind: "knd"})
	require.NoError(t, err)
	b.Reset()

	digest, err := b.recs.PutDefinition(t.Context(), nstance.Definition{Kind: "knd"}) // once for all instances
	require.NoError(t, err)
	rec := newInstance(1)
	rec.Definition = digest
	rec, err = b.recs.Create(t.Context(), rec)
	require.NoError(t, err)
	_, err = b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error {
		r.RegisteredAt, r.Current = born, &records.KeyRecord{Serial: "01"}
		return nil
	})
	require.NoError(t, err)
	_, err = b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error {
		r.Deleting = &records.Deletion{At: born, Why: nstance.Cause{Kind: nstance.CauseSurplus}}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, b.recs.Delete(t.Context(), rec.ID))

	require.Equal(t, 3, b.Count(storagetest.PutIfAbsent)+b.Count(storagetest.PutIfMatch))
	require.Equal(t, 1, b.Count(storagetest.Delete))
	require.Equal(t, 4, b.Count(""), "and nothing else")
	_, ok := b.recs.Get(rec.ID)
	require.False(t, ok)
	require.Empty(t, b.recs.All())
}

func TestCreate(t *testing.T) {
	bubble(t, "stamps format, term and a fresh write ID", func(t *testing.T) {
		b, rec := with(t)
		require.Equal(t, records.Format, rec.Format)
		require.EqualValues(t, 7, rec.Epoch)
		require.NotEmpty(t, rec.WriteID)
		require.Equal(t, rec, b.stored(t, rec))
		got, ok := b.recs.Get(rec.ID)
		require.True(t, ok)
		require.Equal(t, rec, got)
	})
	bubble(t, "refuses an ID that has a record in the shard, of any tenant", func(t *testing.T) {
		b, rec := with(t)
		other := newInstance(1)
		_, err := b.recs.Create(t.Context(), other)
		require.ErrorIs(t, err, nstance.Conflict)
		other.Tenant = "other"
		_, err = b.recs.Create(t.Context(), other)
		require.ErrorIs(t, err, nstance.Conflict)
		require.Zero(t, b.Count(""), "refused from memory")
		require.Equal(t, rec, b.stored(t, rec))
	})
	bubble(t, "refuses an ID that only storage has, and returns its record", func(t *testing.T) {
		b, rec := with(t)
		fresh := records.New(b, shard, nil)
		_, err := fresh.Create(t.Context(), newInstance(1))
		require.ErrorIs(t, err, nstance.Conflict)
		got, ok := fresh.Get(rec.ID)
		require.True(t, ok)
		require.Equal(t, rec, got)
	})
	bubble(t, "refuses bad names", func(t *testing.T) {
		b := newBed()
		for _, corrupt := range []func(*records.Instance){
			func(r *records.Instance) { r.ID = "x" }, func(r *records.Instance) { r.Tenant = "" },
			func(r *records.Instance) { r.Group = "A" }, func(r *records.Instance) { r.Tenant = "a/b" },
		} {
			rec := newInstance(1)
			corrupt(&rec)
			_, err := b.recs.Create(t.Context(), rec)
			require.ErrorIs(t, err, nstance.Invalid)
		}
		require.Zero(t, b.Count(""))
	})
	for name, fault := range map[string]storagetest.Fault{
		"settles a lost answer":                  {Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous},
		"settles a time-out of a write":          {Mode: storagetest.LoseAnswer, Err: context.DeadlineExceeded},
		"detects its own write after a Conflict": {Mode: storagetest.LoseAnswer, Err: nstance.Conflict},
		"repeats a write that never came":        {Mode: storagetest.Refuse},
		"repeats after an unclassified error":    {Mode: storagetest.Refuse, Err: errors.New("connection reset")},
	} {
		bubble(t, name, func(t *testing.T) {
			b := newBed()
			fault.Op = storagetest.PutIfAbsent
			b.Inject(fault)
			rec, err := b.recs.Create(t.Context(), newInstance(1))
			require.NoError(t, err)
			require.Equal(t, rec, b.stored(t, rec))
			_, err = b.recs.Update(t.Context(), rec.ID, host("a"))
			require.NoError(t, err, "the version is the right one")
			require.Equal(t, 1, b.Count(storagetest.Get))
		})
	}
	bubble(t, "a late first write and its repetition create one record", func(t *testing.T) {
		b := newBed()
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.Late})
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Pass: true, Do: b.ApplyLate})
		rec, err := b.recs.Create(t.Context(), newInstance(1))
		require.NoError(t, err)
		require.Equal(t, rec, b.stored(t, rec))
	})
	for name, c := range map[string]struct {
		first  []storagetest.Fault // of the first call
		second storagetest.Op      // of the second call, right after the first one's write has landed
		look   bool                // a refresh between the two
	}{
		"before the second call reads": {
			first:  []storagetest.Fault{{Op: storagetest.PutIfAbsent, Mode: storagetest.Late, Err: nstance.Ambiguous}, {Op: storagetest.Get}},
			second: storagetest.Get,
		},
		"before the second call writes": {
			first:  []storagetest.Fault{{Op: storagetest.PutIfAbsent, Mode: storagetest.Late, Err: nstance.Ambiguous}, {Op: storagetest.Get}},
			second: storagetest.PutIfAbsent,
		},
		"after the first call gave up": {
			first:  []storagetest.Fault{{Op: storagetest.PutIfAbsent, Mode: storagetest.Late, Err: nstance.Ambiguous, Times: 6}},
			second: storagetest.PutIfAbsent,
		},
		"after a look that found nothing": {
			first:  []storagetest.Fault{{Op: storagetest.PutIfAbsent, Mode: storagetest.Late, Err: nstance.Ambiguous, Times: 6}},
			second: storagetest.PutIfAbsent, look: true,
		},
	} {
		bubble(t, "after Ambiguous it can be called again, also if it lands "+name, func(t *testing.T) {
			b := newBed()
			rec := newInstance(1)
			b.Inject(c.first...)
			_, err := b.recs.Create(t.Context(), rec)
			require.ErrorIs(t, err, nstance.Ambiguous)
			b.ClearFaults()
			if c.look {
				_, err = b.recs.Refresh(t.Context(), rec.ID)
				require.ErrorIs(t, err, nstance.NotFound)
				_, _, err = b.recs.Load(t.Context())
				require.NoError(t, err)
			}
			b.Inject(storagetest.Fault{Op: c.second, Prefix: keyOf(rec), Pass: true, Do: b.ApplyLate})
			made, err := b.recs.Create(t.Context(), rec)
			require.NoError(t, err)
			require.Equal(t, made, b.stored(t, rec))
			_, err = b.recs.Create(t.Context(), rec)
			require.ErrorIs(t, err, nstance.Conflict, "both calls are settled: this is another one")
			_, err = b.recs.Update(t.Context(), rec.ID, host("a"))
			require.NoError(t, err, "the version is the right one")
		})
	}
	bubble(t, "a write that never landed is forgotten after a while", func(t *testing.T) {
		b := newBed()
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.Refuse, Err: nstance.Ambiguous, Times: 6})
		_, err := b.recs.Create(t.Context(), newInstance(1))
		require.ErrorIs(t, err, nstance.Ambiguous)
		reads := func() int {
			b.Reset()
			_, _, err = b.recs.Load(t.Context())
			require.NoError(t, err)
			return b.Count(storagetest.Get)
		}
		require.Equal(t, 1, reads(), "it is looked for")
		wait(11 * time.Minute)
		reads()
		require.LessOrEqual(t, reads(), 1, "but for the snapshot nothing is")
	})
	bubble(t, "without an answer it is Ambiguous, and can be called again", func(t *testing.T) {
		b := newBed()
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer},
			storagetest.Fault{Op: storagetest.Get})
		_, err := b.recs.Create(t.Context(), newInstance(1))
		require.ErrorIs(t, err, nstance.Ambiguous)
		_, ok := b.recs.Get(newInstance(1).ID)
		require.False(t, ok)
		rec, err := b.recs.Create(t.Context(), newInstance(1))
		require.NoError(t, err, "it is its own earlier write")
		require.Equal(t, rec, b.stored(t, rec))
		require.Equal(t, 1, b.Count(storagetest.PutIfAbsent))
	})
	bubble(t, "other content after Ambiguous is Conflict", func(t *testing.T) {
		b := newBed()
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer},
			storagetest.Fault{Op: storagetest.Get})
		_, err := b.recs.Create(t.Context(), newInstance(1))
		require.ErrorIs(t, err, nstance.Ambiguous)
		other := newInstance(1)
		other.Image = "another"
		_, err = b.recs.Create(t.Context(), other)
		require.ErrorIs(t, err, nstance.Conflict)
	})
	bubble(t, "a definite refusal is final", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Denied, nstance.Throttled, nstance.Quota, nstance.Invalid} {
			b := newBed()
			b.Inject(storagetest.Fault{Err: nstance.Errorf(code, "no")})
			_, err := b.recs.Create(t.Context(), newInstance(1))
			require.ErrorIs(t, err, code)
			require.Equal(t, 1, b.Count(""))
			require.Empty(t, b.recs.Problems(), "the record is fine")
			_, err = b.recs.Create(t.Context(), newInstance(1))
			require.NoError(t, err)
		}
	})
	bubble(t, "gives up in the end", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Unavailable, nstance.Conflict} {
			b := newBed()
			b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Times: -1, Err: code})
			_, err := b.recs.Create(t.Context(), newInstance(1))
			require.ErrorIs(t, err, nstance.Unavailable)
			require.Less(t, b.Count(""), 20)
		}
	})
}

func TestUpdate(t *testing.T) {
	bubble(t, "works on a copy", func(t *testing.T) {
		b, rec := with(t)
		_, err := b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error {
			r.Current = &records.KeyRecord{Serial: "01"}
			return nil
		})
		require.NoError(t, err)
		no := errors.New("no")
		_, err = b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error {
			r.Current.Serial = "02"
			return no
		})
		require.Equal(t, no, err, "fn's error comes back as it is")
		got, _ := b.recs.Get(rec.ID)
		require.Equal(t, "01", got.Current.Serial)
		require.Equal(t, 1, b.Count(storagetest.PutIfMatch))
	})
	bubble(t, "writes nothing when nothing changes", func(t *testing.T) {
		b, rec := with(t)
		got, err := b.recs.Update(t.Context(), rec.ID, func(*records.Instance) error { return nil })
		require.NoError(t, err)
		require.Equal(t, rec, got)
		require.Zero(t, b.Count(""))
	})
	bubble(t, "never moves a record", func(t *testing.T) {
		b, rec := with(t)
		_, err := b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error { r.Group = "other"; return nil })
		require.ErrorIs(t, err, nstance.Invalid)
		require.Zero(t, b.Count(""))
	})
	bubble(t, "is repeated on another writer's version", func(t *testing.T) {
		b, rec := with(t)
		b.foreign(t, 7, rec.ID, func(r *records.Instance) { r.ProviderID = "i-1" })
		calls := 0
		got, err := b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error {
			calls++
			r.Hostname = "h"
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 2, calls)
		require.Equal(t, "i-1", got.ProviderID)
		require.Equal(t, "h", got.Hostname)
		require.Equal(t, got, b.stored(t, rec))
	})
	bubble(t, "a registration survives a concurrent write", func(t *testing.T) {
		b, rec := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.Refuse, Do: func() {
			b.foreign(t, 7, rec.ID, func(r *records.Instance) { r.RegisteredAt = born })
		}})
		got, err := b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error { r.ProviderID = "i-1"; return nil })
		require.NoError(t, err)
		require.True(t, got.Registered())
		require.Equal(t, got, b.stored(t, rec))
	})
	bubble(t, "gives up when other writers are always faster", func(t *testing.T) {
		b, rec := with(t)
		n := 0
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Times: -1, Pass: true, Do: func() {
			n++
			b.foreign(t, 7, rec.ID, func(r *records.Instance) { r.Reclaims = n })
		}})
		_, err := b.recs.Update(t.Context(), rec.ID, host("h"))
		require.ErrorIs(t, err, nstance.Conflict)
		require.Less(t, n, 20)
	})
	for name, fault := range map[string]storagetest.Fault{
		"settles a lost answer":                  {Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous},
		"detects its own write after a Conflict": {Mode: storagetest.LoseAnswer, Err: nstance.Conflict},
		"repeats a write that never came":        {Mode: storagetest.Refuse},
	} {
		bubble(t, name, func(t *testing.T) {
			b, rec := with(t)
			fault.Op = storagetest.PutIfMatch
			b.Inject(fault)
			calls := 0
			got, err := b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error { calls++; r.Reclaims++; return nil })
			require.NoError(t, err)
			require.Equal(t, 1, got.Reclaims)
			require.Equal(t, 1, calls, "fn is not applied twice")
			require.Equal(t, got, b.stored(t, rec))
		})
	}
	bubble(t, "without an answer it is Ambiguous, and the next call reads first", func(t *testing.T) {
		b, rec := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer},
			storagetest.Fault{Op: storagetest.Get})
		_, err := b.recs.Update(t.Context(), rec.ID, host("one"))
		require.ErrorIs(t, err, nstance.Ambiguous)
		got, ok := b.recs.Get(rec.ID)
		require.True(t, ok)
		require.Empty(t, got.Hostname, "memory holds what is known to be durable")
		b.Reset()
		got, err = b.recs.Update(t.Context(), rec.ID, host("one"))
		require.NoError(t, err)
		require.Equal(t, "one", got.Hostname)
		require.Equal(t, 1, b.Count(storagetest.Get))
		require.Zero(t, b.Count(storagetest.PutIfMatch), "it had landed")
	})
	bubble(t, "a record that is gone is NotFound", func(t *testing.T) {
		b, rec := with(t)
		obj, err := b.mem.Get(t.Context(), keyOf(rec))
		require.NoError(t, err)
		require.NoError(t, b.mem.DeleteIfMatch(t.Context(), keyOf(rec), obj.Version))
		_, err = b.recs.Update(t.Context(), rec.ID, host("h"))
		require.ErrorIs(t, err, nstance.NotFound)
		_, ok := b.recs.Get(rec.ID)
		require.False(t, ok)
		_, err = b.mem.Get(t.Context(), keyOf(rec))
		require.ErrorIs(t, err, nstance.NotFound, "an update never brings back what was deleted")
		_, err = b.recs.Update(t.Context(), rec.ID, host("h"))
		require.ErrorIs(t, err, nstance.NotFound)
	})
	bubble(t, "an unreadable record is Invalid, then a problem, then repaired", func(t *testing.T) {
		b, rec := with(t)
		obj, err := b.mem.Get(t.Context(), keyOf(rec))
		require.NoError(t, err)
		v, err := b.mem.PutIfMatch(t.Context(), keyOf(rec), []byte("{"), obj.Version)
		require.NoError(t, err)
		_, err = b.recs.Update(t.Context(), rec.ID, host("h"))
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorIs(t, b.recs.Delete(t.Context(), rec.ID), nstance.Invalid, "nothing is deleted because of an error")
		require.Len(t, b.recs.Problems(), 1)
		require.Equal(t, rec.ID, b.recs.Problems()[0].ID)
		_, err = b.mem.PutIfMatch(t.Context(), keyOf(rec), obj.Data, v)
		require.NoError(t, err)
		got, err := b.recs.Update(t.Context(), rec.ID, host("h"))
		require.NoError(t, err)
		require.Equal(t, "h", got.Hostname)
		require.Empty(t, b.recs.Problems())
	})
}

// TestAnswerAfterTheTerm: what storage answers after the end of the term was seen by no later
// leader, so it acknowledges nothing.
func TestAnswerAfterTheTerm(t *testing.T) {
	over := errors.New("lease lost")
	for name, write := range map[string]func(context.Context, *records.Records, storage.Store) error{
		"create": func(ctx context.Context, recs *records.Records, _ storage.Store) error {
			_, err := recs.Create(ctx, newInstance(2))
			return err
		},
		"update": func(ctx context.Context, recs *records.Records, _ storage.Store) error {
			_, err := recs.Update(ctx, newInstance(1).ID, host("h"))
			return err
		},
		"document": func(ctx context.Context, _ *records.Records, s storage.Store) error {
			d := records.NewDoc[state](s, stateKey, &records.DocOptions{Check: s.(ending).check})
			_, err := d.Update(ctx, pauseGroup("a"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := ending{Store: storage.NewMemory(), over: new(atomic.Bool), err: over}
			recs := records.New(s, shard, &records.Options{Epoch: 7, Check: s.check})
			_, err := recs.Create(t.Context(), newInstance(1))
			require.ErrorIs(t, err, nstance.Ambiguous)
			s.over.Store(false)
			err = write(t.Context(), recs, s)
			require.ErrorIs(t, err, nstance.Ambiguous)
			require.ErrorIs(t, err, over)
		})
	}
}

// An ending store answers each write after the end of the term.
type ending struct {
	storage.Store
	over *atomic.Bool
	err  error
}

func (e ending) check() error {
	if e.over.Load() {
		return e.err
	}
	return nil
}

func (e ending) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	defer e.over.Store(true)
	return e.Store.PutIfAbsent(ctx, key, data)
}

func (e ending) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	defer e.over.Store(true)
	return e.Store.PutIfMatch(ctx, key, data, v)
}

func TestEndedTermWritesNothing(t *testing.T) {
	over := errors.New("lease lost")
	var dead atomic.Bool
	mem := storage.NewMemory()
	recs := records.New(mem, shard, &records.Options{Epoch: 7, Check: func() error {
		if dead.Load() {
			return over
		}
		return nil
	}})
	rec, err := recs.Create(t.Context(), newInstance(1))
	require.NoError(t, err)
	dead.Store(true)

	_, create := recs.Create(t.Context(), newInstance(2))
	_, update := recs.Update(t.Context(), rec.ID, host("h"))
	_, define := recs.PutDefinition(t.Context(), nstance.Definition{})
	for name, err := range map[string]error{
		"create": create, "update": update, "delete": recs.Delete(t.Context(), rec.ID), "definition": define,
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorIs(t, err, over)
		})
	}
	t.Run("nothing has changed", func(t *testing.T) {
		require.Equal(t, rec, recordsTest{mem: mem}.stored(t, rec))
		n := 0
		for _, err := range mem.List(t.Context(), "", "") {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 1, n)
	})
	t.Run("a term unaware of its end sees the later one", func(t *testing.T) {
		b, rec := with(t)
		b.foreign(t, 8, rec.ID, func(r *records.Instance) { r.Hostname = "later" })
		_, err := b.recs.Update(t.Context(), rec.ID, host("earlier"))
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorContains(t, err, "term 8")
		require.Equal(t, "later", b.stored(t, rec).Hostname)
		require.ErrorIs(t, b.recs.Delete(t.Context(), rec.ID), nstance.Unavailable)
	})
	t.Run("a tool without a term keeps the epoch", func(t *testing.T) {
		b, rec := with(t)
		b.foreign(t, 0, rec.ID, func(r *records.Instance) { r.Hostname = "tool" })
		require.EqualValues(t, 7, b.stored(t, rec).Epoch)
		_, err := b.recs.Update(t.Context(), rec.ID, host("term"))
		require.NoError(t, err)
	})
}

func TestDelete(t *testing.T) {
	bubble(t, "of an unknown or deleted record is success", func(t *testing.T) {
		b, rec := with(t)
		require.NoError(t, b.recs.Delete(t.Context(), newInstance(2).ID))
		obj, err := b.mem.Get(t.Context(), keyOf(rec))
		require.NoError(t, err)
		require.NoError(t, b.mem.DeleteIfMatch(t.Context(), keyOf(rec), obj.Version))
		require.NoError(t, b.recs.Delete(t.Context(), rec.ID))
	})
	for name, fault := range map[string]storagetest.Fault{
		"settles a lost answer":            {Mode: storagetest.LoseAnswer},
		"repeats a deletion that was lost": {Mode: storagetest.Refuse},
	} {
		bubble(t, name, func(t *testing.T) {
			b, rec := with(t)
			fault.Op = storagetest.Delete
			b.Inject(fault)
			require.NoError(t, b.recs.Delete(t.Context(), rec.ID))
			_, err := b.mem.Get(t.Context(), keyOf(rec))
			require.ErrorIs(t, err, nstance.NotFound)
			_, ok := b.recs.Get(rec.ID)
			require.False(t, ok)
		})
	}
	bubble(t, "keeps a record that another writer has changed, and returns it", func(t *testing.T) {
		b, rec := with(t)
		b.foreign(t, 7, rec.ID, func(r *records.Instance) { r.RegisteredAt = born })
		require.ErrorIs(t, b.recs.Delete(t.Context(), rec.ID), nstance.Conflict)
		got, ok := b.recs.Get(rec.ID)
		require.True(t, ok)
		require.True(t, got.Registered())
		require.NoError(t, b.recs.Delete(t.Context(), rec.ID))
	})
	bubble(t, "without an answer it is Ambiguous, and can be called again", func(t *testing.T) {
		b, rec := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.Delete, Mode: storagetest.LoseAnswer}, storagetest.Fault{Op: storagetest.Get})
		require.ErrorIs(t, b.recs.Delete(t.Context(), rec.ID), nstance.Ambiguous)
		require.NoError(t, b.recs.Delete(t.Context(), rec.ID))
	})
}

func TestOneWriterPerRecord(t *testing.T) {
	bubble(t, "writes of one record are serialized, others do not wait", func(t *testing.T) {
		b, one := with(t)
		two, err := b.recs.Create(t.Context(), newInstance(2))
		require.NoError(t, err)
		blocked := make(chan struct{})
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: keyOf(one), Pass: true, Do: func() { <-blocked }})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				_, err := b.recs.Update(t.Context(), one.ID, func(r *records.Instance) error { r.Reclaims++; return nil })
				require.NoError(t, err)
			})
		}
		synctest.Wait()
		require.Equal(t, 1, b.Count(storagetest.PutIfMatch), "of the first record")
		_, err = b.recs.Update(t.Context(), two.ID, host("h"))
		require.NoError(t, err)
		_, ok := b.recs.Get(one.ID)
		require.True(t, ok, "readers do not wait")
		require.Len(t, b.recs.All(), 2)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.recs.Update(ctx, one.ID, host("h"))
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		close(blocked)
		wg.Wait()
		got, _ := b.recs.Get(one.ID)
		require.Equal(t, 10, got.Reclaims)
		require.Zero(t, b.Count(storagetest.Get), "without a read")
	})
	for name, wait := range map[string]func(*testing.T, recordsTest, records.Instance){
		"an update that waited for a deletion finds nothing": func(t *testing.T, b recordsTest, rec records.Instance) {
			_, err := b.recs.Update(t.Context(), rec.ID, host("h"))
			require.ErrorIs(t, err, nstance.NotFound)
		},
		"a create that waited for a deletion succeeds": func(t *testing.T, b recordsTest, rec records.Instance) {
			_, err := b.recs.Create(t.Context(), newInstance(1))
			require.NoError(t, err)
			require.Len(t, b.recs.All(), 1)
		},
	} {
		bubble(t, name, func(t *testing.T) {
			b, rec := with(t)
			blocked := make(chan struct{})
			b.Inject(storagetest.Fault{Op: storagetest.Delete, Pass: true, Do: func() { <-blocked }})
			var wg sync.WaitGroup
			wg.Go(func() { require.NoError(t, b.recs.Delete(t.Context(), rec.ID)) })
			synctest.Wait()
			wg.Go(func() { wait(t, b, rec) })
			synctest.Wait()
			close(blocked)
			wg.Wait()
		})
	}
}

// TestPeek: what Peek returned stays as it was, also after a later write.
func TestPeek(t *testing.T) {
	b, rec := with(t)
	before := b.recs.Peek(rec.ID)
	require.Equal(t, rec, *before)
	after, err := b.recs.Update(t.Context(), rec.ID, host("other"))
	require.NoError(t, err)
	require.Equal(t, rec, *before)
	require.Equal(t, after, *b.recs.Peek(rec.ID))
	require.NoError(t, b.recs.Delete(t.Context(), rec.ID))
	require.Nil(t, b.recs.Peek(rec.ID))
}
