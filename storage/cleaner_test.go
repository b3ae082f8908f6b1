package storage_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

const (
	retention = 30 * time.Minute
	// ripe is after what time something that nothing names is removed: retention,
	// what everybody remembers, and what it may take to name something.
	ripe = retention + 30*time.Minute
)

// A depot is a store of two shards, with the cleaner of the first one's leader.
type depot struct {
	*testing.T
	*storagetest.Faulty
	cleaner *storage.Cleaner
}

func newDepot(t *testing.T) depot {
	f := storagetest.NewFaulty(storage.NewMemory())
	return depot{t, f, storage.NewCleaner(f, shard, nil)}
}

// definition returns one that differs by name.
func definition(name string) nstance.Definition {
	return nstance.Definition{Kind: "knd", Vars: map[string]string{"name": name}}
}

// leader returns the records of a shard whose leader has just begun.
func (d depot) leader(of nstance.ShardID) *storage.Records {
	return storage.NewRecords(d, of, nil)
}

// unnamed puts a definition that nothing names, and returns its digest.
func (d depot) unnamed(name string) string {
	d.Helper()
	digest, err := d.leader("other").PutDefinition(d.Context(), definition(name))
	require.NoError(d, err)
	return digest
}

// instance writes a record that names a definition.
func (d depot) instance(recs *storage.Records, name string) nstance.InstanceID {
	d.Helper()
	rec := newInstance(1)
	var err error
	rec.Definition, err = recs.PutDefinition(d.Context(), definition(name))
	require.NoError(d, err)
	_, err = recs.Create(d.Context(), rec)
	require.NoError(d, err)
	return rec.ID
}

// write puts an object, in place of what stands there.
func (d depot) write(key, text string) {
	d.Helper()
	obj, err := d.Get(d.Context(), key)
	if err == nil {
		_, err = d.PutIfMatch(d.Context(), key, []byte(text), obj.Version)
	} else {
		_, err = d.PutIfAbsent(d.Context(), key, []byte(text))
	}
	require.NoError(d, err)
}

// wait lets virtual time pass.
func wait(d time.Duration) { <-time.After(d) }

func (d depot) stands(key string) bool {
	d.Helper()
	_, err := d.Get(d.Context(), key)
	if err != nil {
		require.ErrorIs(d, err, nstance.NotFound)
	}
	return err == nil
}

// pass has the cleaner do one pass, and returns how many objects it removed.
func (d depot) pass() int {
	d.Helper()
	n, err := d.cleaner.Clean(d.Context(), retention)
	require.NoError(d, err)
	return n["definition/"] + n["fetched/"]
}

// passes lets time pass, with a pass every 10 minutes, and returns how many
// objects were removed.
func (d depot) passes(duration time.Duration) (n int) {
	d.Helper()
	for end := time.Now().Add(duration); time.Now().Before(end); wait(10 * time.Minute) {
		n += d.pass()
	}
	return n + d.pass()
}

// list returns what is on the list of the condemned.
func (d depot) list() map[string]json.RawMessage {
	d.Helper()
	obj, err := d.Get(d.Context(), storage.CondemnedKey)
	require.NoError(d, err)
	var out struct {
		Keys map[string]json.RawMessage `json:"keys"`
	}
	require.NoError(d, json.Unmarshal(obj.Data, &out))
	return out.Keys
}

func cleaning(t *testing.T, name string, f func(t *testing.T, d depot)) {
	bubble(t, name, func(t *testing.T) { f(t, newDepot(t)) })
}

