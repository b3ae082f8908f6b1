package storage_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// tree returns the files of a directory with their modification times.
func tree(t *testing.T, dir string) map[string]time.Time {
	out := map[string]time.Time{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			out[path] = info.ModTime()
		}
		return err
	}))
	return out
}

func TestOpenReadOnly(t *testing.T) {
	dir := t.TempDir()
	d, err := storage.OpenDir(dir, nil)
	require.NoError(t, err)
	_, err = d.PutIfAbsent(t.Context(), "a/b", []byte("x"))
	require.NoError(t, err)
	left := filepath.Join(dir, ".tmp", "left") // removed by opening to write
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	require.NoError(t, os.Chtimes(left, time.Now().Add(-48*time.Hour), time.Now().Add(-48*time.Hour)))
	before := tree(t, dir)

	s, err := storage.OpenReadOnly(t.Context(), "file://"+dir)
	require.NoError(t, err)
	obj, err := s.Get(t.Context(), "a/b")
	require.NoError(t, err)
	require.Equal(t, "x", string(obj.Data))
	n := 0
	for _, err := range s.List(t.Context(), "a/", "") {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 1, n)
	_, err = s.PutIfAbsent(t.Context(), "c", nil)
	require.ErrorIs(t, err, nstance.Denied)
	_, err = s.PutIfMatch(t.Context(), "a/b", nil, obj.Version)
	require.ErrorIs(t, err, nstance.Denied)
	require.ErrorIs(t, s.DeleteIfMatch(t.Context(), "a/b", obj.Version), nstance.Denied)
	require.Equal(t, before, tree(t, dir))

	t.Run("makes no store", func(t *testing.T) {
		none := filepath.Join(t.TempDir(), "none")
		_, err := storage.OpenReadOnly(t.Context(), "file://"+none)
		require.ErrorIs(t, err, nstance.NotFound)
		require.NoDirExists(t, none)
	})
	t.Run("does not complete a store whose creation is in progress", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".nstance-store"), nil, 0o600))
		before := tree(t, dir)
		s, err := storage.OpenReadOnly(t.Context(), "file://"+dir)
		require.NoError(t, err)
		for _, err := range s.List(t.Context(), "", "") {
			require.NoError(t, err)
		}
		require.Equal(t, before, tree(t, dir))
	})
	t.Run("refuses what Open refuses", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".nstance-store"), []byte("nstance-store 2\n"), 0o600))
		for _, url := range []string{"file://" + dir, "file:///", "ftp://x", "file://host/x"} {
			_, err := storage.OpenReadOnly(t.Context(), url)
			require.ErrorIs(t, err, nstance.Invalid, url)
		}
	})
}
