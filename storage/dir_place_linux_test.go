package storage_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/storage"
)

// TestDirLocation: a directory keeps its location when it is moved, and a copy has another one.
func TestDirLocation(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string {
		d, err := storage.OpenDir(filepath.Join(root, name), nil)
		require.NoError(t, err)
		require.Equal(t, d.Location(), storage.LocationOf(storage.ReadOnly(d)))
		return d.Location()
	}
	first := at("first")
	require.NotEmpty(t, first)
	require.Equal(t, first, at("first"))
	require.NoError(t, os.Rename(filepath.Join(root, "first"), filepath.Join(root, "moved")))
	require.Equal(t, first, at("moved"))
	require.NoError(t, os.CopyFS(filepath.Join(root, "copy"), os.DirFS(filepath.Join(root, "moved"))))
	require.NotEqual(t, first, at("copy"))
	require.Empty(t, storage.LocationOf(storage.NewMemory()), "which says nothing")
}