// TestCleanerRemovesWhatNothingNames is about what it removes, and when.
func TestCleanerRemovesWhatNothingNames(t *testing.T) {
	cleaning(t, "once nobody can be about to name it", func(t *testing.T, d depot) {
		key := storage.DefinitionKey(d.unnamed("a"))
		d.write(storage.FetchedKey(strings.Repeat("ab", 32)), "#!/bin/sh")
		require.Zero(t, d.pass())
		require.Len(t, d.list(), 2)
		wait(ripe - time.Second)
		require.Zero(t, d.pass())
		require.True(t, d.stands(key))
		wait(time.Second)
		require.Equal(t, 2, d.pass())
		require.False(t, d.stands(key))
		require.Empty(t, d.list())
		require.Zero(t, d.passes(2*ripe))
	})
	cleaning(t, "with the term of another retention", func(t *testing.T, d depot) {
		d.unnamed("a")
		d.pass()
		wait(31 * time.Minute)
		n, err := d.cleaner.Clean(t.Context(), time.Hour)
		require.NoError(t, err)
		require.Empty(t, n)
		n, err = d.cleaner.Clean(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"definition/": 1}, n)
	})
	cleaning(t, "not what a new leader has not seen unnamed for so long itself", func(t *testing.T, d depot) {
		d.unnamed("a")
		d.pass()
		wait(2 * ripe)
		d.cleaner = storage.NewCleaner(d, shard, nil)
		require.Zero(t, d.pass())
		wait(ripe)
		require.Equal(t, 1, d.pass())
	})
	cleaning(t, "a part in each pass, and all in the end", func(t *testing.T, d depot) {
		for i := range 450 {
			d.unnamed(fmt.Sprint(i))
		}
		d.pass()
		wait(ripe)
		require.Equal(t, 200, d.pass())
		require.Equal(t, 200, d.pass())
		require.Equal(t, 50, d.pass())
	})
	cleaning(t, "beyond what it lists or remembers at a time", func(t *testing.T, d depot) {
		for i := range 5100 {
			d.write(storage.FetchedKey(fmt.Sprintf("%064x", i)), "x")
		}
		d.write(storage.ResolvedKey(shard), named(func() (out []string) {
			for i := range 5000 {
				out = append(out, fmt.Sprintf("%064x", i))
			}
			return out
		}()...))
		require.Equal(t, 100, d.passes(3*ripe))
		require.True(t, d.stands(storage.FetchedKey(fmt.Sprintf("%064x", 4999))))
	})
	cleaning(t, "only what has a key of contents", func(t *testing.T, d depot) {
		keys := []string{"definition/readme", "definition/" + strings.Repeat("AB", 32), "fetched/" + strings.Repeat("ab", 33), "userdata/" + strings.Repeat("ab", 32)}
		for _, key := range keys {
			d.write(key, "x")
		}
		d.passes(3 * ripe)
		for _, key := range keys {
			require.True(t, d.stands(key), key)
		}
	})
	cleaning(t, "not what only a later version knows, which has put it on the list", func(t *testing.T, d depot) {
		key := "later/" + strings.Repeat("ab", 32)
		d.write(key, "x")
		d.write(storage.CondemnedKey, `{"format":"1.0","keys":{"`+key+`":{"id":"x","since":"2000-01-01T00:00:00Z"}}}`)
		d.passes(3 * ripe)
		require.True(t, d.stands(key))
	})
}

// named returns a document that names digests.
func named(digests ...string) string {
	text, _ := json.Marshal(map[string]any{"format": "1.0", "epoch": 1, "write_id": "w", "somewhere": map[string]any{"deep": digests}})
	return string(text)
}

