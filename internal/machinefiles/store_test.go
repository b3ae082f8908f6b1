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
				err = b.store.Write(digest, 0, []byte(content[:half]))
			}
			if err == nil {
				err = b.store.Write(digest, int64(half), []byte(content[half:]))
			}
			if err != nil {
				return nil, err
			}
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

// TestCommitOfAnotherSet: what is put into use is what was announced last, once.
func TestCommitOfAnotherSet(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	require.ErrorIs(t, b.store.Commit("h1"), nstance.Conflict, "it is in use")
	announce := func() {
		_, err := b.store.Begin(set("h2", tree{}))
		require.NoError(t, err)
	}
	announce()
	require.ErrorIs(t, b.store.Commit("h1"), nstance.Conflict)
	announce()
	_, err := b.store.Begin(set("h3", tree{"/x": "x"}))
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorIs(t, b.store.Commit("h2"), nstance.Conflict, "one that is not permitted takes its place, too")
	announce()
	require.NoError(t, b.store.Close())
	require.ErrorIs(t, b.store.Commit("h2"), nstance.Conflict, "it ends with the directory")
	require.Equal(t, []string{"h1"}, b.recordedHashes)
	require.Equal(t, tree{"a": "1"}, b.tree())
	b.apply("h2", tree{})
}

// TestDirectoryIsMadeAnew: a store opens its directory again after Close, and finds what is there
// now.
func TestDirectoryIsMadeAnew(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	require.NoError(t, b.store.Close())
	require.Len(t, b.store.Status(), 1)
	require.NoError(t, b.store.Close())
	require.NoError(t, os.RemoveAll(b.o.Dir))
	require.Empty(t, b.store.Status())
	require.NoError(t, b.store.Open())
	require.NoError(t, os.Mkdir(b.o.Dir, 0o700))
	require.Empty(t, b.store.Status())
	require.Empty(t, b.store.LastError())
	b.apply("h2", tree{"a": "2"})
}

// TestOwnDirectoryCannotBeMade: not even a set without files is taken for applied.
func TestOwnDirectoryCannotBeMade(t *testing.T) {
	b := newTestStore(t)
	require.NoError(t, os.Mkdir(b.o.Dir, 0o700))
	require.NoError(t, os.WriteFile(b.path(rules.ReservedFileDir), nil, 0o600))
	require.ErrorContains(t, b.store.Open(), rules.ReservedFileDir)
	_, err := b.store.Begin(machinefiles.Set{Hash: "h1"})
	require.ErrorContains(t, err, rules.ReservedFileDir)
	require.ErrorIs(t, b.store.Commit("h1"), nstance.Conflict)
	require.NoError(t, os.Remove(b.path(rules.ReservedFileDir)))
	b.apply("h1", tree{"a": "1"})
}

// TestCloseError: that a directory cannot be closed is said.
func TestCloseError(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	b.o = machinefiles.WithDirectory(b.o, func(path string) (machinefiles.Directory, error) {
		root, err := os.OpenRoot(path)
		return closeFails{root}, err
	})
	b.reopen()
	require.ErrorIs(t, b.store.Close(), fs.ErrPermission)
}

type closeFails struct{ machinefiles.Directory }

func (d closeFails) Close() error { return errors.Join(fs.ErrPermission, d.Directory.Close()) }

