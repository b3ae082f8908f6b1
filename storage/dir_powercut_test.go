//go:build unix

package storage_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// disk holds what a power cut would leave: each file and folder as it was when it was
// last synced. Files and folders are identified by their inodes.
type disk struct {
	files   map[uint64][]byte
	folders map[uint64]map[string]uint64
}

func newDisk() *disk {
	return &disk{files: map[uint64][]byte{}, folders: map[uint64]map[string]uint64{}}
}

func inode(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }

// sync replaces (*os.File).Sync.
func (d *disk) sync(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() {
		d.files[inode(info)], err = os.ReadFile(f.Name())
		return err
	}
	names := map[string]uint64{}
	entries, err := os.ReadDir(f.Name())
	for _, e := range entries {
		info, ierr := e.Info()
		if ierr != nil {
			return ierr
		}
		names[e.Name()] = inode(info)
	}
	d.folders[inode(info)] = names
	return err
}

// restore recreates a folder as it is after a power cut.
func (d *disk) restore(t *testing.T, folder uint64, path string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(path, 0o700))
	for name, ino := range d.folders[folder] {
		at := filepath.Join(path, name)
		if data, isFile := d.files[ino]; isFile {
			require.NoError(t, os.WriteFile(at, data, 0o600))
		} else if _, isFolder := d.folders[ino]; isFolder || name == ".tmp" {
			d.restore(t, ino, at)
		} else {
			require.NoError(t, os.WriteFile(at, nil, 0o600), "its name is there, its content is not")
		}
	}
}

// all returns the contents of a store.
func all(t *testing.T, s storage.Store) map[string]string {
	t.Helper()
	found := map[string]string{}
	for e, err := range s.List(t.Context(), "", "") {
		require.NoError(t, err)
		obj, err := s.Get(t.Context(), e.Key)
		require.NoError(t, err)
		found[e.Key] = string(obj.Data)
	}
	return found
}

// TestDirPowerCut: a confirmed call survives a power cut right after it.
func TestDirPowerCut(t *testing.T) {
	disk, parent := newDisk(), t.TempDir()
	info, err := os.Stat(parent)
	require.NoError(t, err)
	d, err := storage.OpenDirSynced(filepath.Join(parent, "new", "store"), disk.sync)
	require.NoError(t, err)

	want := map[string]string{}
	survives := func(what string) {
		t.Helper()
		require.Equal(t, want, all(t, d), what)
		left := t.TempDir()
		disk.restore(t, inode(info), left)
		s, err := storage.OpenDir(filepath.Join(left, "new", "store"), &storage.DirOptions{Existing: true})
		require.NoError(t, err, what)
		require.Equal(t, want, all(t, s), "%s, then a power cut", what)
	}
	survives("a new store")

	// Between rename and sync of the folder, the old or the new object may remain, complete.
	replaced := ""
	d.SetStep(func(step string) error {
		if step == "settle" && replaced != "" {
			raw, err := os.ReadFile(replaced)
			require.NoError(t, err)
			info, err := os.Stat(replaced)
			require.NoError(t, err)
			require.Equal(t, string(raw), string(disk.files[inode(info)]), "the content is on the disk before the name")
		}
		return nil
	})
	put := func(key, data string, v storage.Version) storage.Version {
		t.Helper()
		replaced = filepath.Join(parent, "new", "store", filepath.FromSlash(key))
		var err error
		if v == "" {
			v, err = d.PutIfAbsent(t.Context(), key, []byte(data))
		} else {
			v, err = d.PutIfMatch(t.Context(), key, []byte(data), v)
		}
		require.NoError(t, err)
		want[key] = data
		return v
	}
	first := put("instance/z1/default/web/a.json", "1", "")
	survives("the first object of several new folders")
	second := put("instance/z1/default/web/b.json", "1", "")
	survives("another object in a folder")
	first = put("instance/z1/default/web/a.json", "2", first)
	survives("a replaced object")
	put("top", "1", "")
	survives("an object in the store's own folder")
	replaced = ""
	require.NoError(t, d.DeleteIfMatch(t.Context(), "instance/z1/default/web/b.json", second))
	delete(want, "instance/z1/default/web/b.json")
	survives("a removed object")
	put("instance/z1/default/web/a.json", "3", first)
	survives("an object replaced again")
}

// TestDirHonoursContext: a call whose context ends before its effect changes nothing, at
// every step, also while another call holds the lock.
func TestDirHonoursContext(t *testing.T) {
	for _, when := range []string{"temp", "rename", "remove"} {
		for range 20 { // select chooses at random between two ready cases
			d := openDir(t, t.TempDir())
			v, err := d.PutIfAbsent(t.Context(), "a", []byte("old"))
			require.NoError(t, err)
			for name, call := range map[string]func(context.Context) error{
				"put if match":    func(c context.Context) error { _, err := d.PutIfMatch(c, "a", []byte("new"), v); return err },
				"put if absent":   func(c context.Context) error { _, err := d.PutIfAbsent(c, "b/c", []byte("new")); return err },
				"delete if match": func(c context.Context) error { return d.DeleteIfMatch(c, "a", v) },
			} {
				if (when == "remove") != (name == "delete if match") {
					continue
				}
				c, stop := context.WithCancel(t.Context())
				d.SetStep(func(step string) error {
					if step == when {
						stop()
					}
					return nil
				})
				err := call(c)
				stop()
				require.ErrorIs(t, err, nstance.Unavailable, "%s, cancelled at %s", name, when)
				d.SetStep(nil)
				require.Equal(t, map[string]string{"a": "old"}, all(t, d), "%s, cancelled at %s", name, when)
			}
		}
	}
}
