package admin_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/storage"
)

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
	put := func(want int, says string) {
		t.Helper()
		var out, errs bytes.Buffer
		code := admin.Main(t.Context(), storage.Open, []string{"config", "put", file, "--storage", store}, strings.NewReader(""), &out, &errs, func(string) string { return "" })
		require.Equal(t, want, code, "%s%s", &out, &errs)
		require.Contains(t, out.String()+errs.String(), says)
	}
	const first = `{"cluster": {"id": "prod"}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`
	write(first)
	put(0, "written: start a server with --shard a")
	require.Contains(t, stored(), first)
	put(0, "nothing was changed")
	write(first + "\n// changed")
	put(0, "written")
	require.Contains(t, stored(), "// changed")
	write(`{"cluster": {"id": "other"}, "shard": {"id": "b", "provider": {"kind": "sim"}}}`)
	put(6, "this storage is of cluster prod")
	write(`{`)
	put(2, "a.jsonc")
}