func TestOptions(t *testing.T) {
	b := newTestStore(t)
	b.o.Mode, b.o.KeysMode, b.o.Applied = 0o600, 0o600, nil
	b.reopen()
	_, err := b.send(set("h1", tree{"d/a": "1"}), tree{"d/a": "1"})
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), b.mode("d/a"))
	require.Equal(t, fs.FileMode(0o700), b.mode("d"))
	require.NoError(t, b.store.Keys("web1", []string{"web"})[0].Err)
	info, err := os.Stat(filepath.Join(b.o.KeysDir, "web.pem"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
}

// TestLeftoversAreRemoved: whatever earlier processes have left in the agent's own directory.
func TestLeftoversAreRemoved(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	for _, name := range []string{"v2", "v3", "v8"} {
		require.NoError(t, os.MkdirAll(b.path(rules.ReservedFileDir, name, "files"), 0o700))
	}
	b.reopen()
	for _, name := range []string{"b", "c", "d"} {
		require.NoError(t, os.WriteFile(b.path(rules.ReservedFileDir, "incoming", name), nil, 0o600))
	}
	_, err := b.store.Begin(set("h2", tree{}))
	require.NoError(t, err)
	b.requireClean()
}

// TestUnchangedFileIsKept: a file with the content and mode of before is the same file.
func TestUnchangedFileIsKept(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1", "d/b": "2"})
	was, err := os.Stat(b.path("a"))
	require.NoError(t, err)
	b.apply("h2", tree{"a": "1", "d/b": "3"})
	is, err := os.Stat(b.path("a"))
	require.NoError(t, err)
	require.True(t, os.SameFile(was, is))
}

func TestBadTransfers(t *testing.T) {
	const content = "content"
	for name, write := range map[string]func(s *machinefiles.Store, digest string) error{
		"another content than announced": func(s *machinefiles.Store, d string) error { return s.Write(d, 0, []byte("CONTENT")) },
		"more than announced": func(s *machinefiles.Store, d string) error {
			err := s.Write(d, 0, []byte("content!"))
			require.ErrorContains(t, err, "received 8 bytes at offset 0")
			return err
		},
		"a gap": func(s *machinefiles.Store, d string) error { return s.Write(d, 1, []byte("ontent")) },
		"a repetition": func(s *machinefiles.Store, d string) error {
			require.NoError(t, s.Write(d, 0, []byte("con")))
			return s.Write(d, 0, []byte("con"))
		},
		"nothing": func(s *machinefiles.Store, d string) error { return s.Write(d, 0, nil) },
		"content that was not requested": func(s *machinefiles.Store, _ string) error {
			return s.Write(machinefiles.Digest([]byte("x")), 0, []byte("x"))
		},
		"a piece of another content": func(s *machinefiles.Store, d string) error {
			const other = "another"
			wanted, err := s.Begin(set("h2", tree{"a": content, "b": other}))
			require.NoError(t, err)
			require.NoError(t, s.Write(wanted[0], 0, []byte("con")))
			err = s.Write(wanted[1], 3, []byte("t"))
			require.Equal(t, nstance.Invalid, nstance.CodeOf(err))
			return err
		},
		"a name that leads elsewhere": func(s *machinefiles.Store, _ string) error {
			return s.Write("sha256:../../x", 0, []byte("x"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestStore(t)
			b.apply("h1", tree{"a": "1"})
			wanted, err := b.store.Begin(set("h2", tree{"a": content}))
			require.NoError(t, err)
			require.ErrorIs(t, write(b.store, wanted[0]), nstance.Invalid)
			require.NotEmpty(t, b.store.LastError())
			require.ErrorIs(t, b.store.Write(wanted[0], 0, []byte(content)), nstance.Invalid, "any error ends the transfer")
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
	good := machinefiles.File{Path: "a", Digest: machinefiles.Digest([]byte("1")), Size: 1, Mode: 0o600, Key: "web"}
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
	require.NoError(t, os.Symlink("a", b.path("link")))
	for _, path := range []string{"a", "dir/x", "link"} {
		_, err := b.store.Begin(set("h1", tree{path: "1"}))
		require.Equal(t, nstance.Conflict, nstance.CodeOf(err))
		require.ErrorContains(t, err, "is not managed by the server")
		require.Contains(t, b.store.LastError(), "is not managed by the server")
	}
	require.Equal(t, tree{"a": "mine", "link": "mine"}, b.tree())
	_, err := b.send(set("h1", tree{"b": "1"}), tree{"b": "1"})
	require.NoError(t, err)
	require.Equal(t, tree{"a": "mine", "link": "mine", "b": "1"}, b.tree(), "and stays, whatever else comes")
	failed := set("h2", tree{"b": "1"})
	failed.Files = append(failed.Files, machinefiles.File{Path: "a", Digest: machinefiles.Digest([]byte("2")), Size: 1, Error: "no such secret"})
	sent, err := b.send(failed, tree{"b": "1"})
	require.NoError(t, err, "nothing takes its place")
	require.Empty(t, sent)
	require.Equal(t, int64(1), failed.Files[1].Size, "the caller's set is not changed")
	require.Equal(t, nstance.FileStatus{Path: "a", Error: "no such secret"}, b.store.Status()[1], "nor is it taken for it")
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
	require.NoError(t, os.WriteFile(path, []byte(`{"files":{"a":{}},"format":2}`), 0o600))
	b.reopen()
	require.Contains(t, b.store.LastError(), "format 2, which a newer agent wrote", "even where it is nothing that we know")
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
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "recv")))
	_, err = s.Begin(set("h", tree{"a": "1"}))
	require.Equal(t, nstance.Internal, nstance.CodeOf(err), "not that it does not exist")
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

// TestCachedDigest: another size, time or file is another content, and one that is read anew
// leaves the others as they are.
func TestCachedDigest(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1", "b": "1"})
	same := b.store.Status()
	info, err := os.Stat(b.path("a"))
	require.NoError(t, err)
	write := func(path, content string) {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o640))
		require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	}
	write(b.path("a"), "longer")
	require.Equal(t, machinefiles.Digest([]byte("longer")), b.store.Status()[0].Digest)
	write(b.path("other"), "LONGER")
	require.NoError(t, os.Rename(b.path("other"), b.path("a")))
	require.Equal(t, machinefiles.Digest([]byte("LONGER")), b.store.Status()[0].Digest)
	require.Equal(t, same[1], b.store.Status()[1])
}
