package storage_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/storage"
)

// TestRootKeepsTheOwner: what root writes into a store of another user belongs to that user,
// whose server reads it.
func TestRootKeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const nobody = 65534
	for _, made := range []string{"by root", "by its user"} {
		t.Run(made, func(t *testing.T) {
			home := t.TempDir()
			dir := filepath.Join(home, "storage")
			if made == "by its user" {
				_, err := storage.OpenDir(dir, nil)
				require.NoError(t, err)
			}
			require.NoError(t, filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
				require.NoError(t, err)
				return os.Chown(path, nobody, nobody)
			}))
			s, err := storage.OpenDir(dir, nil)
			require.NoError(t, err)
			v, err := s.PutIfAbsent(t.Context(), "a/b/c", []byte("1"))
			require.NoError(t, err)
			_, err = s.PutIfMatch(t.Context(), "a/b/c", []byte("2"), v)
			require.NoError(t, err)
			require.NoError(t, filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
				require.NoError(t, err)
				info, err := d.Info()
				require.NoError(t, err)
				require.EqualValues(t, nobody, info.Sys().(*syscall.Stat_t).Uid, path)
				require.EqualValues(t, nobody, info.Sys().(*syscall.Stat_t).Gid, path)
				return nil
			}))
		})
	}
}
