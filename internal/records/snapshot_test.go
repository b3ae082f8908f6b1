package records_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"iter"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

var snapshotKey = layout.SnapshotKey(shard)

// snapshotTest returns a bed whose store holds n records and their snapshot of term 7, and
// whose memory is that of term 8 and empty.
func snapshotTest(t *testing.T, n int) recordsTest {
	t.Helper()
	b := newBed()
	for i := range n {
		_, err := b.recs.Create(t.Context(), newInstance(byte(i+1)))
		require.NoError(t, err)
	}
	saved, err := b.recs.SaveSnapshot(t.Context())
	require.NoError(t, err)
	require.True(t, saved)
	return b.next(8)
}

// next returns the bed of another term over the same store.
func (b recordsTest) next(epoch uint64) recordsTest {
	b.recs = records.New(b, shard, &records.Options{Epoch: epoch})
	b.Reset()
	return b
}

// load loads and returns the reads of records.
func (b recordsTest) load(t *testing.T) (recs []records.Instance, reads int) {
	t.Helper()
	recs, problems, err := b.recs.Load(t.Context())
	require.NoError(t, err)
	require.Empty(t, problems)
	return recs, b.Count(storagetest.Get) - 1 // the first is for the snapshot
}

// rewrite replaces the snapshot by the changed text.
func (b recordsTest) rewrite(t *testing.T, change func(text string) string) {
	t.Helper()
	obj, err := b.mem.Get(t.Context(), snapshotKey)
	require.NoError(t, err)
	text := unzipped(t, obj.Data)
	next := change(text)
	require.NotEqual(t, text, next, "the test changes something")
	b.replace(t, zipped(t, next))
}

func (b recordsTest) replace(t *testing.T, data []byte) {
	t.Helper()
	obj, err := b.mem.Get(t.Context(), snapshotKey)
	require.NoError(t, err)
	_, err = b.mem.PutIfMatch(t.Context(), snapshotKey, data, obj.Version)
	require.NoError(t, err)
}

