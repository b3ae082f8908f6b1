package records_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// garbageAge is how long an object must be unreferenced and unused.
const garbageAge = time.Hour

// garbageTest is the store of a shard, with the records of its leader.
type garbageTest struct {
	*testing.T
	*storagetest.Faulty
	recs *records.Records
	over error // reason of the term's end
}

func collecting(t *testing.T, name string, f func(t *testing.T, d *garbageTest)) {
	bubble(t, name, func(t *testing.T) {
		d := &garbageTest{T: t, Faulty: storagetest.NewFaulty(storage.NewMemory())}
		d.takeOver()
		f(t, d)
	})
}

// takeOver starts another leader with empty memory.
func (d *garbageTest) takeOver() {
	d.recs = records.New(d, shard, &records.Options{Check: func() error { return d.over }})
}

// definition returns a definition that differs by name.
func definition(name string) nstance.Definition {
	return nstance.Definition{Kind: "knd", Vars: map[string]string{"name": name}}
}

// define puts a definition and returns its digest.
func (d *garbageTest) define(name string) string {
	d.Helper()
	digest, err := d.recs.PutDefinition(d.Context(), definition(name))
	require.NoError(d, err)
	return digest
}

func (d *garbageTest) create(digest string) nstance.InstanceID {
	d.Helper()
	rec := newInstance(1)
	rec.Definition = digest
	_, err := d.recs.Create(d.Context(), rec)
	require.NoError(d, err)
	return rec.ID
}

func (d *garbageTest) write(key, text string) {
	d.Helper()
	_, err := d.PutIfAbsent(d.Context(), key, []byte(text))
	require.NoError(d, err)
}

// wait advances virtual time.
func wait(d time.Duration) { <-time.After(d) }

func (d *garbageTest) defined(digest string) bool {
	d.Helper()
	_, err := d.Get(d.Context(), layout.DefinitionKey(shard, digest))
	if err != nil {
		require.ErrorIs(d, err, nstance.NotFound)
	}
	return err == nil
}

// pass collects once and returns the number of deleted objects.
func (d *garbageTest) pass() int {
	d.Helper()
	n, err := d.recs.CollectGarbage(d.Context())
	require.NoError(d, err)
	return n["definition/"] + n["fetched/"] + n["bootstrap/"]
}

// passes collects every 10 minutes.
func (d *garbageTest) passes(duration time.Duration) (n int) {
	d.Helper()
	for end := time.Now().Add(duration); time.Now().Before(end); wait(10 * time.Minute) {
		n += d.pass()
	}
	return n + d.pass()
}

