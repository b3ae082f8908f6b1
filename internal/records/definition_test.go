package records_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestDefinitions(t *testing.T) {
	d := nstance.Definition{Kind: "knd", Arch: nstance.AMD64, Args: []byte(`{"a": "<&>"}`), Vars: map[string]string{"b": "2", "a": "1"}}
	t.Run("are stored under the digest of their content", func(t *testing.T) {
		b := newBed()
		digest, err := b.recs.PutDefinition(t.Context(), d)
		require.NoError(t, err)
		require.Equal(t, "f9374b", digest[:6], "golden: a change rewrites every definition")
		foretold, err := records.DefinitionDigest(d)
		require.NoError(t, err)
		require.Equal(t, digest, foretold)
		fresh := records.New(b, shard, nil)
		again, err := fresh.PutDefinition(t.Context(), d)
		require.NoError(t, err, "that it stands there already is fine")
		require.Equal(t, digest, again)
		got, err := records.New(b, shard, nil).Definition(t.Context(), digest)
		require.NoError(t, err)
		require.Equal(t, d.Vars, got.Vars)
		require.JSONEq(t, string(d.Args), string(got.Args))
		other, err := b.recs.PutDefinition(t.Context(), nstance.Definition{Kind: "knd", Arch: nstance.ARM64})
		require.NoError(t, err)
		require.NotEqual(t, digest, other)
	})
	t.Run("are read once", func(t *testing.T) {
		b := newBed()
		digest, err := b.recs.PutDefinition(t.Context(), d)
		require.NoError(t, err)
		b.Reset()
		fresh := records.New(b, shard, nil)
		for range 3 {
			_, err = fresh.Definition(t.Context(), digest)
			require.NoError(t, err)
		}
		require.Equal(t, 1, b.Count(storagetest.Get))
	})
	t.Run("survive a lost answer", func(t *testing.T) {
		b := newBed()
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous})
		_, err := b.recs.PutDefinition(t.Context(), d)
		require.NoError(t, err)
	})
	t.Run("are not written after the term ends", func(t *testing.T) {
		var dead atomic.Bool
		f := storagetest.NewFaulty(storage.NewMemory())
		f.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous, Do: func() { dead.Store(true) }})
		recs := records.New(f, shard, &records.Options{Check: func() error {
			if dead.Load() {
				return nstance.Errorf(nstance.Unavailable, "over")
			}
			return nil
		}})
		_, err := recs.PutDefinition(t.Context(), d)
		require.NoError(t, err, "it is read back")
		require.Equal(t, 1, f.Count(storagetest.PutIfAbsent))
	})
	t.Run("that were damaged are refused", func(t *testing.T) {
		b := newBed()
		digest := strings.Repeat("ab", 32)
		_, err := b.mem.PutIfAbsent(t.Context(), layout.DefinitionKey(shard, digest), []byte(`{"format":"1.0","definition":{}}`))
		require.NoError(t, err)
		_, err = b.recs.Definition(t.Context(), digest)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, digest)
	})
	t.Run("missing is NotFound, unreadable is not", func(t *testing.T) {
		b := newBed()
		_, err := b.recs.Definition(t.Context(), "ab")
		require.ErrorIs(t, err, nstance.NotFound)
		b.Inject(storagetest.Fault{})
		_, err = b.recs.Definition(t.Context(), "ab")
		require.ErrorIs(t, err, nstance.Unavailable)
	})
	t.Run("need arguments that are JSON", func(t *testing.T) {
		_, err := newBed().recs.PutDefinition(t.Context(), nstance.Definition{Args: []byte("{")})
		require.ErrorIs(t, err, nstance.Invalid)
	})
}
