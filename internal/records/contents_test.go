package records_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A contentCalls is one kind of content: how it is put and read.
type contentCalls struct {
	put  func(ctx context.Context, r *records.Records) error
	read func(ctx context.Context, r *records.Records) ([]byte, error)
	key  string
}

// contentKinds returns the same bytes as each kind of content.
func contentKinds(t *testing.T) map[string]contentCalls {
	t.Helper()
	data, name := []byte("#!/bin/sh"), strings.Repeat("ab", 32)
	fetched, err := newBed().recs.PutFetched(t.Context(), data)
	require.NoError(t, err)
	digest, err := records.DefinitionDigest(definition("a"))
	require.NoError(t, err)
	return map[string]contentCalls{
		"fetched user data": {
			put: func(ctx context.Context, r *records.Records) error { _, err := r.PutFetched(ctx, data); return err },
			read: func(ctx context.Context, r *records.Records) ([]byte, error) {
				return r.Fetched(ctx, fetched)
			},
			key: layout.FetchedKey(shard, fetched),
		},
		"bootstrap data": {
			put: func(ctx context.Context, r *records.Records) error { return r.PutBootstrapData(ctx, name, data) },
			read: func(ctx context.Context, r *records.Records) ([]byte, error) {
				return r.SealedBootstrapData(ctx, name)
			},
			key: layout.BootstrapKey(shard, name),
		},
		"a definition": {
			put: func(ctx context.Context, r *records.Records) error {
				_, err := r.PutDefinition(ctx, definition("a"))
				return err
			},
			read: func(ctx context.Context, r *records.Records) ([]byte, error) {
				d, err := r.Definition(ctx, digest)
				return []byte(d.Vars["name"]), err
			},
			key: layout.DefinitionKey(shard, digest),
		},
	}
}

func TestContents(t *testing.T) {
	for kind, c := range contentKinds(t) {
		t.Run(kind, func(t *testing.T) {
			collecting(t, "is written once in a term", func(t *testing.T, d *garbageTest) {
				for range 3 {
					require.NoError(t, c.put(t.Context(), d.recs))
					wait(2 * garbageAge)
				}
				require.Equal(t, 1, d.Count(""))
				data, err := c.read(t.Context(), d.recs)
				require.NoError(t, err)
				require.NotEmpty(t, data)
			})
			collecting(t, "that was read is not written", func(t *testing.T, d *garbageTest) {
				require.NoError(t, c.put(t.Context(), d.recs))
				d.takeOver()
				d.Reset()
				_, err := c.read(t.Context(), d.recs)
				require.NoError(t, err)
				require.NoError(t, c.put(t.Context(), d.recs))
				require.Equal(t, 1, d.Count(""), "the read shows that it is stored")
			})
			collecting(t, "that could not be read is written", func(t *testing.T, d *garbageTest) {
				_, err := c.read(t.Context(), d.recs)
				require.ErrorIs(t, err, nstance.NotFound)
				d.Inject(storagetest.Fault{Op: storagetest.Get})
				_, err = c.read(t.Context(), d.recs)
				require.ErrorIs(t, err, nstance.Unavailable)
				require.NoError(t, c.put(t.Context(), d.recs))
				_, err = d.Get(t.Context(), c.key)
				require.NoError(t, err)
			})
			collecting(t, "is put again after an error", func(t *testing.T, d *garbageTest) {
				d.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent}, storagetest.Fault{Op: storagetest.PutIfAbsent, Err: nstance.Denied})
				require.ErrorIs(t, c.put(t.Context(), d.recs), nstance.Unavailable)
				require.ErrorIs(t, c.put(t.Context(), d.recs), nstance.Denied)
				require.NoError(t, c.put(t.Context(), d.recs))
				_, err := d.Get(t.Context(), c.key)
				require.NoError(t, err)
			})
			collecting(t, "is neither put nor read while it is being deleted", func(t *testing.T, d *garbageTest) {
				require.NoError(t, c.put(t.Context(), d.recs))
				d.takeOver()
				d.pass()
				wait(garbageAge)
				d.Inject(storagetest.Fault{Op: storagetest.Delete, Pass: true, Do: func() {
					_, err := c.read(t.Context(), d.recs)
					require.ErrorIs(t, err, nstance.Unavailable)
					require.ErrorContains(t, err, "is being deleted")
					require.ErrorIs(t, c.put(t.Context(), d.recs), nstance.Unavailable)
				}})
				require.Equal(t, 1, d.pass())
				_, err := c.read(t.Context(), d.recs)
				require.ErrorIs(t, err, nstance.NotFound)
			})
		})
	}
}