func unzipped(t testing.TB, data []byte) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	require.NoError(t, err)
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func TestSnapshot(t *testing.T) {
	bubble(t, "replaces reading every record", func(t *testing.T) {
		b := snapshotTest(t, 100)
		recs, reads := b.load(t)
		require.Len(t, recs, 100)
		require.Zero(t, reads)
		require.NoError(t, b.recs.SnapshotProblem())
		plain := b.next(8)
		plain.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey, Times: -1})
		want, _ := plain.load(t)
		require.Equal(t, want, recs, "the same as if they had been read")

		b.Reset()
		got, err := b.recs.Update(t.Context(), recs[5].ID, host("h"))
		require.NoError(t, err)
		require.EqualValues(t, 8, got.Epoch)
		require.Equal(t, 1, b.Count(""), "written without a read")
	})
	bubble(t, "only changed records are read", func(t *testing.T) {
		b := snapshotTest(t, 10)
		b.foreign(t, 7, newInstance(3).ID, func(r *records.Instance) { r.Hostname = "new" })
		obj, err := b.mem.Get(t.Context(), keyOf(newInstance(4)))
		require.NoError(t, err)
		require.NoError(t, b.mem.DeleteIfMatch(t.Context(), obj.Key, obj.Version))
		other := records.New(b.mem, shard, &records.Options{Epoch: 7})
		_, err = other.Create(t.Context(), newInstance(11))
		require.NoError(t, err)
		recs, reads := b.load(t)
		require.Equal(t, 2, reads, "the changed one and the new one")
		require.Len(t, recs, 10)
		require.Equal(t, "new", recs[2].Hostname)
		require.Equal(t, newInstance(5).ID, recs[3].ID, "what was deleted is gone")
	})
	bubble(t, "keeps the fields of a newer program", func(t *testing.T) {
		b := newBed()
		b.put(t, keyOf(newInstance(1)), `{"format":"1.5","epoch":3,"write_id":"w","id":"`+string(newInstance(1).ID)+`","tenant":"default","group":"web","mood":"<good>","shape":{}}`)
		_, _, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		_, err = b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		b = b.next(8)
		_, reads := b.load(t)
		require.Zero(t, reads)
		_, err = b.recs.Update(t.Context(), newInstance(1).ID, host("h"))
		require.NoError(t, err)
		obj, err := b.mem.Get(t.Context(), keyOf(newInstance(1)))
		require.NoError(t, err)
		require.Contains(t, string(obj.Data), `"mood":"<good>"`)
		require.Contains(t, string(obj.Data), `"format":"1.5"`)
	})
	bubble(t, "is not used for records that the listing does not show", func(t *testing.T) {
		b := snapshotTest(t, 3)
		b.rewrite(t, func(text string) string { // a record that never existed, and one of another group
			lines := strings.SplitAfter(text, "\n")
			ghost := strings.ReplaceAll(lines[1], string(newInstance(1).ID), string(newInstance(77).ID))
			moved := strings.ReplaceAll(lines[2], "web", "zoo")
			bare := regexp.MustCompile(`"version":"[^"]*"`).ReplaceAllString(strings.ReplaceAll(ghost, "r0100", "r0101"), `"version":""`)
			return strings.Replace(lines[0], `"records":3`, `"records":6`, 1) + strings.Join(lines[1:], "") + ghost + moved + bare
		})
		recs, reads := b.load(t)
		require.Len(t, recs, 3)
		require.Zero(t, reads)
		for _, rec := range recs {
			require.Equal(t, nstance.GroupID("web"), rec.Group)
		}
	})
	for name, change := range map[string]func(string) string{
		"of another instance": func(s string) string {
			return strings.ReplaceAll(s, `"id":"`+string(newInstance(2).ID), `"id":"`+string(newInstance(9).ID))
		},
		"cut off": func(s string) string { return strings.Replace(s, `}`+"}\n", "\n", 1) },
		"of a newer major format": func(s string) string {
			return strings.Replace(s, `"record":{"format":"1.0"`, `"record":{"format":"9.0"`, 1)
		},
		"with a version that is no text": func(s string) string {
			return regexp.MustCompile(`"version":"[^"]*"`).ReplaceAllStringFunc(s, changeFirst(`"version":5`))
		},
		"without its key": func(s string) string { return strings.Replace(s, `"key":"instance/`, `"key":"x/`, 1) },
	} {
		bubble(t, "a record in it that is "+name+" is read by itself", func(t *testing.T) {
			b := snapshotTest(t, 3)
			b.rewrite(t, change)
			recs, reads := b.load(t)
			require.Len(t, recs, 3)
			require.Equal(t, 1, reads)
			require.ErrorContains(t, b.recs.SnapshotProblem(), "1 of its 3 records are damaged")
		})
	}
	for name, tc := range map[string]struct {
		change func(string) string
		says   string
	}{
		"of another shard":        {func(s string) string { return strings.Replace(s, `"shard":"z1"`, `"shard":"z2"`, 1) }, `it belongs to shard "z2"`},
		"of a newer major format": {func(s string) string { return strings.Replace(s, `"format":"1.0"`, `"format":"2.0"`, 1) }, "newer than 1.0"},
		"without a format":        {func(s string) string { return strings.Replace(s, `"format":"1.0",`, ``, 1) }, "no format field"},
		"of a later term":         {func(s string) string { return strings.Replace(s, `"epoch":7`, `"epoch":9`, 1) }, "written by term 9"},
		"short of a record":       {func(s string) string { return s[:strings.LastIndex(s[:len(s)-1], "\n")+1] }, "2 records, its head says 3"},
		"empty":                   {func(string) string { return "" }, "cannot be read"},
	} {
		bubble(t, "one that is "+name+" is reported and not used", func(t *testing.T) {
			b := snapshotTest(t, 3)
			b.rewrite(t, tc.change)
			recs, reads := b.load(t)
			require.Len(t, recs, 3)
			require.Equal(t, 3, reads)
			require.ErrorContains(t, b.recs.SnapshotProblem(), tc.says)
		})
	}
	bubble(t, "one that is damaged is reported, not used, and replaced by the next", func(t *testing.T) {
		for _, data := range []string{"", "gzip it is not", string(zipped(t, strings.Repeat("x", 1000))[:30])} {
			b := snapshotTest(t, 3)
			b.replace(t, []byte(data))
			recs, reads := b.load(t)
			require.Len(t, recs, 3)
			require.Equal(t, 3, reads)
			require.ErrorIs(t, b.recs.SnapshotProblem(), nstance.Invalid)

			saved, err := b.recs.SaveSnapshot(t.Context())
			require.NoError(t, err)
			require.True(t, saved)
			require.NoError(t, b.recs.SnapshotProblem())
			_, reads = b.next(9).load(t)
			require.Zero(t, reads)
		}
	})
	bubble(t, "an unreadable one costs only time", func(t *testing.T) {
		b := snapshotTest(t, 3)
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey, Times: -1})
		began := time.Now()
		recs, _ := b.load(t)
		require.Len(t, recs, 3)
		require.ErrorIs(t, b.recs.SnapshotProblem(), nstance.Unavailable)
		require.Less(t, time.Since(began), time.Second, "it is given up soon")
	})
	bubble(t, "a hanging one is not waited for", func(t *testing.T) {
		b := snapshotTest(t, 3)
		b.recs = records.New(hanging{b}, shard, &records.Options{Epoch: 8})
		began := time.Now()
		recs, _, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, recs, 3)
		require.Error(t, b.recs.SnapshotProblem())
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
	})
	bubble(t, "a missing one is no problem", func(t *testing.T) {
		b := recordsTestWith(t, 3)
		_, reads := b.load(t)
		require.Equal(t, 3, reads)
		require.NoError(t, b.recs.SnapshotProblem())
	})
}