// TestCleanerKeepsWhatIsNamed is about whatever names something, of any shard.
func TestCleanerKeepsWhatIsNamed(t *testing.T) {
	digest, err := storage.DefinitionDigest(definition("a"))
	require.NoError(t, err)
	inBase64 := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	for name, doc := range map[string]struct{ key, text string }{
		"by the last good definition of another shard's group": {
			storage.StateKey("other"), `{"format":"1.0","epoch":1,"write_id":"w","groups":{"default/web":{"last_good":"` + digest + `"}}}`},
		"by a rollback": {
			storage.StateKey(shard), `{"format":"1.0","epoch":1,"write_id":"w","groups":{"default/web":{"rollback":{"definition":"` + digest + `"}}}}`},
		"by a paused group of a shard without records": {
			storage.StateKey("empty"), `{"format":"1.0","epoch":1,"write_id":"w","groups":{"default/web":{"paused":true,"last_good":"` + digest + `"}}}`},
		"by a field that this version does not know": {
			storage.StateKey("other"), named(digest)},
		"by the name of a field": {
			storage.StateKey("other"), `{"format":"1.0","by_digest":{"` + digest + `":1}}`},
		"by what a group is based on": {
			storage.GroupsKey("other"), `{"groups":{"default/web":{"base":{"definition":"` + digest + `"}}} /* by hand */}`},
		"by what an address stood for": {
			storage.ResolvedKey("other"), `{"format":"1.0","userdata":{"https://x":{"is":"` + digest + `"}}}`},
		"by a configuration in force": {
			storage.AcceptedKey("other"), `{"format":"1.0","data":"` + inBase64(`{"sha256": "`+strings.ToUpper(digest)+`"} // pinned`) + `"}`},
		"by a configuration that is held": {
			storage.AcceptedKey("other"), `{"format":"1.0","data":"","held":{"data":"` + inBase64(`{"sha256": "`+digest+`"}`) + `"}}`},
	} {
		cleaning(t, name, func(t *testing.T, d depot) {
			d.unnamed("a")
			d.write(storage.FetchedKey(digest), "x")
			d.write(doc.key, doc.text)
			require.Zero(t, d.passes(3*ripe))
			require.Empty(t, d.list())
			d.write(doc.key, `{"format":"1.0"}`)
			require.Equal(t, 2, d.passes(2*ripe), "when it is not named any more")
		})
	}
	cleaning(t, "by an instance of another shard, in its snapshot or not", func(t *testing.T, d depot) {
		recs := d.leader("other")
		id := d.instance(recs, "a")
		require.Zero(t, d.passes(2*ripe))
		_, err := recs.SaveSnapshot(t.Context())
		require.NoError(t, err)
		require.Zero(t, d.passes(2*ripe))
		require.NoError(t, recs.Delete(t.Context(), id))
		require.Equal(t, 1, d.passes(2*ripe))
	})
	cleaning(t, "again after it was not for a while", func(t *testing.T, d depot) {
		digest := d.unnamed("a")
		d.pass()
		wait(ripe)
		d.write(storage.StateKey("other"), named(digest))
		require.Zero(t, d.pass())
		require.Empty(t, d.list())
		d.write(storage.StateKey("other"), named())
		require.Zero(t, d.passes(ripe-11*time.Minute), "its time begins anew")
		require.Equal(t, 1, d.passes(20*time.Minute))
	})
}

