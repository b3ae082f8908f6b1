package records_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// dueGarbage returns the digest of a definition that the next pass deletes.
func (d *garbageTest) dueGarbage() string {
	d.Helper()
	digest := d.define("a")
	d.takeOver()
	require.Zero(d, d.pass())
	wait(garbageAge)
	return digest
}

// recordText returns the stored form of an instance's record, of a format.
func recordText(format, definition string) string {
	rec := newInstance(1)
	return fmt.Sprintf(`{"format":%q,"id":%q,"tenant":%q,"group":%q,"definition":%q}`, format, rec.ID, rec.Tenant, rec.Group, definition)
}

// TestEachCallOfAPassFails: whichever call of a pass fails, and however, the pass ends with that error,
// and what a document names stays.
func TestEachCallOfAPassFails(t *testing.T) {
	setUp := func(t *testing.T, d *garbageTest) (named, unnamed string) {
		t.Helper()
		named = d.define("named")
		d.write(layout.StateKey(shard), `{"format":"1.0","definition":"`+named+`"}`)
		d.write(keyOf(newInstance(1)), recordText("1.0", named))
		unnamed = d.dueGarbage()
		d.Reset()
		return named, unnamed
	}
	var calls int
	collecting(t, "none fails", func(t *testing.T, d *garbageTest) {
		named, unnamed := setUp(t, d)
		require.Equal(t, 1, d.pass())
		calls = d.Count("")
		require.True(t, d.defined(named))
		require.False(t, d.defined(unnamed))
	})
	for skip := range calls {
		for _, mode := range []storagetest.Mode{storagetest.Refuse, storagetest.LoseAnswer} {
			collecting(t, fmt.Sprintf("call %d of %d fails, mode %d", skip+1, calls, mode), func(t *testing.T, d *garbageTest) {
				named, _ := setUp(t, d)
				d.Inject(storagetest.Fault{Skip: skip, Mode: mode, Err: nstance.Denied})
				removed, err := d.recs.CollectGarbage(t.Context())
				d.ClearFaults()
				require.True(t, d.defined(named))
				if err == nil { // the snapshot is not needed
					require.Equal(t, 1, removed["definition/"])
					return
				}
				require.ErrorIs(t, err, nstance.Denied)
				require.Empty(t, removed)
			})
		}
	}
}

func TestGarbageAndDocuments(t *testing.T) {
	collecting(t, "without contents no document is read", func(t *testing.T, d *garbageTest) {
		d.write(layout.StateKey(shard), "{")
		require.Zero(t, d.pass())
		require.Zero(t, d.Count(storagetest.Get))
	})
	collecting(t, "groups of a person, with comments and without a format, keep what they name", func(t *testing.T, d *garbageTest) {
		named := d.define("named")
		d.write(layout.GroupsKey(shard), "// for the weekend\n{\"groups\": {\"default/web\": {\"definition\": \""+named+"\"},},}\n")
		unnamed := d.dueGarbage()
		require.Equal(t, 1, d.pass())
		require.True(t, d.defined(named))
		require.False(t, d.defined(unnamed))
	})
	for name, c := range map[string]struct{ key, data string }{
		"groups that are a list":                     {layout.GroupsKey(shard), "[]"},
		"groups with a format that is no text":       {layout.GroupsKey(shard), `{"format":2}`},
		"a state without a format":                   {layout.StateKey(shard), "{}"},
		"a record of a newer minor format":           {keyOf(newInstance(1)), recordText("1.1", "")},
		"what stands among the records, and is none": {layout.InstancePrefix(shard) + "README", "by hand"},
		"resolved addresses that a person commented": {layout.ResolvedKey(shard), `{"format":"1.1"} // by hand`},
		"a state that is followed by another":        {layout.StateKey(shard), `{"format":"1.0"} {"format":"1.0"}`},
		"a record under the key of another group":    {strings.Replace(keyOf(newInstance(1)), "/web/", "/db/", 1), recordText("1.0", "")},
	} {
		collecting(t, name+" may name anything: everything stays", func(t *testing.T, d *garbageTest) {
			digest := d.dueGarbage()
			d.write(c.key, c.data)
			_, err := d.recs.CollectGarbage(t.Context())
			require.ErrorIs(t, err, nstance.Invalid)
			require.True(t, d.defined(digest))
		})
	}
}

func TestDeletionOfGarbage(t *testing.T) {
	collecting(t, "of what is gone already is success, and it can be put at once", func(t *testing.T, d *garbageTest) {
		digest := d.dueGarbage()
		d.Inject(storagetest.Fault{Op: storagetest.Delete, Mode: storagetest.LoseAnswer, Err: nstance.NotFound})
		require.Equal(t, 1, d.pass())
		require.Equal(t, digest, d.define("a"))
		require.True(t, d.defined(digest))
	})
	for _, code := range []nstance.Code{nstance.Denied, nstance.Throttled, nstance.Quota} {
		collecting(t, "that is refused leaves it stored, and it can be used at once: "+string(code), func(t *testing.T, d *garbageTest) {
			digest := d.dueGarbage()
			d.Inject(storagetest.Fault{Op: storagetest.Delete, Err: code})
			removed, err := d.recs.CollectGarbage(t.Context())
			require.ErrorIs(t, err, code)
			require.Empty(t, removed)
			require.Equal(t, digest, d.define("a"))
			require.True(t, d.defined(digest))
			require.Zero(t, d.pass(), "it is in use now")
		})
	}
	collecting(t, "and of what was written again: the hour begins anew", func(t *testing.T, d *garbageTest) {
		digest := d.dueGarbage()
		require.Equal(t, 1, d.pass())
		for range 2 {
			d.write(layout.DefinitionKey(shard, digest), "{}")
			require.Zero(t, d.pass(), "a former leader may be about to name it")
			wait(garbageAge - time.Second)
			require.Zero(t, d.pass())
			wait(time.Second)
			require.Equal(t, 1, d.pass())
		}
	})
	collecting(t, "without an answer, and of what was written again: the hour begins anew", func(t *testing.T, d *garbageTest) {
		digest := d.dueGarbage()
		d.Inject(storagetest.Fault{Op: storagetest.Delete, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous})
		_, err := d.recs.CollectGarbage(t.Context())
		require.ErrorIs(t, err, nstance.Ambiguous)
		require.Zero(t, d.pass(), "nothing is stored")
		d.write(layout.DefinitionKey(shard, digest), "{}")
		require.Zero(t, d.pass())
		wait(garbageAge)
		require.Equal(t, 1, d.pass())
	})
}
