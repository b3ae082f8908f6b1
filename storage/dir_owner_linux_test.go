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

// TestRootStaysInTheStore: the user of a store cannot have root write or give away anything
// else, whatever links are in it.
func TestRootStaysInTheStore(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const nobody = 65534
	for name, plant := range map[string]func(t *testing.T, dir, secret string){
		"its marker is a link": func(t *testing.T, dir, secret string) {
			require.NoError(t, os.Remove(filepath.Join(dir, ".nstance-store")))
			require.NoError(t, os.Symlink(filepath.Join(secret, "file"), filepath.Join(dir, ".nstance-store")))
		},
		"its temporary folder is a link": func(t *testing.T, dir, secret string) {
			require.NoError(t, os.Remove(filepath.Join(dir, ".tmp")))
			require.NoError(t, os.Symlink(secret, filepath.Join(dir, ".tmp")))
		},
		"a folder of objects is a link": func(t *testing.T, dir, secret string) {
			require.NoError(t, os.Symlink(secret, filepath.Join(dir, "a")))
		},
		"all of it is a link": func(t *testing.T, dir, secret string) {
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.Symlink(secret, dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			home, secret := t.TempDir(), t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(secret, "file"), nil, 0o600))
			dir := filepath.Join(home, "state", "storage")
			_, err := storage.OpenDir(dir, nil)
			require.NoError(t, err)
			plant(t, dir, secret)
			for _, path := range []string{filepath.Dir(dir), dir} {
				require.NoError(t, os.Lchown(path, nobody, nobody))
			}
			s, err := storage.OpenDir(dir, nil)
			if err == nil {
				_, err = s.PutIfAbsent(t.Context(), "a/b", []byte("1"))
			}
			require.Error(t, err)
			entries, err := os.ReadDir(secret)
			require.NoError(t, err)
			require.Len(t, entries, 1, "nothing was written there")
			for _, path := range []string{secret, filepath.Join(secret, "file")} {
				info, err := os.Stat(path)
				require.NoError(t, err)
				require.Zero(t, info.Sys().(*syscall.Stat_t).Uid, "nothing was given away")
			}
			text, err := os.ReadFile(filepath.Join(secret, "file"))
			require.NoError(t, err)
			require.Empty(t, text)
		})
	}
}
