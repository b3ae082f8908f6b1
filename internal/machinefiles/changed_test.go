package machinefiles_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/rules"
)

// TestForeignFileDuringTransfer: a file that comes into being where a set is about to go is
// left alone, and none of the set is put into use.
func TestForeignFileDuringTransfer(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"a file":      func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"a link":      func(path string) error { return os.Symlink("a", path) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestStore(t)
			b.apply("h1", tree{"a": "1"})
			want := tree{"a": "2", "b": "2", "c": "2"}
			wanted, err := b.store.Begin(set("h2", want))
			require.NoError(t, err)
			require.NoError(t, b.store.Write(wanted[0], 0, []byte("2")))
			require.NoError(t, create(b.path("b")))
			foreign := b.tree()
			require.ErrorIs(t, b.store.Commit("h2"), nstance.Conflict)
			require.Contains(t, b.store.LastError(), "move it away")
			require.Equal(t, foreign, b.tree())
			_, err = os.Lstat(b.path("c"))
			require.ErrorIs(t, err, fs.ErrNotExist, "no link is left over")
			require.Equal(t, []string{"h1"}, b.recordedHashes)
			require.NoError(t, os.Remove(b.path("b")))
			b.apply("h2", want)
		})
	}
}

// TestDirectoryInPlaceOfFile: what stands where a file of the set was is not deleted if it is a
// directory.
func TestDirectoryInPlaceOfFile(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	require.NoError(t, os.Remove(b.path("a")))
	require.NoError(t, os.Mkdir(b.path("a"), 0o700))
	require.NoError(t, os.WriteFile(b.path("a", "mine"), []byte("mine"), 0o600))
	require.Equal(t, []nstance.FileStatus{{Path: "a"}}, b.store.Status(), "it is no file")
	_, err := b.send(set("h2", tree{"a": "2"}), tree{"a": "2"})
	require.ErrorIs(t, err, nstance.Conflict)
	require.Equal(t, tree{"a/mine": "mine"}, b.tree())
	b.reopen()
	require.Contains(t, b.store.LastError(), "move it away")
	require.Equal(t, tree{"a/mine": "mine"}, b.tree())
}

// TestLargeFileIsNotRead: a file that has grown beyond what a set may hold has no digest.
func TestLargeFileIsNotRead(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	require.NoError(t, os.Truncate(b.path("a"), filelimit.Size+1))
	require.Equal(t, []nstance.FileStatus{{Path: "a"}}, b.store.Status())
	require.NoError(t, os.Truncate(b.path("a"), filelimit.Size))
	require.NotEmpty(t, b.store.Status()[0].Digest)
}

// TestNoFileInPlace: what is in the place of a file of the set, and is none that a set may hold,
// is neither waited for nor read, and the next set takes its place.
func TestNoFileInPlace(t *testing.T) {
	replace := map[string]func(path string) error{
		"pipe":     func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"endless":  func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
		"folder":   func(path string) error { return os.Mkdir(path, 0o700) },
		"outside":  func(path string) error { return os.Symlink("/dev/zero", path) },
		"circular": func(path string) error { return os.Symlink(filepath.Base(path), path) },
	}
	for kind, replace := range replace {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newTestStore(t)
			replaced := func() {
				path, err := filepath.EvalSymlinks(b.path("a"))
				require.NoError(t, err)
				require.NoError(t, os.Remove(path))
				require.NoError(t, replace(path))
				require.Equal(t, []nstance.FileStatus{{Path: "a"}}, b.store.Status())
			}
			b.apply("h1", tree{"a": "1"})
			replaced()
			b.apply("h2", tree{"a": "1", "b": "2"})
			b.apply("h3", tree{"a": "1"})
			replaced()
			s := set("h4", tree{"b": "2"})
			s.Files = append([]machinefiles.File{{Path: "a", Error: "its secret cannot be read"}}, s.Files...)
			_, err := b.send(s, tree{"b": "2"})
			require.NoError(t, err)
			require.Equal(t, tree{"b": "2"}, b.tree())
			b.reopen()
			b.apply("h5", tree{"a": "1"})
		})
	}
}

