package storage_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestDirOnTmpfs: tmpfs may omit files from a listing of their folder while other files
// are renamed.
func TestDirOnTmpfs(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store {
		root, err := os.MkdirTemp("/dev/shm", "nstance-test-")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
		return openDir(t, root)
	})
}

// TestDirWithPipe: a named pipe in the place of an object is not waited for.
func TestDirWithPipe(t *testing.T) {
	root := t.TempDir()
	s := openDir(t, root)
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600))
	_, err := s.Get(t.Context(), "pipe")
	require.ErrorIs(t, err, nstance.Unavailable)
	_, err = s.PutIfAbsent(t.Context(), "pipe", nil)
	require.ErrorIs(t, err, nstance.Unavailable)
	for e, err := range s.List(t.Context(), "", "") {
		require.NoError(t, err)
		require.Equal(t, storage.Entry{Key: "pipe"}, e)
	}
	_, err = s.PutIfAbsent(t.Context(), "other", nil)
	require.NoError(t, err, "the lock is free")
}
