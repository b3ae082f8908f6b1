package records_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func (b recordsTest) put(t *testing.T, key, data string) {
	t.Helper()
	_, err := b.mem.PutIfAbsent(t.Context(), key, []byte(data))
	require.NoError(t, err)
}

// recordsTestWith returns a bed whose store holds n records, with empty memory.
func recordsTestWith(t *testing.T, n int) recordsTest {
	b := newBed()
	for i := range n {
		_, err := b.recs.Create(t.Context(), newInstance(byte(i+1)))
		require.NoError(t, err)
	}
	b.recs = records.New(b, shard, &records.Options{Epoch: 8})
	b.Reset()
	return b
}

func TestLoad(t *testing.T) {
	bubble(t, "returns every record in order, ready for writing", func(t *testing.T) {
		b := recordsTestWith(t, 100)
		recs, problems, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Empty(t, problems)
		require.Len(t, recs, 100)
		require.Equal(t, newInstance(1).ID, recs[0].ID)
		require.Equal(t, recs, b.recs.All())
		b.Reset()
		got, err := b.recs.Update(t.Context(), recs[5].ID, host("h"))
		require.NoError(t, err)
		require.EqualValues(t, 8, got.Epoch)
		require.Equal(t, 1, b.Count(""))
	})
	bubble(t, "reads 64 at a time", func(t *testing.T) {
		b := recordsTestWith(t, 200)
		var now, most atomic.Int32
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "instance/", Times: -1, Pass: true, Do: func() {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			<-time.After(20 * time.Millisecond)
			now.Add(-1)
		}})
		start := time.Now()
		_, _, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 64, most.Load())
		require.Equal(t, 4*20*time.Millisecond, time.Since(start), "200 reads in 4 rounds")
	})
	bubble(t, "reads only what has changed when it is repeated", func(t *testing.T) {
		b := recordsTestWith(t, 10)
		_, _, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		b.foreign(t, 7, newInstance(3).ID, func(r *records.Instance) { r.Hostname = "new" })
		obj, err := b.mem.Get(t.Context(), keyOf(newInstance(4)))
		require.NoError(t, err)
		require.NoError(t, b.mem.DeleteIfMatch(t.Context(), obj.Key, obj.Version))
		b.Reset()
		recs, _, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, b.Count(storagetest.Get), "the changed one, and the missing one to be sure")
		require.Len(t, recs, 9)
		require.Equal(t, "new", recs[2].Hostname)
	})
	bubble(t, "keeps records that are created during the load", func(t *testing.T) {
		b := recordsTestWith(t, 3)
		b.Inject(storagetest.Fault{Op: storagetest.List, Mode: storagetest.Refuse, Skip: 1},
			storagetest.Fault{Op: storagetest.Get, Pass: true, Do: func() {
				_, err := b.recs.Create(context.Background(), newInstance(50))
				require.NoError(t, err)
			}})
		recs, _, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, recs, 4)
	})
	for name, data := range map[string]string{
		"is cut off":                          `{"format":"1.0","id":`,
		"is empty":                            ``,
		"is null":                             `null`,
		"is a list":                           `[]`,
		"has no format":                       `{}`,
		"is of a newer major format":          `{"format":"2.0","epoch":{"no":"number"}}`,
		"is of another instance":              `{"format":"1.0","id":"knd0000000000000000000000000"}`,
		"has a field of another type":         `{"format":"1.0","id":[]}`,
		"is followed by something else":       `{"format":"1.0"} {}`,
		"is of an unknown format":             `{"format":"banana"}`,
		"is older than anything ever written": `{"format":"0.9"}`,
	} {
		bubble(t, "a record that "+name+" is a problem of its group, not absent", func(t *testing.T) {
			b := recordsTestWith(t, 2)
			bad := newInstance(9)
			bad.Tenant, bad.Group = "acme", "db"
			b.put(t, keyOf(bad), data)
			recs, problems, err := b.recs.Load(t.Context())
			require.NoError(t, err)
			require.Len(t, recs, 2)
			require.Len(t, problems, 1)
			p := problems[0]
			require.Equal(t, records.Problem{Key: keyOf(bad), Tenant: "acme", Group: "db", ID: bad.ID, Err: p.Err}, p)
			require.ErrorIs(t, p.Err, nstance.Invalid)
			require.ErrorContains(t, p.Err, keyOf(bad))
			if strings.Contains(data, "2.0") {
				require.ErrorContains(t, p.Err, `format "2.0" is newer than 1.0`)
				require.ErrorContains(t, p.Err, "upgrade this program")
			}
			_, err = b.recs.Update(t.Context(), bad.ID, host("h"))
			require.ErrorIs(t, err, nstance.Invalid)
			_, err = b.recs.Create(t.Context(), bad)
			require.ErrorIs(t, err, nstance.Conflict)
			obj, err := b.mem.Get(t.Context(), keyOf(bad))
			require.NoError(t, err)
			require.Equal(t, data, string(obj.Data), "it is left alone")
		})
	}
	bubble(t, "an unreadable record is a problem after some attempts", func(t *testing.T) {
		b := recordsTestWith(t, 3)
		b.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: keyOf(newInstance(2)), Times: -1})
		recs, problems, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, recs, 2)
		require.Len(t, problems, 1)
		require.ErrorIs(t, problems[0].Err, nstance.Unavailable)
		b.ClearFaults()
		recs, problems, err = b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, recs, 3)
		require.Empty(t, problems)
	})
	bubble(t, "a passing fault is no problem", func(t *testing.T) {
		b := recordsTestWith(t, 3)
		b.Inject(storagetest.Fault{Op: storagetest.Get, Times: 3}, storagetest.Fault{Op: storagetest.Get, Err: nstance.Throttled})
		recs, problems, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Empty(t, problems)
		require.Len(t, recs, 3)
	})
	bubble(t, "objects that are not records are problems of the group in their key", func(t *testing.T) {
		b := recordsTestWith(t, 1)
		for _, key := range []string{
			"instance/z1/default/web/readme.txt", "instance/z1/default/web/x.json", "instance/z1/default/web/deep/er.json",
			"instance/z1/default/stray.json", "instance/z1/stray", "instance/z2/default/web/other-shard",
		} {
			b.put(t, key, "{}")
		}
		recs, problems, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, recs, 1)
		var got []string
		for _, p := range problems {
			got = append(got, p.Key+" "+string(p.Tenant)+" "+string(p.Group))
		}
		require.Equal(t, []string{
			"instance/z1/default/stray.json default ", "instance/z1/default/web/deep/er.json default web",
			"instance/z1/default/web/readme.txt default web", "instance/z1/default/web/x.json default web",
			"instance/z1/stray stray ",
		}, got)
	})
	bubble(t, "an ID with records in two groups is a problem of the second", func(t *testing.T) {
		b := recordsTestWith(t, 1)
		other := records.New(b.mem, shard, nil)
		twin := newInstance(1)
		twin.Group = "zoo"
		_, err := other.Create(t.Context(), twin)
		require.NoError(t, err)
		recs, problems, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, recs, 1)
		require.Equal(t, nstance.GroupID("web"), recs[0].Group)
		require.Len(t, problems, 1)
		require.Equal(t, nstance.GroupID("zoo"), problems[0].Group)
		require.ErrorIs(t, problems[0].Err, nstance.Conflict)
	})
	bubble(t, "a broken list is an error, not a smaller shard", func(t *testing.T) {
		for _, mode := range []storagetest.Mode{storagetest.Refuse, storagetest.LoseAnswer} {
			b := recordsTestWith(t, 3)
			b.Inject(storagetest.Fault{Op: storagetest.List, Mode: mode})
			recs, _, err := b.recs.Load(t.Context())
			require.ErrorIs(t, err, nstance.Unavailable)
			require.Empty(t, recs)
		}
	})
	bubble(t, "ends with its context", func(t *testing.T) {
		b := recordsTestWith(t, 3)
		ctx, cancel := context.WithCancel(t.Context())
		b.Inject(storagetest.Fault{Op: storagetest.Get, Times: -1, Do: cancel})
		_, _, err := b.recs.Load(ctx)
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
	})
}
