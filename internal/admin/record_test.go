package admin_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/storage"
)

func TestRecordRepairRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run("record", "repair", "k", "--remove", "--yes", "-o", "json")
	require.Equal(t, "8", message(t, r.out, &apiv1.RepairRecordResponse{}).GetVersion())
	require.Equal(t, []string{`repair k@7 "" remove=true dry=true`, `repair k@7 "" remove=true dry=false`}, w.done())
	file := filepath.Join(t.TempDir(), "new")
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	require.Zero(t, w.run("record", "repair", "k", "--from", file, "--dry-run").code)
	require.Equal(t, []string{`repair k@7 "{}" remove=false dry=true`}, w.done())
	for name, args := range map[string][]string{
		"from a pipe, unasked": {"record", "repair", "k", "--from", "-"},
		"neither":              {"record", "repair", "k"},
		"both":                 {"record", "repair", "k", "--remove", "--from", file},
		"no such file":         {"record", "repair", "k", "--from", file + "x", "--yes"},
		"unasked":              {"record", "repair", "k", "--remove"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, 2, w.runWith("{}", args...).code)
			for _, call := range w.done() {
				require.Contains(t, call, "dry=true")
			}
		})
	}
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	r = w.run("record", "repair", "k", "--from", file, "--yes")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.errors, "--remove")
	require.NoError(t, os.WriteFile(file, make([]byte, 8<<20+1), 0o600))
	r = w.run("record", "repair", "k", "--from", file, "--yes")
	require.Equal(t, 2, r.code, "a part of it must not be written")
	require.Contains(t, r.errors, "too large")
	require.Empty(t, w.done())
}

// TestRepairWithoutServer works in the storage itself.
func TestRepairWithoutServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newWorld(t)
	url := "file://" + dir
	_, err := storage.OpenDir(dir, nil)
	require.NoError(t, err)
	key := filepath.Join(dir, "state", "eu1a.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(key), 0o700))
	require.NoError(t, os.WriteFile(key, []byte("{"), 0o600))
	good := filepath.Join(t.TempDir(), "good")
	require.NoError(t, os.WriteFile(good, []byte(`{"format":"1.0","epoch":4,"write_id":"x","groups":{}}`), 0o600))

	r := w.run("record", "show", "state/eu1a.json", "--storage", url)
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "Broken:")
	require.Zero(t, w.run("record", "repair", "state/eu1a.json", "--storage", url, "--from", good, "--yes").code)
	require.Contains(t, w.run("record", "show", "state/eu1a.json", "--storage", url).out, "\n  \"epoch\": 4,\n", "as people read it")
	r = w.run("record", "show", "state/eu1a.json", "--storage", url, "-o", "json")
	require.Zero(t, r.code, r.errors)
	got := message(t, r.out, &apiv1.GetRecordResponse{})
	require.Empty(t, got.GetError())
	require.Contains(t, string(got.GetData()), `"epoch":4`)
	require.Equal(t, 6, w.run("record", "repair", "state/eu1a.json", "--storage", url, "--remove", "--yes").code, "it can be read now")
	require.Equal(t, 3, w.run("record", "show", "state/other.json", "--storage", url).code)

	nowhere := filepath.Join(dir, "nowhere")
	for _, args := range [][]string{{"show"}, {"repair", "--remove", "--dry-run"}} {
		args = append([]string{"record", args[0], "state/eu1a.json", "--storage", "file://" + nowhere}, args[1:]...)
		require.Equal(t, 3, w.run(args...).code, args)
		require.NoDirExists(t, nowhere, "who only looks makes nothing")
	}
}