// TestCleanerRemovesNothingOnAnError spoils every call of a pass in turn.
func TestCleanerRemovesNothingOnAnError(t *testing.T) {
	full := func(t *testing.T) (d depot, key string) {
		d = newDepot(t)
		d.instance(d.leader("other"), "named")
		for _, key := range []string{storage.StateKey(shard), storage.GroupsKey("other"), storage.AcceptedKey("other"), storage.ResolvedKey("other")} {
			d.write(key, named())
		}
		key = storage.DefinitionKey(d.unnamed("a"))
		d.pass()
		wait(ripe)
		return d, key
	}
	fails := func(t *testing.T, d depot, key string) {
		_, err := d.cleaner.Clean(t.Context(), retention)
		require.Error(t, err)
		require.True(t, d.stands(key))
		d.Heal()
	}
	for _, op := range []storagetest.Op{storagetest.List, storagetest.Get} {
		for _, prefix := range []string{"cleaning/", "definition/", "fetched/", "state/", "groups/", "accepted/", "resolved/", "instance/"} {
			for _, mode := range []storagetest.Mode{storagetest.Refuse, storagetest.Lose} {
				if op == storagetest.List && prefix == "cleaning/" || op == storagetest.Get && (prefix == "definition/" || prefix == "fetched/") {
					continue // there is no such call
				}
				bubble(t, fmt.Sprintf("%s of %s, %d", op, prefix, mode), func(t *testing.T) {
					d, key := full(t)
					d.Inject(storagetest.Fault{Op: op, Prefix: prefix, Times: -1, Mode: mode})
					fails(t, d, key)
					require.Equal(t, 1, d.passes(ripe))
				})
			}
		}
	}
	for name, doc := range map[string]struct{ key, text string }{
		"a state that is damaged":                    {storage.StateKey("other"), `{"format":"1.0","groups":`},
		"a state without a format":                   {storage.StateKey("other"), `{"groups":{}}`},
		"a state of a newer major format":            {storage.StateKey("other"), `{"format":"2.0"}`},
		"a state of a newer minor format":            {storage.StateKey("other"), `{"format":"1.1"}`},
		"groups that are damaged":                    {storage.GroupsKey("other"), `{"groups":`},
		"groups of a newer format":                   {storage.GroupsKey("other"), `{"format":"1.9"}`},
		"a configuration of a newer format":          {storage.AcceptedKey("x"), `{"format":"2.0"}`},
		"a record that is damaged":                   {storage.InstanceKey("x", "default", "web", newInstance(2).ID), `{`},
		"a record of a newer minor format":           {storage.InstanceKey("x", "default", "web", newInstance(2).ID), `{"format":"1.7","id":"` + string(newInstance(2).ID) + `","tenant":"default","group":"web"}`},
		"something else among the records":           {"instance/x/readme", "x"},
		"a list of the condemned that is damaged":    {storage.CondemnedKey, `{"format":"1.0","keys":[`},
		"a list of the condemned of a newer format":  {storage.CondemnedKey, `{"format":"1.4"}`},
		"a list of the condemned of a newer version": {storage.CondemnedKey, `{"format":"3.0"}`},
	} {
		bubble(t, name, func(t *testing.T) {
			d, key := full(t)
			d.write(doc.key, doc.text)
			fails(t, d, key)
		})
	}
	bubble(t, "and says what to do", func(t *testing.T) {
		d, _ := full(t)
		d.write(storage.StateKey("other"), `{"format":"1.1"}`)
		_, err := d.cleaner.Clean(t.Context(), retention)
		require.ErrorContains(t, err, storage.StateKey("other"))
		require.ErrorContains(t, err, "upgrade this program")
	})
	bubble(t, "and begins anew with a list that could not be read", func(t *testing.T) {
		d, key := full(t)
		d.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: storage.CondemnedKey})
		fails(t, d, key)
		require.Zero(t, d.pass())
		require.Equal(t, 1, d.passes(ripe))
	})
	bubble(t, "nor when the list cannot be written", func(t *testing.T) {
		d, key := full(t)
		d.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: storage.CondemnedKey, Times: -1})
		fails(t, d, key)
	})
	bubble(t, "nor when the term is over", func(t *testing.T) {
		d, key := full(t)
		over := false
		d.cleaner = storage.NewCleaner(d, shard, &storage.CleanerOptions{Check: func() error {
			if over {
				return nstance.Errorf(nstance.Unavailable, "over")
			}
			return nil
		}})
		d.pass()
		wait(ripe)
		over = true
		fails(t, d, key)
		over = false
		d.pass()
		wait(ripe)
		d.Inject(storagetest.Fault{Op: storagetest.List, Prefix: key, Do: func() { over = true }, Pass: true})
		fails(t, d, key)
	})
	bubble(t, "nor when it was held up after it had announced that", func(t *testing.T) {
		d, key := full(t)
		d.Inject(storagetest.Fault{Op: storagetest.List, Prefix: key, Do: func() { wait(20 * time.Second) }, Pass: true})
		fails(t, d, key)
	})
	bubble(t, "and gives up within 20 s of announcing that", func(t *testing.T) {
		d := depot{t, storagetest.NewFaulty(unanswering{storage.NewMemory()}), nil}
		d.cleaner = storage.NewCleaner(d, shard, nil)
		d.unnamed("a")
		d.pass()
		wait(ripe)
		began := time.Now()
		d.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Do: func() { wait(15 * time.Second) }, Pass: true})
		_, err := d.cleaner.Clean(t.Context(), retention)
		require.ErrorIs(t, err, nstance.Ambiguous)
		require.Equal(t, 20*time.Second, time.Since(began))
	})
	bubble(t, "and a deletion that failed is announced anew later", func(t *testing.T) {
		d, key := full(t)
		d.Inject(storagetest.Fault{Op: storagetest.Delete, Prefix: key})
		fails(t, d, key)
		require.Zero(t, d.pass())
		require.Equal(t, 1, d.passes(2*ripe+20*time.Minute))
	})
}

