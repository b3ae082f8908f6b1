package records_test

import (
	"crypto/sha256"
	"encoding/hex"
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

// TestDefinitionsAtOnce: each of many definitions is in one of the results, and is read once.
func TestDefinitionsAtOnce(t *testing.T) {
	for _, width := range []int{1, 2, 64} {
		t.Run(fmt.Sprint(width, " at a time"), func(t *testing.T) {
			b := newBed()
			var digests []string
			for i := range 5 {
				digest, err := b.recs.PutDefinition(t.Context(), nstance.Definition{Kind: "knd", Vars: map[string]string{"n": fmt.Sprint(i)}})
				require.NoError(t, err)
				digests = append(digests, digest, digest)
			}
			missing, damaged := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
			_, err := b.mem.PutIfAbsent(t.Context(), layout.DefinitionKey(shard, damaged), []byte(`{"format":"1.0","definition":{}}`))
			require.NoError(t, err)
			b.Reset()
			recs := records.New(b, shard, &records.Options{Width: width})
			found, failed := recs.Definitions(t.Context(), append(digests, missing, damaged, missing))
			require.Len(t, found, 5)
			for i, digest := range digests {
				require.Equal(t, fmt.Sprint(i/2), found[digest].Vars["n"])
			}
			require.Len(t, failed, 2)
			require.ErrorIs(t, failed[missing], nstance.NotFound)
			require.ErrorIs(t, failed[damaged], nstance.Invalid)
			require.Equal(t, 7, b.Count(storagetest.Get))
			again, _ := recs.Definitions(t.Context(), digests)
			require.Equal(t, found, again)
			require.Equal(t, 7, b.Count(storagetest.Get), "they are in memory")
			cached, ok := recs.CachedDefinition(digests[0])
			require.True(t, ok)
			require.Equal(t, found[digests[0]], cached)
			_, ok = recs.CachedDefinition(missing)
			require.False(t, ok)
		})
	}
	found, failed := newBed().recs.Definitions(t.Context(), nil)
	require.Empty(t, found)
	require.Empty(t, failed)
}

// TestDefinitionsWaits: no read is left behind, however long one takes.
func TestDefinitionsWaits(t *testing.T) {
	bubble(t, "for the slowest read", func(t *testing.T) {
		b := newBed()
		var digests []string
		for i := range 3 {
			digest, err := b.recs.PutDefinition(t.Context(), definition(fmt.Sprint(i)))
			require.NoError(t, err)
			digests = append(digests, digest)
		}
		b.Inject(storagetest.Fault{Op: storagetest.Get, Times: -1, Pass: true, Do: func() { wait(time.Second) }})
		found, failed := records.New(b, shard, &records.Options{Width: 2}).Definitions(t.Context(), digests)
		require.Len(t, found, 3)
		require.Empty(t, failed)
	})
}

// TestDefinitionIsCopied: what a caller does to its definition afterwards changes nothing.
func TestDefinitionIsCopied(t *testing.T) {
	b := newBed()
	d := nstance.Definition{Kind: "knd", Vars: map[string]string{"a": "1"}}
	digest, err := b.recs.PutDefinition(t.Context(), d)
	require.NoError(t, err)
	d.Vars["a"] = "2"
	got, err := b.recs.Definition(t.Context(), digest)
	require.NoError(t, err)
	require.Equal(t, "1", got.Vars["a"])
}

// TestDefinitionOfAnotherVersion: one that another version of this program wrote in other bytes is
// named as it is. It is not written once more under another digest, and has to be there.
func TestDefinitionOfAnotherVersion(t *testing.T) {
	b := newBed()
	data := []byte(`{"format":"1.0", "definition":{"kind":"knd"}, "of_a_later_version":1}`)
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	_, err := b.mem.PutIfAbsent(t.Context(), layout.DefinitionKey(shard, digest), data)
	require.NoError(t, err)
	d, err := b.recs.Definition(t.Context(), digest)
	require.NoError(t, err)
	require.EqualValues(t, "knd", d.Kind)
	rec := newInstance(1)
	rec.Definition = digest
	_, err = b.recs.Create(t.Context(), rec)
	require.NoError(t, err)
	n := 0
	for _, err := range b.mem.List(t.Context(), layout.DefinitionPrefix(shard), "") {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 1, n)
}