func TestGarbageIsDeleted(t *testing.T) {
	collecting(t, "an hour after it was first seen unnamed", func(t *testing.T, d *garbageTest) {
		digest := d.define("a")
		_, err := d.recs.PutFetched(t.Context(), []byte("#!/bin/sh"))
		require.NoError(t, err)
		d.takeOver()
		require.Zero(t, d.pass())
		wait(garbageAge - time.Second)
		require.Zero(t, d.pass())
		require.True(t, d.defined(digest))
		wait(time.Second)
		require.Equal(t, 2, d.pass())
		require.False(t, d.defined(digest))
	})
	collecting(t, "an hour after the last instance, and the same definition can come back", func(t *testing.T, d *garbageTest) {
		digest := d.define("a")
		id := d.create(digest)
		require.Zero(t, d.passes(5*garbageAge))
		require.NoError(t, d.recs.Delete(t.Context(), id))
		require.Zero(t, d.passes(garbageAge-10*time.Minute))
		require.Equal(t, 1, d.passes(20*time.Minute))
		d.create(digest) // remembered in this term
		require.True(t, d.defined(digest))
		require.Zero(t, d.passes(5*garbageAge))
	})
	collecting(t, "bootstrap data once no group and no unregistered instance has it", func(t *testing.T, d *garbageTest) {
		name := strings.Repeat("ab", 32)
		require.NoError(t, d.recs.PutBootstrapData(t.Context(), name, []byte("sealed")))
		rec := newInstance(1)
		rec.BootstrapData = name
		rec, err := d.recs.Create(t.Context(), rec)
		require.NoError(t, err)
		d.takeOver()
		_, _, err = d.recs.Load(t.Context())
		require.NoError(t, err)
		require.Zero(t, d.passes(5*garbageAge), "its user data may be rendered again")
		_, err = d.recs.Update(t.Context(), rec.ID, func(rec *records.Instance) error { rec.RegisteredAt = time.Now(); return nil })
		require.NoError(t, err)
		require.Equal(t, 1, d.passes(2*garbageAge))
		_, err = d.recs.SealedBootstrapData(t.Context(), name)
		require.ErrorIs(t, err, nstance.NotFound)
	})
	collecting(t, "200 in a pass", func(t *testing.T, d *garbageTest) {
		for i := range 250 {
			d.write(layout.DefinitionKey(shard, fmt.Sprintf("%064x", i)), "{}")
		}
		d.pass()
		wait(garbageAge)
		require.Equal(t, 200, d.pass())
		require.Equal(t, 50, d.pass())
	})
	collecting(t, "but nothing of another shard", func(t *testing.T, d *garbageTest) {
		other := records.New(d, "other", nil)
		digest, err := other.PutDefinition(t.Context(), definition("a"))
		require.NoError(t, err)
		require.Zero(t, d.passes(3*garbageAge))
		_, err = d.Get(t.Context(), layout.DefinitionKey("other", digest))
		require.NoError(t, err)
	})
	collecting(t, "but nothing whose key is no digest", func(t *testing.T, d *garbageTest) {
		d.write(layout.DefinitionPrefix(shard)+"README", "by hand")
		require.Zero(t, d.passes(3*garbageAge))
	})
}

func TestNamedContentsStay(t *testing.T) {
	for name, key := range map[string]string{
		"the shard's state": layout.StateKey(shard), "its groups": layout.GroupsKey(shard), "what was resolved": layout.ResolvedKey(shard),
	} {
		collecting(t, "in "+name+", in whatever field", func(t *testing.T, d *garbageTest) {
			digest := d.define("a")
			d.write(key, `{"format":"1.0","epoch":1,"write_id":"x","later":{"list":["`+digest+`"]}}`)
			d.takeOver()
			require.Zero(t, d.passes(3*garbageAge))
		})
	}
	collecting(t, "in a late record of a former leader", func(t *testing.T, d *garbageTest) {
		digest, former := d.define("a"), d.recs
		d.takeOver()
		d.pass()
		wait(garbageAge)
		rec := newInstance(1)
		rec.Definition = digest
		_, err := former.Create(t.Context(), rec)
		require.NoError(t, err)
		require.Zero(t, d.passes(garbageAge))
	})
}

// TestUsedContentsStay: contents that no stored object references yet.
func TestUsedContentsStay(t *testing.T) {
	collecting(t, "a definition that was put, for an hour", func(t *testing.T, d *garbageTest) {
		digest := d.define("a")
		d.takeOver()
		d.pass()
		wait(garbageAge)
		require.Equal(t, digest, d.define("a"), "by another term, which stands at once")
		require.Zero(t, d.pass())
		wait(garbageAge - time.Second)
		require.Zero(t, d.pass())
		d.create(digest)
		require.Zero(t, d.passes(3*garbageAge))
	})
	collecting(t, "one that was read", func(t *testing.T, d *garbageTest) {
		digest := d.define("a")
		d.takeOver()
		d.pass()
		wait(garbageAge)
		_, err := d.recs.Definition(t.Context(), digest)
		require.NoError(t, err)
		require.Zero(t, d.pass())
	})
	collecting(t, "one that a document is about to name", func(t *testing.T, d *garbageTest) {
		digest := d.define("a")
		d.takeOver()
		d.pass()
		wait(garbageAge)
		d.recs.KeepDefinitions(digest)
		require.Zero(t, d.pass())
		wait(garbageAge)
		require.Equal(t, 1, d.pass())
	})
	collecting(t, "one put and crashed: the next term counts from its first look", func(t *testing.T, d *garbageTest) {
		digest := d.define("a")
		wait(2 * garbageAge)
		d.takeOver()
		require.Zero(t, d.pass())
		wait(garbageAge - time.Second)
		require.Zero(t, d.pass())
		d.create(digest)
		require.Zero(t, d.passes(3*garbageAge))
	})
	collecting(t, "one that is being deleted is put once the deletion has an answer", func(t *testing.T, d *garbageTest) {
		digest := d.define("a")
		d.takeOver()
		d.pass()
		wait(garbageAge)
		d.Inject(storagetest.Fault{Op: storagetest.Delete, Pass: true, Do: func() {
			_, err := d.recs.PutDefinition(t.Context(), definition("a"))
			require.ErrorIs(t, err, nstance.Unavailable)
		}})
		require.Equal(t, 1, d.pass())
		require.Equal(t, digest, d.define("a"))
		require.True(t, d.defined(digest))
	})
	collecting(t, "one whose deletion had no answer is put a minute later", func(t *testing.T, d *garbageTest) {
		d.define("a")
		d.takeOver()
		d.pass()
		wait(garbageAge)
		d.Inject(storagetest.Fault{Op: storagetest.Delete, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous})
		_, err := d.recs.CollectGarbage(t.Context())
		require.ErrorIs(t, err, nstance.Ambiguous)
		_, err = d.recs.PutDefinition(t.Context(), definition("a"))
		require.ErrorIs(t, err, nstance.Unavailable, "it may land still")
		wait(time.Minute)
		require.True(t, d.defined(d.define("a")))
	})
}