// unanswering is a store that never answers a deletion.
type unanswering struct{ storage.Store }

func (unanswering) DeleteIfMatch(ctx context.Context, _ string, _ storage.Version) error {
	<-ctx.Done()
	return nstance.Errorf(nstance.Ambiguous, "no answer: %w", ctx.Err())
}

// TestNothingIsMissing lets somebody name a definition at every point of what a
// cleaner does until it is gone. Whatever the leader knew before, in the end what
// is named stands.
func TestNothingIsMissing(t *testing.T) {
	// What the leader that names it did before, so long before the cleaner first
	// saw that nothing named it.
	pasts := map[string]func(d depot, recs *storage.Records){
		"a leader that has just begun": func(depot, *storage.Records) {},
		"one that put it before":       func(d depot, recs *storage.Records) { put(d, recs) },
		"one that refreshes what it knows": func(d depot, recs *storage.Records) {
			put(d, recs)
			ctx, stop := context.WithCancel(d.Context())
			var wg sync.WaitGroup
			d.Cleanup(func() { stop(); wg.Wait() })
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = recs.Contents().Refresh(ctx) // the next one does it
					select {
					case <-ctx.Done():
					case <-time.After(4 * time.Minute):
					}
				}
			})
		},
	}
	for past, prepare := range pasts {
		for step := range 40 {
			bubble(t, fmt.Sprintf("%s, step %d", past, step), func(t *testing.T) {
				d := newDepot(t)
				recs := d.leader("other")
				if step%2 == 1 {
					recs = d.leader(shard)
				}
				d.unnamed("x")
				prepare(d, recs)
				between := interleave(d, step, func() {
					nameIt(d, recs, time.Duration(step%5)*5*time.Minute)
				})
				for range 12 {
					between()
					_, _ = d.cleaner.Clean(t.Context(), retention) // whatever becomes of it
					wait(15 * time.Minute)
				}
				d.Heal()
				require.True(t, d.stands(storage.DefinitionKey(digestOfX(d))))
				require.Zero(t, d.passes(3*ripe))
				require.True(t, d.stands(storage.DefinitionKey(digestOfX(d))))
			})
		}
	}
}

func put(d depot, recs *storage.Records) {
	_, err := recs.PutDefinition(d.Context(), definition("x"))
	require.NoError(d, err)
}

func digestOfX(d depot) string {
	digest, err := storage.DefinitionDigest(definition("x"))
	require.NoError(d, err)
	return digest
}

// nameIt puts the definition, and names it in a record some time later. It is
// repeated until it succeeds.
func nameIt(d depot, recs *storage.Records, later time.Duration) {
	for {
		digest, err := recs.PutDefinition(context.Background(), definition("x"))
		if err == nil {
			wait(later)
			rec := newInstance(9)
			rec.Definition = digest
			_, err = recs.Create(context.Background(), rec)
		}
		if err == nil {
			return
		}
		require.ErrorIs(d, err, nstance.Unavailable)
		wait(time.Second)
	}
}

