package machinefiles_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/rules"
)

// A testStore is a store in a temporary directory.
type testStore struct {
	*testing.T
	dir            string
	o              machinefiles.Options
	store          *machinefiles.Store
	recordedHashes []string // as they were recorded
}

func newTestStore(t *testing.T) *testStore {
	b := &testStore{T: t, dir: t.TempDir()}
	b.o = machinefiles.Options{
		Dir: filepath.Join(b.dir, "recv"), KeysDir: filepath.Join(b.dir, "keys"),
		Applied: func(hash string) error { b.recordedHashes = append(b.recordedHashes, hash); return nil },
	}
	b.reopen()
	return b
}

// reopen is what a restart of the agent does.
func (b *testStore) reopen() {
	if b.store != nil {
		require.NoError(b, b.store.Close())
	}
	b.store = machinefiles.New(b.o)
	require.NoError(b, b.store.Open())
	b.Cleanup(func() { b.store.Close() })
}

// tree is the content of files by path.
type tree map[string]string

// set announces files in the order of their paths.
func set(hash string, want tree) machinefiles.Set {
	s := machinefiles.Set{Hash: hash}
	for path, content := range want {
		s.Files = append(s.Files, machinefiles.File{Path: path, Digest: machinefiles.Digest([]byte(content)), Size: int64(len(content))})
	}
	slices.SortFunc(s.Files, func(a, b machinefiles.File) int { return strings.Compare(a.Path, b.Path) })
	return s
}

// send transfers a set whole and returns what had to be sent.
func (b *testStore) send(s machinefiles.Set, want tree) (sent []string, err error) {
	wanted, err := b.store.Begin(s)
	if err != nil {
		return nil, err
	}
	for _, digest := range wanted {
		for path, content := range want {
			if machinefiles.Digest([]byte(content)) != digest {
				continue
			}
			sent = append(sent, path)
			half := len(content) / 2
			if half > 0 {
				require.NoError(b, b.store.Write(digest, 0, []byte(content[:half])))
			}
			require.NoError(b, b.store.Write(digest, int64(half), []byte(content[half:])))
			break
		}
	}
	slices.Sort(sent)
	return sent, b.store.Commit(s.Hash)
}

func (b *testStore) apply(hash string, want tree) (sent []string) {
	b.Helper()
	sent, err := b.send(set(hash, want), want)
	require.NoError(b, err)
	require.Equal(b, want, b.tree())
	require.Equal(b, hash, b.recordedHashes[len(b.recordedHashes)-1])
	return sent
}

// tree returns the receive directory as its readers see it.
func (b *testStore) tree() tree {
	out := tree{}
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := os.ReadDir(filepath.Join(b.o.Dir, dir))
		require.NoError(b, err)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			info, err := os.Stat(filepath.Join(b.o.Dir, path))
			switch {
			case path == rules.ReservedFileDir || err != nil: // a link that leads nowhere is no file
			case info.IsDir():
				walk(path)
			default:
				data, err := os.ReadFile(filepath.Join(b.o.Dir, path))
				require.NoError(b, err)
				out[path] = string(data)
			}
		}
	}
	walk("")
	return out
}

func (b *testStore) path(elem ...string) string {
	return filepath.Join(append([]string{b.o.Dir}, elem...)...)
}

func (b *testStore) mode(path string) fs.FileMode {
	info, err := os.Stat(b.path(path))
	require.NoError(b, err)
	return info.Mode().Perm()
}

func TestAddChangeRemoveFiles(t *testing.T) {
	b := newTestStore(t)
	require.Empty(t, b.store.Status())
	first := tree{"a": "1", "app/app.env": "A=1\n", "app/conf.d/x": "x", "empty": ""}
	require.Equal(t, []string{"a", "app/app.env", "app/conf.d/x"}, b.apply("h1", first), "nothing is sent for an empty file")
	require.Equal(t, fs.FileMode(0o640), b.mode("a"))
	require.Equal(t, fs.FileMode(0o750), b.mode("app"))
	require.Equal(t, fs.FileMode(0o750), b.mode("app/conf.d"))
	require.Equal(t, []nstance.FileStatus{
		{Path: "a", Digest: machinefiles.Digest([]byte("1"))}, {Path: "app/app.env", Digest: machinefiles.Digest([]byte("A=1\n"))},
		{Path: "app/conf.d/x", Digest: machinefiles.Digest([]byte("x"))}, {Path: "empty", Digest: machinefiles.Digest(nil)},
	}, b.store.Status())

	require.Equal(t, []string{"app/app.env", "new"}, b.apply("h2", tree{"a": "1", "app/app.env": "A=2\n", "new": "n"}), "only what changed is sent")
	require.Empty(t, b.apply("h3", tree{"moved": "n", "copy": "n"}), "a content that is there under another name is not sent")
	require.Empty(t, b.apply("h4", tree{}))
	entries, err := os.ReadDir(b.o.Dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "only the agent's own directory is left")
	require.Equal(t, []string{"h1", "h2", "h3", "h4"}, b.recordedHashes)
	versions, err := filepath.Glob(b.path(rules.ReservedFileDir, "v*"))
	require.NoError(t, err)
	require.Len(t, versions, 1, "no version but the one in use is kept")
}