func TestGarbageStaysInDoubt(t *testing.T) {
	ripe := func(t *testing.T, d *garbageTest) string {
		t.Helper()
		digest := d.define("a")
		d.takeOver()
		d.pass()
		wait(garbageAge)
		return digest
	}
	doubt := func(name string, corrupt func(d *garbageTest)) {
		collecting(t, name, func(t *testing.T, d *garbageTest) {
			digest := ripe(t, d)
			corrupt(d)
			_, err := d.recs.CollectGarbage(t.Context())
			require.Error(t, err)
			require.True(t, d.defined(digest))
			require.Zero(t, d.Count(storagetest.Delete))
		})
	}
	for name, text := range map[string]string{"damaged": `{"format":"1.0",`, "of a newer minor format": `{"format":"1.1"}`, "of a newer major format": `{"format":"2.0"}`} {
		doubt("while a record is "+name, func(d *garbageTest) { d.write(keyOf(newInstance(1)), text) })
		for _, key := range []string{layout.StateKey(shard), layout.GroupsKey(shard), layout.ResolvedKey(shard)} {
			doubt("while "+key+" is "+name, func(d *garbageTest) { d.write(key, text) })
		}
	}
	for _, op := range []storagetest.Op{storagetest.List, storagetest.Get} {
		for skip := range 3 {
			doubt(fmt.Sprintf("when call %d of %s fails", skip+1, op), func(d *garbageTest) {
				d.Inject(storagetest.Fault{Op: op, Skip: skip})
			})
		}
	}
	doubt("when the term ends while what names it is read", func(d *garbageTest) {
		d.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: layout.ResolvedKey(shard), Pass: true, Do: func() {
			d.over = nstance.Errorf(nstance.Unavailable, "over")
		}})
	})
	collecting(t, "when the term ends between two deletions", func(t *testing.T, d *garbageTest) {
		d.define("b")
		ripe(t, d)
		d.Inject(storagetest.Fault{Op: storagetest.Delete, Pass: true, Do: func() { d.over = nstance.Errorf(nstance.Unavailable, "over") }})
		removed, err := d.recs.CollectGarbage(t.Context())
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Equal(t, 1, removed["definition/"])
		require.Equal(t, 1, d.Count(storagetest.Delete))
	})
	collecting(t, "and after a failed pass the hour begins anew", func(t *testing.T, d *garbageTest) {
		ripe(t, d)
		d.Inject(storagetest.Fault{Op: storagetest.List})
		_, err := d.recs.CollectGarbage(t.Context())
		require.Error(t, err)
		require.Zero(t, d.pass())
		wait(garbageAge)
		require.Equal(t, 1, d.pass())
	})
}
