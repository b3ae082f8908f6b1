package storage_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

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
