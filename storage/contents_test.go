package storage_test

import (
	"fmt"
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

// TestContents is about what those who name things do.
func TestContents(t *testing.T) {
	key := storage.DefinitionKey(strings.Repeat("ab", 32))
	calls := func(d depot, c *storage.Contents) int {
		d.Helper()
		d.Reset()
		require.NoError(d, c.Keep(d.Context(), key, []byte("x")))
		return d.Count("")
	}
	cleaning(t, "remember for ten minutes that a thing stands", func(t *testing.T, d depot) {
		c := storage.NewContents(d, nil, nil)
		require.Equal(t, 2, calls(d, c), "a look at the list, and the write")
		wait(10*time.Minute - time.Second)
		require.Zero(t, calls(d, c))
		wait(time.Second)
		require.Equal(t, 2, calls(d, c))
	})
	cleaning(t, "and longer if they refresh what they know", func(t *testing.T, d depot) {
		c := storage.NewContents(d, nil, nil)
		calls(d, c)
		for range 20 {
			wait(9 * time.Minute)
			require.NoError(t, c.Refresh(t.Context()))
			require.Zero(t, calls(d, c))
		}
	})
	cleaning(t, "but not across a time in which they knew nothing", func(t *testing.T, d depot) {
		c := storage.NewContents(d, nil, nil)
		calls(d, c)
		require.Equal(t, 1, d.passes(2*ripe))
		require.NoError(t, c.Refresh(t.Context()))
		calls(d, c)
		require.True(t, d.stands(key))
	})
	cleaning(t, "nor across one that ends while they write", func(t *testing.T, d depot) {
		c := storage.NewContents(d, nil, nil)
		d.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Pass: true, Do: func() {
			wait(11 * time.Minute)
			require.NoError(t, c.Refresh(t.Context()))
		}})
		calls(d, c)
		require.Equal(t, 1, calls(d, c))
	})
	cleaning(t, "nor what was found while it was on the list", func(t *testing.T, d depot) {
		recs := d.leader("other")
		digest := d.unnamed("a")
		d.pass()
		require.NoError(t, recs.Contents().Refresh(t.Context()))
		d.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "definition/", Pass: true, Do: func() {
			require.NoError(t, d.leader(shard).Contents().Claim(t.Context(), storage.DefinitionKey(digest)))
			require.NoError(t, recs.Contents().Refresh(t.Context()))
		}})
		_, err := recs.Definition(t.Context(), digest)
		require.NoError(t, err)
		d.Reset()
		_, err = recs.PutDefinition(t.Context(), definition("a"))
		require.NoError(t, err)
		require.Equal(t, 1, d.Count(storagetest.PutIfAbsent))
	})
	cleaning(t, "count a thing that was read as one that stands", func(t *testing.T, d depot) {
		recs := d.leader("other")
		digest := d.unnamed("a")
		require.NoError(t, recs.Contents().Refresh(t.Context()))
		_, err := recs.Definition(t.Context(), digest)
		require.NoError(t, err)
		d.Reset()
		_, err = recs.PutDefinition(t.Context(), definition("a"))
		require.NoError(t, err)
		require.Zero(t, d.Count(""))
	})
	cleaning(t, "look at the list once for all", func(t *testing.T, d depot) {
		c := storage.NewContents(d, nil, nil)
		held := make(chan struct{})
		d.Inject(storagetest.Fault{Op: storagetest.Get, Pass: true, Do: func() { <-held }})
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { require.NoError(t, c.Claim(t.Context(), fmt.Sprint(i))) })
		}
		synctest.Wait()
		close(held)
		wg.Wait()
		require.Equal(t, 1, d.Count(""))
	})
	cleaning(t, "take what they name off the list", func(t *testing.T, d depot) {
		d.write(key, "x")
		d.write(storage.FetchedKey(strings.Repeat("ab", 32)), "x")
		d.pass()
		c := storage.NewContents(d, nil, nil)
		require.NoError(t, c.Claim(t.Context(), key))
		require.Len(t, d.list(), 1)
	})
	cleaning(t, "wait for a removal under way, and no longer than a minute for one that never ends", func(t *testing.T, d depot) {
		d.write(key, "x")
		d.pass()
		wait(ripe)
		d.Inject(storagetest.Fault{Op: storagetest.Delete})
		_, err := d.cleaner.Clean(t.Context(), retention)
		require.ErrorIs(t, err, nstance.Unavailable)
		c := storage.NewContents(d, nil, nil)
		for range 60 {
			require.ErrorIs(t, c.Keep(t.Context(), key, []byte("x")), nstance.Unavailable)
			wait(time.Second)
		}
		require.NoError(t, c.Keep(t.Context(), key, []byte("x")))
		require.Empty(t, d.list())
	})
	cleaning(t, "fail without the list", func(t *testing.T, d depot) {
		c := storage.NewContents(d, nil, nil)
		d.Inject(storagetest.Fault{Op: storagetest.Get})
		require.ErrorIs(t, c.Keep(t.Context(), key, []byte("x")), nstance.Unavailable)
		require.False(t, d.stands(key))
	})
	cleaning(t, "go on with one that is damaged, which no cleaner goes by either", func(t *testing.T, d depot) {
		d.write(storage.CondemnedKey, `{"format":`)
		c := storage.NewContents(d, nil, nil)
		require.NoError(t, c.Keep(t.Context(), key, []byte("x")))
		require.True(t, d.stands(key))
	})
	cleaning(t, "write nothing after the term", func(t *testing.T, d depot) {
		c := storage.NewContents(d, func() error { return nstance.Errorf(nstance.Unavailable, "over") }, nil)
		require.ErrorIs(t, c.Keep(t.Context(), key, []byte("x")), nstance.Unavailable)
		require.False(t, d.stands(key))
	})
	cleaning(t, "see to it that what a record names still stands, however long ago it was put", func(t *testing.T, d depot) {
		recs := d.leader("other")
		rec := newInstance(1)
		var err error
		rec.Definition, err = recs.PutDefinition(t.Context(), definition("a"))
		require.NoError(t, err)
		require.Equal(t, 1, d.passes(2*ripe))
		_, err = recs.Create(t.Context(), rec)
		require.NoError(t, err)
		require.True(t, d.stands(storage.DefinitionKey(rec.Definition)))
	})
}