// changeFirst returns a function that replaces only what it is first called with.
func changeFirst(by string) func(string) string {
	done := false
	return func(s string) string {
		if done {
			return s
		}
		done = true
		return by
	}
}

// hanging answers Get of the snapshot only when its caller has given up.
type hanging struct{ recordsTest }

func (h hanging) Get(ctx context.Context, key string) (storage.Object, error) {
	if key == snapshotKey {
		<-ctx.Done()
	}
	return h.recordsTest.Get(ctx, key)
}

func TestSaveSnapshot(t *testing.T) {
	bubble(t, "writes only a snapshot that differs from the stored one", func(t *testing.T) {
		b := snapshotTest(t, 3)
		_, _ = b.load(t)
		b.Reset()
		saved, err := b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		require.False(t, saved)
		require.Zero(t, b.Count(""), "the same records in the same versions")
		_, err = b.recs.Update(t.Context(), newInstance(1).ID, host("h"))
		require.NoError(t, err)
		b.Reset()
		saved, err = b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		require.True(t, saved)
		require.Equal(t, 1, b.Count(""), "one put, no read")
		recs, reads := b.next(9).load(t)
		require.Zero(t, reads)
		require.Equal(t, "h", recs[0].Hostname)
	})
	bubble(t, "is compressed, with its content type", func(t *testing.T) {
		b := snapshotTest(t, 100)
		obj, err := b.mem.Get(t.Context(), snapshotKey)
		require.NoError(t, err)
		text := unzipped(t, obj.Data)
		require.Less(t, len(obj.Data), len(text)/5)
		head, _, _ := strings.Cut(text, "\n")
		for _, want := range []string{`"format":"1.0"`, `"epoch":7`, `"write_id":"`, `"shard":"z1"`, `"records":100`} {
			require.Contains(t, head, want)
		}
	})
	bubble(t, "leaves out records in doubt", func(t *testing.T) {
		b, rec := with(t)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.Late}, storagetest.Fault{Op: storagetest.Get, Times: -1})
		_, err := b.recs.Update(t.Context(), rec.ID, host("late"))
		require.Error(t, err)
		b.ClearFaults()
		_, err = b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		obj, err := b.mem.Get(t.Context(), snapshotKey)
		require.NoError(t, err)
		require.Contains(t, unzipped(t, obj.Data), `"records":0`)
		b.ApplyLate()
		recs, reads := b.next(8).load(t)
		require.Equal(t, 1, reads)
		require.Equal(t, "late", recs[0].Hostname)
	})
	bubble(t, "an ended term writes none", func(t *testing.T) {
		b := snapshotTest(t, 2)
		before, err := b.mem.Get(t.Context(), snapshotKey)
		require.NoError(t, err)
		over := nstance.Errorf(nstance.Unavailable, "resigned")
		for _, o := range []records.Options{{Epoch: 6}, {Epoch: 8, Check: func() error { return over }}} {
			_, err := records.New(b, shard, &o).SaveSnapshot(t.Context()) // without records
			require.ErrorIs(t, err, nstance.Unavailable)
		}
		after, err := b.mem.Get(t.Context(), snapshotKey)
		require.NoError(t, err)
		require.Equal(t, before, after)
	})
	bubble(t, "a lost answer is resolved by the next call", func(t *testing.T) {
		for _, mode := range []storagetest.Mode{storagetest.Refuse, storagetest.LoseAnswer} {
			b := snapshotTest(t, 3)
			_, _ = b.load(t)
			_, err := b.recs.Update(t.Context(), newInstance(1).ID, host("h"))
			require.NoError(t, err)
			b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: snapshotKey, Mode: mode})
			_, err = b.recs.SaveSnapshot(t.Context())
			require.Error(t, err)
			saved, err := b.recs.SaveSnapshot(t.Context())
			require.NoError(t, err)
			require.Equal(t, mode == storagetest.Refuse, saved)
			_, reads := b.next(9).load(t)
			require.Zero(t, reads)
		}
	})
	bubble(t, "of two writers one is refused and may repeat", func(t *testing.T) {
		b := snapshotTest(t, 3)
		_, _ = b.load(t)
		other := b.next(8)
		_, _ = other.load(t)
		for i, recs := range []*records.Records{b.recs, other.recs} {
			_, err := recs.Update(t.Context(), newInstance(byte(i+1)).ID, host("h"))
			require.NoError(t, err)
		}
		_, err := b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		_, err = other.recs.SaveSnapshot(t.Context())
		require.ErrorIs(t, err, nstance.Conflict)
		saved, err := other.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		require.True(t, saved)
	})
	bubble(t, "waiting for another ends with its context", func(t *testing.T) {
		b := snapshotTest(t, 3)
		ctx, cancel := context.WithCancel(t.Context())
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: snapshotKey, Do: func() {
			cancel()
			_, err := b.recs.SaveSnapshot(ctx)
			require.ErrorIs(t, err, nstance.Unavailable)
		}, Pass: true})
		_, _ = b.load(t)
		synctest.Wait()
	})
}

