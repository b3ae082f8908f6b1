package storagetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// BadKeys returns keys that every store refuses.
func BadKeys() []string {
	return []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", ".hidden", "a/.b", "a b", "a\\b", "a\x00b",
		"a\n", "ä", "a:b", "a*b", "a~", strings.Repeat("a", 201), strings.Repeat("a/", 256) + "a",
	}
}

// putAll writes the keys, several at a time.
func putAll(t *testing.T, s storage.Store, keys []string) {
	t.Helper()
	var wg sync.WaitGroup
	for part := range slices.Chunk(keys, len(keys)/16+1) {
		wg.Go(func() {
			for _, k := range part {
				if _, err := s.PutIfAbsent(t.Context(), k, []byte(k)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func list(t *testing.T, s storage.Store, prefix, after string) []string {
	t.Helper()
	keys := []string{}
	for e, err := range s.List(t.Context(), prefix, after) {
		require.NoError(t, err)
		keys = append(keys, e.Key)
	}
	return keys
}

// listAll uses more keys than one page of any back end has: Azure Blob Storage
// returns up to 5,000 (learn.microsoft.com/rest/api/storageservices/list-blobs).
func listAll(t *testing.T, s storage.Store) {
	require.Empty(t, list(t, s, "", ""))
	var keys []string
	for i := range 5_100 {
		keys = append(keys, fmt.Sprintf("big/%d/%05d", i%3, i))
	}
	putAll(t, s, keys)
	slices.Sort(keys)
	requireKeys(t, keys, list(t, s, "", ""))
	requireKeys(t, keys[4000:], list(t, s, "", keys[3999]))
	requireKeys(t, keys[50:], list(t, s, "", keys[49])) // more than a page once more
}

// requireKeys names the first difference of two long listings.
func requireKeys(t *testing.T, want, got []string) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		require.Equal(t, want[i], got[i], "entry %d of %d", i, len(want))
	}
	require.Equal(t, len(want), len(got), "number of entries; all before were right")
}

func listPart(t *testing.T, s storage.Store) {
	// '-' and '.' sort before '/', digits and letters after it.
	keys := []string{"a-b/x", "a.b", "a/b", "a/b-c", "a/b.c", "a/c/d", "a0", "aa/b", "b/B", "b/b"}
	putAll(t, s, keys)
	for _, c := range []struct {
		prefix, after string
		want          []string
	}{
		{"", "", keys},
		{"a", "", keys[:8]},
		{"a/", "", keys[2:6]},
		{"a/b", "", keys[2:5]},
		{"a/b.", "", keys[4:5]},
		{"a/c", "", keys[5:6]},
		{"a/c/", "a/c/d", nil},
		{"", "a/b", keys[3:]},
		{"a/", "a/b-c", keys[4:6]},
		{"a/", "a/bb", keys[5:6]},
		{"a/", "a", keys[2:6]},
		{"a/", "b", nil},
		{"b", "a", keys[8:]},
		{"", "zzz", nil},
		{"nothing/", "", nil},
	} {
		require.Equal(t, append([]string{}, c.want...), list(t, s, c.prefix, c.after), "prefix %q after %q", c.prefix, c.after)
	}
}

func listEntries(t *testing.T, s storage.Store) {
	v1 := put(t, s, "a/1", "one")
	v2 := put(t, s, "a/2", "")
	v3 := put(t, s, "a/3", "three")
	v1, err := s.PutIfMatch(t.Context(), "a/1", []byte("longer"), v1)
	require.NoError(t, err)
	require.NoError(t, s.DeleteIfMatch(t.Context(), "a/3", v3))
	var got []storage.Entry
	for e, err := range s.List(t.Context(), "a/", "") {
		require.NoError(t, err)
		got = append(got, e)
	}
	require.Equal(t, []storage.Entry{{Key: "a/1", Version: v1, Size: 6}, {Key: "a/2", Version: v2}}, got)
}

// listFolders checks storage.Folders with any store.
func listFolders(t *testing.T, s storage.Store) {
	putAll(t, s, []string{"a", "b/x/1", "b/x/2", "b/x-y/1", "b/y/z/1", "b/z", "c/1"})
	for prefix, want := range map[string][]string{"": {"b", "c"}, "b/": {"x", "x-y", "y"}, "b/y/": {"z"}, "c/": nil, "d/": nil} {
		var names []string
		for name, err := range storage.Folders(t.Context(), s, prefix) {
			require.NoError(t, err)
			names = append(names, name)
		}
		require.ElementsMatch(t, want, names, "below %q", prefix)
	}
}

// listRewritten lists repeatedly while every key is replaced.
func listRewritten(t *testing.T, s storage.Store) {
	const writers, rounds = 4, 5
	var keys []string
	for i := range 300 {
		keys = append(keys, fmt.Sprintf("instance/z1/default/web/%03d.json", i))
	}
	putAll(t, s, keys)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	written := make(chan struct{}, writers)
	var wg sync.WaitGroup
	defer wg.Wait()
	for part := range slices.Chunk(keys, len(keys)/writers) {
		wg.Go(func() {
			defer func() { written <- struct{}{} }()
			for n := range rounds {
				for _, key := range part {
					if err := replace(ctx, s, key, fmt.Appendf(nil, "%s %d", key, n)); err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
				}
			}
		})
	}
	for done := 0; done < writers; {
		listed := list(t, s, "instance/z1/", "")
		// Gateways over a file system may show files that they are writing.
		listed = slices.DeleteFunc(listed, func(key string) bool { return !slices.Contains(keys, key) })
		require.Equal(t, keys, listed)
		select {
		case <-written:
			done++
		default:
		}
	}
}

func replace(ctx context.Context, s storage.Store, key string, data []byte) error {
	obj, err := s.Get(ctx, key)
	if err == nil {
		_, err = s.PutIfMatch(ctx, key, data, obj.Version)
	}
	return err
}

func listBreak(t *testing.T, s storage.Store) {
	putAll(t, s, []string{"a/1", "a/2", "a/3"})
	seq := s.List(t.Context(), "a/", "")
	for e := range seq { //nolint:errcheck // an error would not have this key
		require.Equal(t, "a/1", e.Key)
		break
	}
	var keys []string
	for e, err := range seq {
		require.NoError(t, err)
		keys = append(keys, e.Key)
	}
	require.Equal(t, []string{"a/1", "a/2", "a/3"}, keys)
}

// listWrites writes from inside the loop: a store that holds its lock while it yields
// does not answer.
func listWrites(t *testing.T, s storage.Store) {
	putAll(t, s, []string{"a/1", "a/2", "a/3"})
	for e, err := range s.List(t.Context(), "a/", "") {
		require.NoError(t, err)
		_, err = s.PutIfAbsent(t.Context(), "b/"+e.Key, []byte("1"))
		require.NoError(t, err, "in the loop over List; a List must hold no lock while it yields")
	}
	require.Equal(t, []string{"b/a/1", "b/a/2", "b/a/3"}, list(t, s, "b/", ""))
}

func listCancelled(t *testing.T, s storage.Store) {
	putAll(t, s, []string{"a/1", "a/2", "a/3"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range s.List(ctx, "", "") {
		require.NoError(t, last, "an error ends the sequence")
		last = err
		cancel()
	}
	require.ErrorIs(t, last, nstance.Unavailable)
}
