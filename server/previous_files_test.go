package server_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
)

// The directory holds what else a server of version 0.1 left in storage: what it
// had found out, and which certificates it had issued. It is never written again.
const previousFiles = "testdata/v0.1-files"

// nowhere is an address that does not answer.
const nowhere = "http://127.0.0.1:1/userdata"

// lookups has an image that is looked for by its name, and user data at an address.
func lookups(size int, url string) string {
	return provisioned(size, `"image": "base", "userdata": {"source": "url", "content": "`+url+`"}, `,
		`"images": {"base": {"owner": "me", "name": "base-*"}}, `)
}

// issues has certificates issued.
func issues() string {
	return served(1, "", red, `"web": {}`, `"c": {"kind": "certificate", "certificate": "web"}`, "")
}

func TestMakePreviousFiles(t *testing.T) {
	if !*makePrevious {
		return // it stands, and must not change
	}
	p, url := newPage(t)
	p.says("of old {{.Nonce}}")
	w := newWorld(t, setup{cloud: simcloud.Options{Images: []simcloud.Image{{ID: "img-1", Owner: "me", Name: "base-1"}}}})
	keep := func(prefix string) {
		for e, err := range w.store.List(t.Context(), prefix, "") {
			require.NoError(t, err)
			obj, err := w.store.Get(t.Context(), e.Key)
			require.NoError(t, err)
			path := filepath.Join(previousFiles, filepath.FromSlash(e.Key))
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(obj.Data), url, nowhere)), 0o644))
		}
	}
	w.adopt(lookups(0, url))
	w.resolved("img-1")
	w.resolved(url)
	keep("resolved/")
	keep("fetched/")
	w.reload(issues())
	w.ready(w.machine(nstance.DefaultTenant)).taker().takes()
	keep("certlog/")
}

// previousObjects returns what is in the directory, by key.
func previousObjects(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(previousFiles, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		out[filepath.ToSlash(strings.TrimPrefix(path, previousFiles+string(filepath.Separator)))] = string(data)
		return err
	}))
	return out
}

// TestWhatVersion01FoundOut serves a new leader when nobody answers.
func TestWhatVersion01FoundOut(t *testing.T) {
	store := storage.NewMemory()
	for key, text := range previousObjects(t) {
		_, err := store.PutIfAbsent(t.Context(), key, []byte(text))
		require.NoError(t, err)
	}
	w := newWorld(t, setup{store: store, text: lookups(1, nowhere)})
	w.made(1, func(s nstance.MachineSpec) bool {
		return s.Image == "img-1" && strings.HasPrefix(string(s.UserData), "of old ")
	})
}

// TestLogOfCertificatesIsWrittenAsEver looks at what people's tools read.
func TestLogOfCertificatesIsWrittenAsEver(t *testing.T) {
	var was, is map[string]any
	for key, text := range previousObjects(t) {
		if strings.HasPrefix(key, "certlog/") {
			require.NoError(t, json.Unmarshal([]byte(text), &was))
		}
	}
	w := newWorld(t, setup{size: 1})
	w.reload(issues())
	id := w.machine(nstance.DefaultTenant)
	w.ready(id).taker().takes()
	require.NoError(t, json.Unmarshal([]byte(w.objects("certlog/s1/")[0]), &is))
	require.Equal(t, slices.Sorted(maps.Keys(was)), slices.Sorted(maps.Keys(is)))
	for field, old := range was {
		require.IsType(t, old, is[field], field)
	}
	require.Equal(t, string(id), is["instance"])
	require.Equal(t, was["tenant"], is["tenant"])
	for _, field := range []string{"time", "not_before", "not_after"} {
		_, err := time.Parse(time.RFC3339, is[field].(string))
		require.NoError(t, err)
	}
}

// TestLogOfCertificatesIsPruned by the days in its keys, which version 0.1 chose.
func TestLogOfCertificatesIsPruned(t *testing.T) {
	store := storage.NewMemory()
	for key, text := range previousObjects(t) {
		if !strings.HasPrefix(key, "certlog/") {
			continue
		}
		parts := strings.Split(key, "/")
		require.Contains(t, text, `"not_after":"`+parts[2], "the last one ends on the day in its key")
		for _, years := range []int{-3, 0} {
			parts[2] = time.Now().AddDate(years, 0, 0).Format(time.DateOnly)
			_, err := store.PutIfAbsent(t.Context(), strings.Join(parts, "/"), []byte(text))
			require.NoError(t, err)
		}
	}
	newWorld(t, setup{store: store, size: 1, shard: often})
	old := "certlog/s1/" + time.Now().AddDate(-2, 0, 0).Format(time.DateOnly)
	var left []string
	require.Eventually(t, func() bool {
		left = nil
		for e, err := range store.List(t.Context(), "certlog/s1/", "") {
			require.NoError(t, err)
			left = append(left, e.Key)
		}
		return left[0] > old
	}, eventually, 5*time.Millisecond)
	require.Len(t, left, 1, "what may still be asked about stays")
}