// For any content of a snapshot, the shard has exactly the listed records, each under
// its key.
func FuzzSnapshot(f *testing.F) {
	ctx := context.Background()
	fill := func(store storage.Store) *records.Records {
		recs := records.New(store, shard, &records.Options{Epoch: 7})
		for i := range byte(3) {
			if _, err := recs.Create(ctx, newInstance(i+1)); err != nil {
				f.Fatal(err)
			}
		}
		return recs
	}
	mem := storage.NewMemory()
	if _, err := fill(mem).SaveSnapshot(ctx); err != nil {
		f.Fatal(err)
	}
	obj, err := mem.Get(ctx, snapshotKey)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(unzipped(f, obj.Data))
	f.Fuzz(func(t *testing.T, text string) {
		store := storage.NewMemory()
		fill(store)
		_, err := store.PutIfAbsent(ctx, snapshotKey, zipped(t, text))
		require.NoError(t, err)
		got, problems, err := records.New(store, shard, nil).Load(ctx)
		require.NoError(t, err)
		require.Empty(t, problems)
		require.Len(t, got, 3)
		for i, rec := range got {
			require.Equal(t, keyOf(newInstance(byte(i+1))), keyOf(rec))
		}
	})
}

// TestMarks: what lies between the marks of a snapshot is listed at the same time.
func TestMarks(t *testing.T) {
	filled := func(t *testing.T, n int) recordsTest {
		b := newBed()
		for i := range n {
			rec := newInstance(1)
			rec.ID = numbered(i)
			_, err := b.recs.Create(t.Context(), rec)
			require.NoError(t, err)
		}
		_, err := b.recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		return b.next(8)
	}
	bubble(t, "the pages of the listing are waited for at once", func(t *testing.T) {
		b := filled(t, 2500)
		b.recs = records.New(slowPages{b}, shard, &records.Options{Epoch: 8})
		began := time.Now()
		recs, problems, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Empty(t, problems)
		require.Len(t, recs, 2500)
		require.Equal(t, time.Second, time.Since(began), "three pages, each a second")
	})
	bubble(t, "a page that fails fails the load", func(t *testing.T) {
		b := filled(t, 2500)
		for skip := range 3 {
			b = b.next(8)
			b.Inject(storagetest.Fault{Op: storagetest.List, Skip: skip})
			_, _, err := b.recs.Load(t.Context())
			require.ErrorIs(t, err, nstance.Unavailable)
		}
	})
	key := func(n byte) string { return `"` + keyOf(newInstance(n)) + `"` }
	for name, marks := range map[string]string{
		"that are there":                 key(3) + "," + key(6),
		"that are gone":                  key(30) + "," + key(60),
		"that are the same":              key(3) + "," + key(3),
		"out of order":                   key(6) + "," + key(3),
		"that are too many":              strings.Repeat(key(3)+",", 1000) + key(3),
		"that are empty":                 `"",""`,
		"under no prefix of the shard's": `"a","zz"`,
	} {
		bubble(t, "each record is listed once, whatever the marks: "+name, func(t *testing.T) {
			b := snapshotTest(t, 9)
			b.rewrite(t, func(text string) string {
				return strings.Replace(text, `"records":9`, `"records":9,"marks":[`+marks+`]`, 1)
			})
			other := records.New(b.mem, shard, &records.Options{Epoch: 7})
			_, err := other.Create(t.Context(), newInstance(11))
			require.NoError(t, err)
			b.put(t, keyOf(newInstance(12))+"x", "{}") // is no record
			recs, problems, err := b.recs.Load(t.Context())
			require.NoError(t, err)
			require.Len(t, problems, 1)
			require.Len(t, recs, 10)
			require.NoError(t, b.recs.SnapshotProblem())
			require.Equal(t, 2, b.Count(storagetest.Get), "of the snapshot and of the new one")
			require.LessOrEqual(t, b.Count(storagetest.List), 16)
		})
	}
}

// numbered returns an ID of its own for each number up to a million.
func numbered(n int) nstance.InstanceID {
	id := []byte("knd0400000001r01000000000000x")[:29]
	id[28] = '0'
	for i := 26; i > 22; i-- {
		id[i] = "0123456789abcdefghjkmnpqrstvwxyz"[n&31]
		n >>= 5
	}
	return nstance.InstanceID(id)
}

// slowPages takes a second for each page of a listing.
type slowPages struct{ recordsTest }

func (s slowPages) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		n := 0
		for entry, err := range s.recordsTest.List(ctx, prefix, after) {
			if n%1000 == 0 {
				sleep.For(ctx, time.Second)
			}
			if n++; !yield(entry, err) {
				return
			}
		}
	}
}
