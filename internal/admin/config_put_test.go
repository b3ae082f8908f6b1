package admin_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// runOn runs nstance-admin on a store that is no directory.
func runOn(t *testing.T, store storage.Store, stdin string, env map[string]string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	open := func(context.Context, string) (storage.Store, error) { return store, nil }
	code := admin.Main(t.Context(), open, append(args, "--storage", "s3://bucket"), strings.NewReader(stdin), &out, &errs, func(k string) string { return env[k] })
	return result{code: code, out: out.String(), errors: errs.String()}
}

func content(t *testing.T, s storage.Store, key string) string {
	t.Helper()
	obj, err := s.Get(t.Context(), key)
	require.NoError(t, err)
	return string(obj.Data)
}

// TestConfigPutOverChanges: a configuration that cannot be read, or was changed since it was
// read, is not replaced.
func TestConfigPutOverChanges(t *testing.T) {
	t.Parallel()
	const stored = `{"cluster": {"id": "prod"}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`
	file, key := filepath.Join(t.TempDir(), "a.jsonc"), layout.ConfigKey("a")
	require.NoError(t, os.WriteFile(file, []byte(stored+"\n// mine"), 0o600))
	put := func(beneath storage.Store, fault storagetest.Fault) result {
		faulty := storagetest.NewFaulty(beneath)
		faulty.Inject(fault)
		return runOn(t, faulty, "", nil, "config", "put", file)
	}
	for skip := 0; ; skip++ {
		beneath := storage.NewMemory()
		_, err := beneath.PutIfAbsent(t.Context(), key, []byte(stored))
		require.NoError(t, err)
		r := put(beneath, storagetest.Fault{Op: storagetest.Get, Skip: skip})
		if r.code == 0 {
			require.Positive(t, skip)
			require.Contains(t, content(t, beneath, key), "// mine")
			break
		}
		require.Equal(t, 5, r.code, r.errors)
		require.Equal(t, stored, content(t, beneath, key))
	}
	for op, before := range map[storagetest.Op]string{storagetest.PutIfMatch: stored, storagetest.PutIfAbsent: ""} {
		beneath := storage.NewMemory()
		var version storage.Version
		if before != "" {
			var err error
			version, err = beneath.PutIfAbsent(t.Context(), key, []byte(before))
			require.NoError(t, err)
		}
		r := put(beneath, storagetest.Fault{Op: op, Prefix: key, Pass: true, Do: func() {
			var err error
			if before == "" {
				_, err = beneath.PutIfAbsent(t.Context(), key, []byte(stored+"\n// another's"))
			} else {
				_, err = beneath.PutIfMatch(t.Context(), key, []byte(stored+"\n// another's"), version)
			}
			if err != nil {
				t.Error(err)
			}
		}})
		require.Equal(t, 6, r.code, r.errors)
		require.Contains(t, content(t, beneath, key), "// another's")
	}
}

func TestConfigPut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, file := "file://"+filepath.Join(dir, "storage"), filepath.Join(dir, "a.jsonc")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	stored := func() string {
		data, err := os.ReadFile(filepath.Join(dir, "storage", "config", "a.jsonc"))
		require.NoError(t, err)
		return string(data)
	}
	put := func(want int, says string, more ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		code := admin.Main(t.Context(), storage.Open, append([]string{"config", "put", file, "--storage", store}, more...), strings.NewReader(""), &out, &errs, func(string) string { return "" })
		require.Equal(t, want, code, "%s%s", &out, &errs)
		require.Contains(t, out.String()+errs.String(), says)
	}
	const first = `{"cluster": {"id": "prod"}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`
	write(first)
	put(0, "config/a.jsonc would be written", "--dry-run")
	require.NoDirExists(t, filepath.Join(dir, "storage"))
	put(0, "written: start a server with --shard a")
	require.Contains(t, stored(), first)
	put(0, "nothing was changed")
	write(first + "\n// changed")
	put(0, "would be written", "--dry-run")
	require.NotContains(t, stored(), "// changed")
	put(0, "written")
	require.Contains(t, stored(), "// changed")
	write(`{"cluster": {"id": "other"}, "shard": {"id": "b", "provider": {"kind": "sim"}}}`)
	put(6, "this storage is of cluster prod")
	write(`{`)
	put(2, "a.jsonc")
}
