package regular_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/regular"
)

func TestFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("file"), []byte("four"), 0o600))
	require.NoError(t, os.WriteFile(at("long"), []byte("fours"), 0o600))
	require.NoError(t, os.WriteFile(at("empty"), nil, 0o600))
	require.NoError(t, os.WriteFile(at("endless"), nil, 0o600))
	require.NoError(t, os.Truncate(at("endless"), 1<<40))
	require.NoError(t, syscall.Mkfifo(at("pipe"), 0o600))
	require.NoError(t, os.Mkdir(at("folder"), 0o700))
	require.NoError(t, os.Symlink("file", at("link")))
	require.NoError(t, os.Symlink("circle", at("circle")))

	for name, want := range map[string]string{"file": "four", "empty": "", "link": "four"} {
		data, err := regular.File(at(name), 4)
		require.NoError(t, err)
		require.Equal(t, want, string(data))
	}
	for name, want := range map[string]error{
		"long": nstance.Invalid, "endless": nstance.Invalid, "pipe": regular.Err, "folder": regular.Err,
		"missing": fs.ErrNotExist, "circle": syscall.ELOOP,
	} {
		_, err := regular.File(at(name), 4)
		require.ErrorIs(t, err, want, name)
		require.ErrorContains(t, err, at(name))
	}
	_, err := regular.File(os.DevNull, 4)
	require.ErrorIs(t, err, regular.Err)
}