// interleave has act begin just before the nth call of the cleaner's passes, or
// between two of them, and returns what is to be called before each pass.
func interleave(d depot, n int, act func()) (between func()) {
	var wg sync.WaitGroup
	d.Cleanup(wg.Wait)
	began := false
	begin := func() {
		if !began {
			began = true
			wg.Go(act)
			synctest.Wait() // it has done what it does at once
		}
	}
	passes := 0
	return func() {
		if passes++; passes == 1+n/8 {
			if n%8 == 0 {
				begin()
				return
			}
			calls := []storagetest.Fault{
				{Op: storagetest.Get, Prefix: storage.CondemnedKey}, {Op: storagetest.List, Prefix: "definition/"}, {Op: storagetest.List, Prefix: "state/"},
				{Op: storagetest.List, Prefix: "instance/"}, {Op: storagetest.PutIfMatch, Prefix: storage.CondemnedKey},
				{Op: storagetest.List, Prefix: storage.DefinitionKey(digestOfX(d))}, {Op: storagetest.Delete, Prefix: storage.DefinitionKey(digestOfX(d))},
			}
			fault := calls[n%8-1]
			fault.Pass, fault.Do = true, begin
			d.Inject(fault)
		}
		if passes == 12 {
			begin()
		}
	}
}

// TestCleanerRemembersOnlyWhatItAskedFor, however much a document says that may
// be a digest: each position in a long hexadecimal text is the end of one.
func TestCleanerRemembersOnlyWhatItAskedFor(t *testing.T) {
	d := newDepot(t)
	d.unnamed("a")
	var long [1 << 18]byte
	_, _ = rand.NewChaCha8([32]byte{}).Read(long[:]) // never fails
	d.write(storage.StateKey(shard), named(hex.EncodeToString(long[:])))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.Zero(t, d.pass())
	runtime.ReadMemStats(&after)
	require.Len(t, d.list(), 1)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
}

// TestOneCleaner is about who of many leaders cleans.
func TestOneCleaner(t *testing.T) {
	turn := func(d depot, c *storage.Cleaner) bool {
		d.Helper()
		mine, err := c.Turn(d.Context())
		require.NoError(d, err)
		return mine
	}
	cleaning(t, "whoever comes first, and the next leader of its shard", func(t *testing.T, d depot) {
		other := storage.NewCleaner(d, "other", nil)
		require.True(t, turn(d, d.cleaner))
		require.True(t, turn(d, other), "nobody has done a pass yet")
		d.pass()
		for range 10 {
			require.False(t, turn(d, other))
			require.True(t, turn(d, d.cleaner))
			d.pass()
		}
		d.cleaner = storage.NewCleaner(d, shard, nil)
		require.True(t, turn(d, d.cleaner))
	})
	cleaning(t, "another one when it does not any more", func(t *testing.T, d depot) {
		other := storage.NewCleaner(d, "other", nil)
		d.unnamed("a")
		d.pass()
		for range 3 {
			require.False(t, turn(d, other))
			wait(30 * time.Minute)
		}
		require.True(t, turn(d, other))
		n, err := other.Clean(t.Context(), retention)
		require.NoError(t, err)
		require.Equal(t, 1, n["definition/"], "it has watched the list all the time")
		require.False(t, turn(d, d.cleaner))
	})
	cleaning(t, "two at once do no harm", func(t *testing.T, d depot) {
		other := storage.NewCleaner(d, "other", nil)
		for i := range 50 {
			d.unnamed(fmt.Sprint(i))
		}
		d.write(storage.StateKey(shard), named(d.unnamed("named")))
		removed := 0
		for range 10 {
			var wg sync.WaitGroup
			var one, two map[string]int
			wg.Go(func() { one, _ = d.cleaner.Clean(t.Context(), retention) })
			wg.Go(func() { two, _ = other.Clean(t.Context(), retention) })
			wg.Wait()
			removed += one["definition/"] + two["definition/"]
			wait(10 * time.Minute)
		}
		require.Equal(t, 50, removed)
		require.True(t, d.stands(storage.DefinitionKey(d.unnamed("named"))))
		require.Empty(t, d.list())
	})
}
