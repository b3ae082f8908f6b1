package storage_test

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

var makePrevious = flag.Bool("make-previous", false, "write testdata/v0.1, which only its own version may")

// previousList holds a list of the condemned as version 0.1 left it: on it is one
// object that is marked, whose deletion nobody has heard of since, and one that is
// not. It is never written again.
var previousList = filepath.Join("testdata", "v0.1", filepath.FromSlash(storage.CondemnedKey))

func TestMakePrevious(t *testing.T) {
	if !*makePrevious {
		return // it stands, and must not change
	}
	cleaning(t, "as a cleaner leaves it that dies", func(t *testing.T, d depot) {
		d.unnamed("marked")
		d.pass()
		wait(ripe)
		d.unnamed("listed")
		d.Inject(storagetest.Fault{Op: storagetest.Delete})
		_, err := d.cleaner.Clean(t.Context(), retention)
		require.Error(t, err)
		obj, err := d.Get(t.Context(), storage.CondemnedKey)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(previousList), 0o755))
		require.NoError(t, os.WriteFile(previousList, obj.Data, 0o644))
	})
}

// previousDepot has that list and what is on it. later is added to the list, as a
// later version might.
func previousDepot(t *testing.T, later map[string]any) (d depot, marked, listed string) {
	t.Helper()
	data, err := os.ReadFile(previousList)
	require.NoError(t, err)
	d = newDepot(t)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(data, &doc))
	for key, on := range doc["keys"].(map[string]any) {
		if on.(map[string]any)["deleting"] == true {
			marked = key
		} else {
			listed = key
		}
		d.write(key, "{}")
		maps.Copy(on.(map[string]any), map[string]any{"later": later["later"]})
	}
	maps.Copy(doc, later)
	if later != nil {
		data, err = json.Marshal(doc)
		require.NoError(t, err)
	}
	d.write(storage.CondemnedKey, string(data))
	require.ElementsMatch(t, []string{marked, listed}, slices.Collect(maps.Keys(d.list())))
	return d, marked, listed
}

// TestListOfVersion01 is understood by cleaners and by those who name things, as
// that version meant it: shards are upgraded one after another.
func TestListOfVersion01(t *testing.T) {
	bubble(t, "a cleaner goes on with it", func(t *testing.T) {
		d, marked, listed := previousDepot(t, nil)
		mine, err := storage.NewCleaner(d, "other", nil).Turn(t.Context())
		require.NoError(t, err)
		require.False(t, mine, "another shard's leader cleans")
		mine, err = d.cleaner.Turn(t.Context())
		require.NoError(t, err)
		require.True(t, mine)
		require.Zero(t, d.passes(ripe-11*time.Minute))
		require.Equal(t, 1, d.passes(20*time.Minute), "what is not marked has its time from now on")
		require.False(t, d.stands(listed))
		require.Equal(t, 1, d.passes(ripe), "what is marked is put on anew")
		require.False(t, d.stands(marked))
	})
	bubble(t, "what is named comes off it, what is marked only after a minute", func(t *testing.T) {
		d, marked, listed := previousDepot(t, nil)
		c := storage.NewContents(d, nil, nil)
		require.NoError(t, c.Claim(t.Context(), listed))
		require.ErrorIs(t, c.Claim(t.Context(), marked), nstance.Unavailable)
		require.Equal(t, []string{marked}, slices.Collect(maps.Keys(d.list())))
		wait(time.Minute)
		require.NoError(t, c.Claim(t.Context(), marked))
		require.Empty(t, d.list())
	})
	bubble(t, "and so does that version read what is written now", func(t *testing.T) {
		d, _, _ := previousDepot(t, nil)
		obj, err := d.Get(t.Context(), storage.CondemnedKey)
		require.NoError(t, err)
		was := fields(t, obj.Data)
		d.pass()
		obj, err = d.Get(t.Context(), storage.CondemnedKey)
		require.NoError(t, err)
		require.Equal(t, was, fields(t, obj.Data))
	})
	bubble(t, "what a later version adds to it stays", func(t *testing.T) {
		d, marked, listed := previousDepot(t, map[string]any{"format": "1.9", "later": "a"})
		require.NoError(t, storage.NewContents(d, nil, nil).Claim(t.Context(), listed))
		obj, err := d.Get(t.Context(), storage.CondemnedKey)
		require.NoError(t, err)
		require.Contains(t, string(obj.Data), `"format":"1.9"`)
		require.Equal(t, 2, strings.Count(string(obj.Data), `"later":"a"`), "of the list, and of what is still on it")
		_, err = d.cleaner.Clean(t.Context(), retention)
		require.ErrorIs(t, err, nstance.Invalid, "and an older cleaner removes nothing")
		require.True(t, d.stands(marked))
	})
}

// fields names the fields of a list and of what is on it, with the kinds of their
// values.
func fields(t *testing.T, data []byte) map[string]string {
	var doc map[string]any
	require.NoError(t, json.Unmarshal(data, &doc))
	out := map[string]string{}
	kinds := func(prefix string, m map[string]any) {
		for name, v := range m {
			switch v.(type) {
			case string:
				out[prefix+name] = "string"
			case bool:
				out[prefix+name] = "bool"
			case float64:
				out[prefix+name] = "number"
			default:
				out[prefix+name] = "object"
			}
		}
	}
	kinds("", doc)
	for _, on := range doc["keys"].(map[string]any) {
		kinds("keys.", on.(map[string]any))
	}
	return out
}