// TestDamagedContents: content under a digest that is not its own is never used.
func TestDamagedContents(t *testing.T) {
	b := newBed()
	digest, err := newBed().recs.PutFetched(t.Context(), []byte("#!/bin/sh"))
	require.NoError(t, err)
	b.put(t, layout.FetchedKey(shard, digest), "#!/bin/bash")
	data, err := b.recs.Fetched(t.Context(), digest)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, digest)
	require.Empty(t, data)

	// A definition of a newer major format is whole, and means something else.
	newer := `{"format":"2.0","definition":{"kind":"knd"}}`
	digest, err = newBed().recs.PutFetched(t.Context(), []byte(newer))
	require.NoError(t, err)
	b.put(t, layout.DefinitionKey(shard, digest), newer)
	for range 2 {
		d, err := b.recs.Definition(t.Context(), digest)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "is newer than 1.0")
		require.Zero(t, d)
	}
	_, ok := b.recs.CachedDefinition(digest)
	require.False(t, ok)
}

// TestMemoryOfContentsIsBounded: what a term remembers of contents and definitions does not grow for ever.
func TestMemoryOfContentsIsBounded(t *testing.T) {
	bubble(t, "uses of more than an hour ago, once there are 4096", func(t *testing.T) {
		b := newBed()
		for i := range 4096 {
			_, err := b.recs.PutFetched(t.Context(), fmt.Append(nil, i))
			require.NoError(t, err)
		}
		wait(garbageAge)
		_, err := b.recs.PutFetched(t.Context(), []byte("one more"))
		require.NoError(t, err)
		b.Reset()
		_, err = b.recs.PutFetched(t.Context(), fmt.Append(nil, 1))
		require.NoError(t, err)
		require.Equal(t, 1, b.Count(storagetest.PutIfAbsent), "that it is stored is not remembered")
	})
	t.Run("definitions, once there are 1024", func(t *testing.T) {
		b := newBed()
		var first string
		for i := range 1025 {
			digest, err := b.recs.PutDefinition(t.Context(), definition(fmt.Sprint(i)))
			require.NoError(t, err)
			if i == 0 {
				first = digest
			}
		}
		_, ok := b.recs.CachedDefinition(first)
		require.False(t, ok)
		d, err := b.recs.Definition(t.Context(), first)
		require.NoError(t, err, "it is read again")
		require.Equal(t, definition("0"), d)
	})
}

// TestDefinitionThatCannotBeEncoded is neither named nor stored.
func TestDefinitionThatCannotBeEncoded(t *testing.T) {
	b := newBed()
	bad := nstance.Definition{Args: []byte("{")}
	digest, err := b.recs.PutDefinition(t.Context(), bad)
	require.ErrorIs(t, err, nstance.Invalid)
	require.Empty(t, digest)
	digest, err = records.DefinitionDigest(bad)
	require.ErrorIs(t, err, nstance.Invalid)
	require.Empty(t, digest)
	require.Zero(t, b.Count(""))
}

// TestCreateEnsuresDefinition: no record is written that names a definition which is not stored.
func TestCreateEnsuresDefinition(t *testing.T) {
	collecting(t, "a definition that was deleted is stored first", func(t *testing.T, d *garbageTest) {
		digest := d.define("a")
		require.Equal(t, 1, d.passes(2*garbageAge))
		rec := newInstance(1)
		rec.Definition = digest
		d.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "definition/"})
		_, err := d.recs.Create(t.Context(), rec)
		require.ErrorIs(t, err, nstance.Unavailable)
		_, err = d.Get(t.Context(), keyOf(rec))
		require.ErrorIs(t, err, nstance.NotFound, "the record would name nothing")
		_, err = d.recs.Create(t.Context(), rec)
		require.NoError(t, err)
		require.True(t, d.defined(digest))
	})
}

// TestElapsed: the hour of garbage is measured on the clock that counts a machine's sleep too.
func TestElapsed(t *testing.T) {
	bubble(t, "of a machine that slept", func(t *testing.T) {
		b := newBed()
		_, err := b.recs.PutFetched(t.Context(), []byte("#!/bin/sh"))
		require.NoError(t, err)
		var slept time.Duration
		recs := records.New(b, shard, &records.Options{Elapsed: func() time.Duration { return slept }})
		for _, step := range []struct {
			after   time.Duration
			removed int
		}{{0, 0}, {59 * time.Minute, 0}, {time.Minute, 1}} {
			slept += step.after
			removed, err := recs.CollectGarbage(t.Context())
			require.NoError(t, err)
			require.Equal(t, step.removed, removed["fetched/"])
		}
	})
}