func TestModes(t *testing.T) {
	b := newTestStore(t)
	s := set("h1", tree{"a": "1"})
	s.Files[0].Mode = 0o600
	_, err := b.send(s, tree{"a": "1"})
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), b.mode("a"))
	old, err := os.Open(b.path("a"))
	require.NoError(t, err)
	defer old.Close()
	require.Empty(t, b.apply("h2", tree{"a": "1"}))
	require.Equal(t, fs.FileMode(0o640), b.mode("a"))
	info, err := old.Stat()
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), "the file of the former set is another")
}

// TestCrash ends the agent after each step of a commit.
func TestCrash(t *testing.T) {
	before, after := tree{"a": "1", "d/keep": "k", "gone": "g"}, tree{"a": "2", "d/keep": "k", "d/new": "n", "top": "t"}
	var labels []string
	for n := 0; ; n++ {
		crashed := ""
		t.Run(fmt.Sprintf("at step %d", n), func(t *testing.T) {
			b := newTestStore(t)
			b.apply("h1", before)
			b.recordedHashes = nil
			steps := 0
			plain := b.o
			b.o = machinefiles.WithSteps(b.o, func(label string) error {
				if steps++; steps-1 == n {
					crashed = label
					return machinefiles.ErrCrash
				}
				return nil
			})
			b.reopen()
			b.recordedHashes = nil
			_, err := b.send(set("h2", after), after)
			if crashed == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, machinefiles.ErrCrash)
			seen := b.tree()
			swapped := slices.Contains([]string{"swap", "unlink", "hash"}, crashed)
			if swapped {
				require.Equal(t, after, seen)
			} else {
				require.Equal(t, before, seen)
				require.Empty(t, b.recordedHashes, "a hash is recorded last")
			}

			b.o = plain
			b.recordedHashes = nil
			b.reopen()
			require.Equal(t, seen, b.tree(), "a restart changes nothing that is seen")
			require.Equal(t, map[bool][]string{false: {"h1"}, true: {"h2"}}[swapped], b.recordedHashes, "and the hash is that of the set in use")
			_, err = os.Lstat(b.path("gone"))
			require.Equal(t, swapped, os.IsNotExist(err), "what is left to do is done")
			b.apply("h2", after)
		})
		if crashed == "" {
			break
		}
		labels = append(labels, crashed)
	}
	require.Equal(t, []string{"file", "file", "file", "file", "manifest", "links", "swap", "unlink", "hash"}, labels)
}

// TestErrorAtEachStep: after an error either no file has changed, or all have, and the same
// process goes on with the next set.
func TestErrorAtEachStep(t *testing.T) {
	before, after := tree{"a": "1", "d/keep": "k", "gone": "g"}, tree{"a": "2", "d/keep": "k", "d/new": "n", "top": "t"}
	for n, label := range []string{"file", "file", "file", "file", "manifest", "links", "swap", "unlink", "hash"} {
		t.Run(fmt.Sprintf("%d, %s", n, label), func(t *testing.T) {
			b := newTestStore(t)
			steps := -1
			b.o = machinefiles.WithSteps(b.o, func(string) error {
				if steps--; steps == -1 {
					return errors.New("disk full")
				}
				return nil
			})
			b.reopen()
			b.apply("h1", before)
			steps = n
			_, err := b.send(set("h2", after), after)
			require.ErrorContains(t, err, "disk full")
			require.ErrorIs(t, err, nstance.Internal)
			require.Contains(t, b.store.LastError(), "disk full")
			if n > 5 {
				require.Equal(t, after, b.tree())
			} else {
				require.Equal(t, before, b.tree())
				require.Equal(t, []string{"h1"}, b.recordedHashes)
			}
			if n < 5 {
				require.NoDirExists(t, b.path(rules.ReservedFileDir, "v2"), "what was staged is removed")
			}
			b.apply("h2", after)
			require.Empty(t, b.store.LastError())
			b.apply("h3", before)
		})
	}
}

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