// TestBadCurrentLink: a link to the version in use that is none is said, and nothing is removed
// because of it.
func TestBadCurrentLink(t *testing.T) {
	for _, target := range []string{"elsewhere", "v0", "v-1", "v", "1", "v+1", "v01", "v99999999999999999999"} {
		t.Run(target, func(t *testing.T) {
			b := newTestStore(t)
			b.apply("h1", tree{"a": "1"})
			current := b.path(rules.ReservedFileDir, "current")
			require.NoError(t, os.Remove(current))
			require.NoError(t, os.Symlink(target, current))
			b.recordedHashes = nil
			b.reopen()
			require.Contains(t, b.store.LastError(), "is not a version directory: remove it")
			require.Empty(t, b.recordedHashes)
			require.DirExists(t, b.path(rules.ReservedFileDir, "v1"))
			require.NoError(t, os.Remove(current))
			b.reopen()
			b.apply("h2", tree{"a": "2"})
		})
	}
}

// TestChangedFileWithError: where the server cannot make a file that was changed on the machine,
// the changed one stays, in the new set as well.
func TestChangedFileWithError(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1", "b": "2"})
	require.NoError(t, os.WriteFile(b.path("b"), []byte("changed"), 0o640))
	s := set("h2", tree{"a": "new"})
	s.Files = append(s.Files, machinefiles.File{Path: "b", Error: "no such secret"})
	_, err := b.send(s, tree{"a": "new"})
	require.NoError(t, err)
	require.Equal(t, tree{"a": "new", "b": "changed"}, b.tree())
	require.Equal(t, []string{"h1"}, b.recordedHashes)
}

// TestEmptyFileWithError: so does one that was empty.
func TestEmptyFileWithError(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": ""})
	require.NoError(t, os.WriteFile(b.path("a"), []byte("changed"), 0o640))
	_, err := b.send(machinefiles.Set{Hash: "h2", Files: []machinefiles.File{{Path: "a", Error: "no such secret"}}}, nil)
	require.NoError(t, err)
	require.Equal(t, tree{"a": "changed"}, b.tree())
}

// TestRemovedFileWithError: where the server cannot make a file that was removed on the machine,
// all else goes on.
func TestRemovedFileWithError(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1", "d/b": "2", "d/c": "3"})
	require.NoError(t, os.Remove(b.path("d/b")))
	s := set("h2", tree{"a": "new", "d/c": "3"})
	s.Files = append(s.Files, machinefiles.File{Path: "d/b", Error: "no such secret"})
	_, err := b.send(s, tree{"a": "new"})
	require.NoError(t, err)
	require.Equal(t, tree{"a": "new", "d/c": "3"}, b.tree())
	require.Equal(t, nstance.FileStatus{Path: "d/b", Error: "no such secret"}, b.store.Status()[2])
	b.apply("h2", tree{"a": "new", "d/b": "2", "d/c": "3"})
}

// TestContentChangedOnDisk: a content that was received and then damaged is not put into use.
func TestContentChangedOnDisk(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	wanted, err := b.store.Begin(set("h2", tree{"a": "content"}))
	require.NoError(t, err)
	require.NoError(t, b.store.Write(wanted[0], 0, []byte("content")))
	received, err := filepath.Glob(b.path(rules.ReservedFileDir, "incoming", "*"))
	require.NoError(t, err)
	require.Len(t, received, 1)
	require.NoError(t, os.WriteFile(received[0], []byte("CONTENT"), 0o600))
	require.ErrorContains(t, b.store.Commit("h2"), "content of a is damaged")
	require.Equal(t, tree{"a": "1"}, b.tree())
	require.Equal(t, []string{"a"}, b.apply("h2", tree{"a": "content"}), "it is sent again")
}
