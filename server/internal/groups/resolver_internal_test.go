package groups

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A recordShard has records only.
type recordShard struct {
	shard
	recs *records.Records
}

func (s recordShard) Records() *records.Records { return s.recs }

// recordedGroups returns groups that read and write objects.
func recordedGroups(store storage.Store) *Groups {
	g := &Groups{
		Options: Options{Shard: "s1", Vault: vault.New(store, nil), Check: func() error { return nil }, Log: slog.New(slog.DiscardHandler)},
		shard:   recordShard{recs: records.New(store, "s1", nil)}, data: map[string]string{},
	}
	g.resolver = &resolver{groups: g, failures: map[string]failure{}}
	return g
}

// TestUserDataThatCouldNotBeRead: that is shown while it is so. What is gone or damaged is
// fetched again.
func TestUserDataThatCouldNotBeRead(t *testing.T) {
	store := storagetest.NewFaulty(storage.NewMemory())
	g := recordedGroups(store)
	whole, err := g.shard.Records().PutFetched(t.Context(), []byte("whole"))
	require.NoError(t, err)
	gone, damaged := digestOf([]byte("gone")), digestOf([]byte("damaged"))
	_, err = store.PutIfAbsent(t.Context(), layout.FetchedKey("s1", damaged), []byte("x"))
	require.NoError(t, err)
	digests := []string{whole, gone, damaged}
	for _, digest := range digests {
		store.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: layout.FetchedKey("s1", digest)})
	}
	_, err = g.resolver.readBodies(t.Context(), "s1", digests)
	require.ErrorIs(t, err, nstance.Unavailable)
	require.Len(t, g.resolver.failures, 3)
	bodies, err := g.resolver.readBodies(t.Context(), "s1", digests)
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{whole: []byte("whole")}, bodies)
	require.Empty(t, g.resolver.failures)
}

// TestResolvedCouldNotBeRead: what is durable is read again soon, and a refresh that was
// requested meanwhile is not forgotten.
func TestResolvedCouldNotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storagetest.NewFaulty(storage.NewMemory())
		store.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: layout.ResolvedKey("s1"), Times: -1})
		s := newEditedShard(t, store)
		defer s.stop()
		s.resolver.refresh()
		synctest.Wait()
		state := func() (loaded, refresh bool) {
			s.resolver.mu.Lock()
			defer s.resolver.mu.Unlock()
			return s.resolver.loaded, s.resolver.refreshAll
		}
		loaded, refresh := state()
		require.False(t, loaded)
		require.True(t, refresh)
		store.ClearFaults()
		<-time.After(time.Minute)
		synctest.Wait()
		loaded, refresh = state()
		require.True(t, loaded)
		require.False(t, refresh)
	})
}

// TestKeyOfMarks: the cluster has one, which any leader makes while its term lasts.
func TestKeyOfMarks(t *testing.T) {
	read := func(g *Groups) ([]byte, error) { return g.resolver.readMarkKey(t.Context()) }
	object := vault.Key(markKey)

	t.Run("is that of the first, whatever becomes of the answer", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Ambiguous, nstance.Conflict} {
			store := storagetest.NewFaulty(storage.NewMemory())
			store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: object, Mode: storagetest.LoseAnswer, Err: code})
			first, err := read(recordedGroups(store))
			require.NoError(t, err, code)
			require.Len(t, first, 32)
			second, err := read(recordedGroups(store))
			require.NoError(t, err)
			require.Equal(t, first, second)
		}
	})
	t.Run("is not made after the term, nor where storage refuses it", func(t *testing.T) {
		store := storagetest.NewFaulty(storage.NewMemory())
		g := recordedGroups(store)
		g.Check = func() error { return nstance.Unavailable }
		_, err := read(g)
		require.ErrorIs(t, err, nstance.Unavailable)
		g = recordedGroups(store)
		store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: object, Err: nstance.Denied})
		_, err = read(g)
		require.ErrorIs(t, err, nstance.Denied)
		_, err = store.Get(t.Context(), object)
		require.ErrorIs(t, err, nstance.NotFound)
	})
	t.Run("is no key where it has another length", func(t *testing.T) {
		store := storage.NewMemory()
		_, err := store.PutIfAbsent(t.Context(), object, make([]byte, 31))
		require.NoError(t, err)
		_, err = read(recordedGroups(store))
		require.ErrorIs(t, err, nstance.Invalid)
	})
}

// TestStoredBootstrapData: what is missing or sealed for another key stays so until it is given
// again; what cannot be read at present is no reason to give up.
func TestStoredBootstrapData(t *testing.T) {
	ctx := context.Background()
	store := storagetest.NewFaulty(storage.NewMemory())
	g := recordedGroups(store)
	data := bytes.Repeat([]byte("x"), maxBootstrapData)
	name, err := g.NameBootstrapData(ctx, data)
	require.NoError(t, err)
	_, err = g.NameBootstrapData(ctx, append(data, 'x'))
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = g.BootstrapData(ctx, name)
	require.ErrorIs(t, err, nstance.Invalid, "it is named, and not stored")
	require.NoError(t, g.PutBootstrapData(ctx, name, data))

	next := recordedGroups(store)
	store.Inject(storagetest.Fault{Op: storagetest.Get})
	_, err = next.BootstrapData(ctx, name)
	require.ErrorIs(t, err, nstance.Unavailable)
	got, err := next.BootstrapData(ctx, name)
	require.NoError(t, err)
	require.Equal(t, string(data), got)
	store.Inject(storagetest.Fault{Op: storagetest.Get, Times: -1})
	_, err = next.BootstrapData(ctx, name)
	require.NoError(t, err, "it is known")
	got, err = next.BootstrapData(ctx, "")
	require.NoError(t, err)
	require.Empty(t, got)
	for i := range 2 * maxKnownData {
		next.rememberData(string(rune(i)), "")
		require.LessOrEqual(t, len(next.data), maxKnownData)
	}
}