// TestBadCurrentLink: a link to the version in use that is none is said, and nothing is removed
// because of it.
func TestBadCurrentLink(t *testing.T) {
	for _, target := range []string{"elsewhere", "v0", "v-1", "v"} {
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

// TestSizes: the limits themselves are permitted.
func TestSizes(t *testing.T) {
	b := newTestStore(t)
	s := machinefiles.Set{Hash: "h"}
	for i := range int(filelimit.SetSize / filelimit.Size) {
		s.Files = append(s.Files, machinefiles.File{Path: fmt.Sprintf("f%d", i), Digest: machinefiles.Digest([]byte{byte(i)}), Size: filelimit.Size})
	}
	_, err := b.store.Begin(s)
	require.NoError(t, err)
	s.Files = append(s.Files, machinefiles.File{Path: "failed", Error: "no such secret", Size: 1})
	_, err = b.store.Begin(s)
	require.NoError(t, err, "a file without content takes no room")
	s.Files = append(s.Files, machinefiles.File{Path: "more", Digest: machinefiles.Digest([]byte("x")), Size: 1})
	_, err = b.store.Begin(s)
	require.ErrorIs(t, err, nstance.Invalid)
}

func TestInterruptedTransfer(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	want := tree{"a": "long content", "b": "other"}
	s := set("h2", want)
	wanted, err := b.store.Begin(s)
	require.NoError(t, err)
	require.Len(t, wanted, 2)
	require.NoError(t, b.store.Write(wanted[0], 0, []byte("long content")))
	require.NoError(t, b.store.Write(wanted[1], 0, []byte("oth")))
	require.ErrorIs(t, b.store.Commit("h2"), nstance.Conflict, "not all has come")
	require.Equal(t, tree{"a": "1"}, b.tree(), "nothing is half applied")

	b.reopen()
	wanted, err = b.store.Begin(s)
	require.NoError(t, err)
	require.Equal(t, []string{machinefiles.Digest([]byte("other"))}, wanted, "what came whole does not come again")
	_, err = b.store.Begin(set("h3", tree{"c": "x"}))
	require.NoError(t, err, "a newer set takes the place of one that is not committed")
	require.ErrorIs(t, b.store.Commit("h2"), nstance.Conflict)
	require.Equal(t, []string{"a", "b"}, b.apply("h4", want), "and what it does not need is swept away")
}

func TestBadTransfers(t *testing.T) {
	const content = "content"
	for name, write := range map[string]func(s *machinefiles.Store, digest string) error{
		"another content than announced": func(s *machinefiles.Store, d string) error { return s.Write(d, 0, []byte("CONTENT")) },
		"more than announced":            func(s *machinefiles.Store, d string) error { return s.Write(d, 0, []byte("content!")) },
		"a gap":                          func(s *machinefiles.Store, d string) error { return s.Write(d, 1, []byte("ontent")) },
		"a repetition": func(s *machinefiles.Store, d string) error {
			require.NoError(t, s.Write(d, 0, []byte("con")))
			return s.Write(d, 0, []byte("con"))
		},
		"nothing": func(s *machinefiles.Store, d string) error { return s.Write(d, 0, nil) },
		"content that was not requested": func(s *machinefiles.Store, _ string) error {
			return s.Write(machinefiles.Digest([]byte("x")), 0, []byte("x"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestStore(t)
			b.apply("h1", tree{"a": "1"})
			wanted, err := b.store.Begin(set("h2", tree{"a": content}))
			require.NoError(t, err)
			require.ErrorIs(t, write(b.store, wanted[0]), nstance.Invalid)
			require.NotEmpty(t, b.store.LastError())
			require.ErrorIs(t, b.store.Commit("h2"), nstance.Conflict)
			require.Equal(t, tree{"a": "1"}, b.tree())
			b.apply("h2", tree{"a": content})
			require.Empty(t, b.store.LastError())
		})
	}
	t.Run("without announcement", func(t *testing.T) {
		b := newTestStore(t)
		require.ErrorIs(t, b.store.Write(machinefiles.Digest([]byte("x")), 0, []byte("x")), nstance.Invalid)
		require.ErrorIs(t, b.store.Commit("h"), nstance.Conflict)
	})
}

func TestBadSets(t *testing.T) {
	good := machinefiles.File{Path: "a", Digest: machinefiles.Digest([]byte("1")), Size: 1}
	change := func(f func(*machinefiles.File)) machinefiles.Set {
		one := good
		f(&one)
		return machinefiles.Set{Hash: "h", Files: []machinefiles.File{one}}
	}
	many, big := machinefiles.Set{Hash: "h"}, machinefiles.Set{Hash: "h"}
	for i := range filelimit.Files + 1 {
		f := good
		f.Path = fmt.Sprintf("f%d", i)
		many.Files = append(many.Files, f)
	}
	for i := range 9 {
		big.Files = append(big.Files, machinefiles.File{Path: fmt.Sprintf("f%d", i), Digest: machinefiles.Digest([]byte{byte(i)}), Size: filelimit.Size})
	}
	for name, s := range map[string]machinefiles.Set{
		"out of the directory":  change(func(f *machinefiles.File) { f.Path = "../a" }),
		"an absolute path":      change(func(f *machinefiles.File) { f.Path = "/etc/passwd" }),
		"the agent's own":       change(func(f *machinefiles.File) { f.Path = ".nstance/current" }),
		"open to strangers":     change(func(f *machinefiles.File) { f.Mode = 0o644 }),
		"executable":            change(func(f *machinefiles.File) { f.Mode = 0o700 }),
		"no digest":             change(func(f *machinefiles.File) { f.Digest = "" }),
		"a digest of sorts":     change(func(f *machinefiles.File) { f.Digest = "sha256:../../x" }),
		"a digest in capitals":  change(func(f *machinefiles.File) { f.Digest = strings.ToUpper(f.Digest) }),
		"too large":             change(func(f *machinefiles.File) { f.Size = filelimit.Size + 1 }),
		"a digest too short":    change(func(f *machinefiles.File) { f.Digest = f.Digest[:len(f.Digest)-2] }),
		"a bare digest":         change(func(f *machinefiles.File) { f.Digest = strings.TrimPrefix(f.Digest, "sha256:") }),
		"no hexadecimal":        change(func(f *machinefiles.File) { f.Digest = f.Digest[:len(f.Digest)-1] + "x" }),
		"less than nothing":     change(func(f *machinefiles.File) { f.Size = -1 }),
		"a key outside":         change(func(f *machinefiles.File) { f.Key = "../x" }),
		"a path twice":          {Hash: "h", Files: []machinefiles.File{good, good}},
		"a file below a file":   {Hash: "h", Files: []machinefiles.File{good, {Path: "a/b/c", Digest: good.Digest, Size: 1}}},
		"too many":              many,
		"too large as a whole":  big,
		"an error out of bound": {Hash: "h", Files: []machinefiles.File{{Path: "/x", Error: "no"}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestStore(t)
			_, err := b.store.Begin(s)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorIs(t, b.store.Commit("h"), nstance.Conflict)
		})
	}
}

func TestFileWithError(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1", "b": "2", "c": "3"})
	b.recordedHashes = nil
	want := tree{"a": "1", "b": "new"}
	s := set("h2", want)
	s.Files = append(s.Files, machinefiles.File{Path: "c", Error: "no such secret"}, machinefiles.File{Path: "d", Error: "no such secret"})
	_, err := b.send(s, want)
	require.NoError(t, err)
	require.Equal(t, tree{"a": "1", "b": "new", "c": "3"}, b.tree(), "what is there stays, all else goes on")
	require.Empty(t, b.recordedHashes, "and the hash does not advance")
	require.Equal(t, []nstance.FileStatus{
		{Path: "a", Digest: machinefiles.Digest([]byte("1"))}, {Path: "b", Digest: machinefiles.Digest([]byte("new"))},
		{Path: "c", Digest: machinefiles.Digest([]byte("3")), Error: "no such secret"}, {Path: "d", Error: "no such secret"},
	}, b.store.Status())
	b.reopen()
	require.Empty(t, b.recordedHashes)
	require.Equal(t, []string{"d"}, b.apply("h2", tree{"a": "1", "b": "new", "c": "3", "d": "4"}))
}

func TestLocalChangesAreReverted(t *testing.T) {
	want := tree{"a": "1", "d/x": "x"}
	for name, corrupt := range map[string]func(b *testStore) error{
		"written to in place": func(b *testStore) error { return os.WriteFile(b.path("a"), []byte("changed"), 0o640) },
		"replaced by a file": func(b *testStore) error {
			require.NoError(b, os.WriteFile(b.path("new"), []byte("changed"), 0o640))
			return os.Rename(b.path("new"), b.path("a"))
		},
		"removed":         func(b *testStore) error { return os.Remove(b.path("a")) },
		"removed beneath": func(b *testStore) error { return os.Remove(b.path("d", "x")) },
		"led elsewhere": func(b *testStore) error {
			require.NoError(b, os.Remove(b.path("a")))
			return os.Symlink("/etc/passwd", b.path("a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestStore(t)
			b.apply("h1", want)
			well := b.store.Status()
			require.NoError(t, corrupt(b))
			require.NotEqual(t, well, b.store.Status(), "it is seen")
			b.apply("h1", want)
			require.Equal(t, well, b.store.Status())
		})
	}
}

func TestForeignFilesAreKept(t *testing.T) {
	b := newTestStore(t)
	require.NoError(t, os.Mkdir(b.o.Dir, 0o750))
	require.NoError(t, os.WriteFile(b.path("a"), []byte("mine"), 0o600))
	require.NoError(t, os.Mkdir(b.path("dir"), 0o700))
	for _, path := range []string{"a", "dir/x"} {
		_, err := b.store.Begin(set("h1", tree{path: "1"}))
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "is not managed by the server")
		require.Contains(t, b.store.LastError(), "is not managed by the server")
	}
	require.Equal(t, tree{"a": "mine"}, b.tree())
	_, err := b.send(set("h1", tree{"b": "1"}), tree{"b": "1"})
	require.NoError(t, err)
	require.Equal(t, tree{"a": "mine", "b": "1"}, b.tree(), "and stays, whatever else comes")
}

func TestLinkOutOfDirectory(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	outside := t.TempDir()
	require.NoError(t, os.RemoveAll(b.path(rules.ReservedFileDir, "incoming")))
	require.NoError(t, os.Symlink(outside, b.path(rules.ReservedFileDir, "incoming")))
	_, err := b.store.Begin(set("h2", tree{"a": "2"}))
	require.Error(t, err)
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is ever written outside")
}

func TestDamagedManifest(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	require.NoError(t, os.WriteFile(b.path(rules.ReservedFileDir, "v1", "manifest.json"), []byte("{"), 0o600))
	b.recordedHashes = nil
	b.reopen()
	require.Contains(t, b.store.LastError(), "stay as they are")
	require.Equal(t, tree{"a": "1"}, b.tree(), "what is not known is not removed")
	require.Empty(t, b.recordedHashes)
	b.apply("h1", tree{"a": "1"})
	require.Empty(t, b.store.LastError())
}

func TestManifestOfNewerFormat(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	path := b.path(rules.ReservedFileDir, "v1", "manifest.json")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append([]byte(`{"format":2,`), data[1:]...), 0o600))
	b.reopen()
	require.Contains(t, b.store.LastError(), "format 2, which a newer agent wrote")
	require.Equal(t, tree{"a": "1"}, b.tree())
	b.apply("h2", tree{"a": "2"})
	require.Empty(t, b.store.LastError())
}

func TestHashRecordError(t *testing.T) {
	b := newTestStore(t)
	broken := true
	applied := b.o.Applied
	b.o.Applied = func(hash string) error {
		if broken {
			return fs.ErrPermission
		}
		return applied(hash)
	}
	b.reopen()
	_, err := b.send(set("h1", tree{"a": "1"}), tree{"a": "1"})
	require.ErrorIs(t, err, nstance.Denied)
	require.Contains(t, b.store.LastError(), "record the hash")
	broken = false
	b.reopen()
	require.Equal(t, []string{"h1"}, b.recordedHashes, "it is recorded at the next start")
}

func TestMissingDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "recv"), nil, 0o600))
	s := machinefiles.New(machinefiles.Options{Dir: filepath.Join(dir, "recv", "x"), KeysDir: dir})
	require.Error(t, s.Open())
	require.Empty(t, s.Status())
	_, err := s.Begin(set("h", tree{"a": "1"}))
	require.Error(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, "recv")))
	_, err = s.Begin(set("h", tree{"a": "1"}))
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestMachineWithoutFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "recv")
	var hashes []string
	s := machinefiles.New(machinefiles.Options{Dir: dir, KeysDir: dir, Applied: func(hash string) error { hashes = append(hashes, hash); return nil }})
	require.NoError(t, s.Open())
	wanted, err := s.Begin(machinefiles.Set{Hash: "h1"})
	require.NoError(t, err)
	require.Empty(t, wanted)
	require.NoError(t, s.Commit("h1"))
	require.Equal(t, []string{"h1"}, hashes, "its variables may have changed")
	require.Empty(t, s.Status())
	require.NoDirExists(t, dir)
}

func TestUnchangedFilesAreNotReread(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	well := b.store.Status()
	info, err := os.Stat(b.path("a"))
	require.NoError(t, err)
	f, err := os.OpenFile(b.path("a"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("2")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, os.Chtimes(b.path("a"), info.ModTime(), info.ModTime()))
	require.Equal(t, well, b.store.Status(), "by size and time it is the same file")
	require.NoError(t, os.Chtimes(b.path("a"), time.Now(), time.Now().Add(time.Second)))
	require.NotEqual(t, well, b.store.Status())
}
