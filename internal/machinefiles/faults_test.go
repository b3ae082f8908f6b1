package machinefiles_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/rules"
)

// faults decides which operations on the receive directory fail.
type faults struct {
	fail   func(op string) error // asked before each; nil: none fails
	ops    []string              // all, such as "chmod .nstance/v2"
	opened []*os.File
}

func (f *faults) before(op, name string) error {
	f.ops = append(f.ops, op+" "+name)
	if f.fail == nil {
		return nil
	}
	if err := f.fail(op + " " + name); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

// A faultyDirectory is a directory with faults.
type faultyDirectory struct {
	machinefiles.Directory
	*faults
}

func (d faultyDirectory) Chmod(name string, mode fs.FileMode) error {
	return errOr(d.before("chmod", name), func() error { return d.Directory.Chmod(name, mode) })
}

func (d faultyDirectory) Link(oldName, newName string) error {
	return errOr(d.before("link", newName), func() error { return d.Directory.Link(oldName, newName) })
}

func (d faultyDirectory) Lstat(name string) (fs.FileInfo, error) {
	return valueOr(d.before("lstat", name), func() (fs.FileInfo, error) { return d.Directory.Lstat(name) })
}

func (d faultyDirectory) MkdirAll(name string, mode fs.FileMode) error {
	return errOr(d.before("mkdir", name), func() error { return d.Directory.MkdirAll(name, mode) })
}

func (d faultyDirectory) Open(name string) (*os.File, error) {
	return d.use(name, func() (*os.File, error) { return d.Directory.Open(name) })
}

func (d faultyDirectory) OpenFile(name string, flag int, mode fs.FileMode) (*os.File, error) {
	open := func() (*os.File, error) { return d.Directory.OpenFile(name, flag, mode) }
	if flag&(os.O_WRONLY|os.O_RDWR) != 0 {
		return d.use(name, open)
	}
	file, err := valueOr(d.before("read", name), open)
	if err == nil {
		d.opened = append(d.opened, file)
	}
	return file, err
}

// use opens a file. Where "use" fails, the file is opened and everything else with it fails.
func (d faultyDirectory) use(name string, open func() (*os.File, error)) (*os.File, error) {
	file, err := valueOr(d.before("open", name), open)
	if err != nil {
		return nil, err
	}
	d.opened = append(d.opened, file)
	if d.before("use", name) != nil {
		return file, file.Close()
	}
	return file, nil
}

func (d faultyDirectory) Readlink(name string) (string, error) {
	return valueOr(d.before("readlink", name), func() (string, error) { return d.Directory.Readlink(name) })
}

func (d faultyDirectory) Remove(name string) error {
	return errOr(d.before("remove", name), func() error { return d.Directory.Remove(name) })
}

func (d faultyDirectory) RemoveAll(name string) error {
	return errOr(d.before("remove all", name), func() error { return d.Directory.RemoveAll(name) })
}

func (d faultyDirectory) Rename(oldName, newName string) error {
	return errOr(d.before("rename to", newName), func() error { return d.Directory.Rename(oldName, newName) })
}

func (d faultyDirectory) Stat(name string) (fs.FileInfo, error) {
	return valueOr(d.before("stat", name), func() (fs.FileInfo, error) { return d.Directory.Stat(name) })
}

func (d faultyDirectory) Symlink(oldName, newName string) error {
	return errOr(d.before("symlink", newName), func() error { return d.Directory.Symlink(oldName, newName) })
}

func errOr(err error, do func() error) error {
	if err != nil {
		return err
	}
	return do()
}

func valueOr[T any](err error, do func() (T, error)) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return do()
}

// withFaults starts the agent anew, with a directory whose operations may fail. It returns what
// the start reports.
func (b *testStore) withFaults(fail func(op string) error) (*faults, error) {
	require.NoError(b, b.store.Close())
	f := &faults{fail: fail}
	o := machinefiles.WithDirectory(b.o, func(path string) (machinefiles.Directory, error) {
		root, err := os.OpenRoot(path)
		return faultyDirectory{root, f}, err
	})
	applied := o.Applied
	o.Applied = func(hash string) error {
		return errOr(f.before("record", hash), func() error { return applied(hash) })
	}
	b.store = machinefiles.New(o)
	b.Cleanup(func() { b.store.Close() })
	err := b.store.Open()
	if text := b.store.LastError(); text != "" {
		err = errors.Join(err, errors.New(text))
	}
	return f, err
}

// requireClean: nothing is left of former sets, of transfers, and of links that lead nowhere.
func (b *testStore) requireClean() {
	b.Helper()
	for pattern, want := range map[string]int{"v*": 1, "incoming/*": 0, "next": 0} {
		found, err := filepath.Glob(b.path(rules.ReservedFileDir, pattern))
		require.NoError(b, err)
		require.Len(b, found, want, pattern)
	}
	entries, err := os.ReadDir(b.o.Dir)
	require.NoError(b, err)
	for _, e := range entries {
		_, err := os.Stat(b.path(e.Name()))
		require.NoError(b, err)
	}
}

// A change from one set to another.
var (
	before = tree{"a": "1", "d/keep": "k", "gone": "g", "mode": "m"}
	after  = tree{"a": "two pieces", "d/keep": "k", "d/new": "n", "mode": "m"}
)

func newSet() machinefiles.Set {
	s := set("h2", after)
	for i, f := range s.Files {
		if f.Path == "mode" {
			s.Files[i].Mode = 0o600
		}
	}
	return s
}

// inMemory moves an empty store into memory, if the machine has such a directory: the many syncs of
// a test with hundreds of stores take minutes on a disk.
func (b *testStore) inMemory() {
	dir, err := os.MkdirTemp("/dev/shm", "machinefiles-")
	if err != nil {
		return
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	b.o.Dir = filepath.Join(dir, "recv")
	b.reopen()
}

// beforeChange puts the first set into use; then one of its files is changed on the machine.
func beforeChange(t *testing.T) *testStore {
	b := newTestStore(t)
	b.inMemory()
	b.apply("h1", before)
	require.NoError(b, os.Remove(b.path("a")))
	require.NoError(b, os.WriteFile(b.path("a"), []byte("changed"), 0o600))
	b.recordedHashes = nil
	return b
}

// inForce returns the hash of the set that readers see, which is always all of one.
func (b *testStore) inForce() string {
	b.Helper()
	seen := b.tree()
	if maps.Equal(seen, after) {
		return "h2"
	}
	if seen["a"] == "changed" {
		seen["a"] = before["a"]
	}
	require.Equal(b, before, seen)
	return "h1"
}

// TestErrorAtEachOperation: an operation of the file system that fails is reported by its name,
// or the set is in place without it. Readers see all of the old set or all of the new one, and the
// same process goes on with the next set.
func TestErrorAtEachOperation(t *testing.T) {
	causes := []error{syscall.ENOSPC, syscall.EACCES, syscall.EIO}
	for n, more := 0, true; more; n++ {
		more = false
		cause, failed := causes[n%len(causes)], ""
		t.Run(fmt.Sprintf("%d, %v", n, cause), func(t *testing.T) {
			b, count, healed := beforeChange(t), 0, false
			f, err := b.withFaults(func(op string) error {
				if strings.HasPrefix(op, "re") || strings.HasPrefix(op, "symlink") {
					b.inForce()
				}
				if count++; count-1 == n {
					failed, more = op, true
				}
				if op == failed && !healed {
					return cause
				}
				return nil
			})
			_, sendErr := b.send(newSet(), after)
			if sendErr == nil {
				require.Equal(t, "h2", b.inForce())
				require.Equal(t, "h2", b.recordedHashes[len(b.recordedHashes)-1], failed)
				require.Equal(t, fs.FileMode(0o600), b.mode("mode"))
				require.Empty(t, b.store.LastError())
			} else {
				require.Equal(t, sendErr.Error(), b.store.LastError())
				require.ErrorIs(t, b.store.Commit("h2"), nstance.Conflict, "the transfer has ended")
				if b.inForce() == "h1" {
					require.NotContains(t, b.recordedHashes, "h2", "a hash is recorded last")
				}
			}
			if all := errors.Join(err, sendErr); all != nil {
				requireCause(t, all, failed, cause)
			} else {
				require.True(t, onlyReads(failed), "%s failed, and nothing was reported", failed)
			}
			if errors.Is(sendErr, cause) {
				require.Equal(t, map[bool]nstance.Code{true: nstance.Denied, false: nstance.Internal}[errors.Is(cause, fs.ErrPermission)], nstance.CodeOf(sendErr))
			}
			healed = true
			b.apply("h2", after)
			require.Empty(t, b.store.LastError())
			b.requireClean()
			require.NoError(t, b.store.Close())
			for _, file := range f.opened {
				require.ErrorIs(t, file.Close(), os.ErrClosed, "%s stays open", file.Name())
			}
		})
	}
}

// onlyReads reports whether an operation changes nothing.
func onlyReads(op string) bool {
	return op == "" || slices.Contains([]string{"read", "stat", "lstat", "readlink"}, strings.Fields(op)[0])
}

// requireCause: an error says which operation failed, and why.
func requireCause(t *testing.T, err error, failed string, cause error) {
	t.Helper()
	kind, name, _ := strings.Cut(strings.Replace(failed, " all ", "-all ", 1), " ")
	require.ErrorContains(t, err, path.Base(name), failed)
	switch {
	case kind == "use":
		require.ErrorContains(t, err, "closed", failed)
	case kind != "read" || path.Base(name) == "manifest.json": // without a file in use, its content may be missed later
		require.ErrorContains(t, err, cause.Error(), failed)
	}
}

// TestCrashAtEachOperation ends the agent at each operation.
func TestCrashAtEachOperation(t *testing.T) {
	crash := errors.New("crash")
	for n, crashed := 0, true; crashed; n++ {
		crashed = false
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			b, count := beforeChange(t), 0
			_, err := b.withFaults(func(string) error {
				if count++; count <= n {
					return nil
				}
				crashed = true
				return crash
			})
			if err == nil {
				_, err = b.send(newSet(), after)
			}
			require.Equal(t, crashed, err != nil)
			seen := b.inForce()
			b.recordedHashes = nil
			b.reopen()
			require.Empty(t, b.store.LastError())
			require.Equal(t, seen, b.inForce(), "a restart changes nothing that is seen")
			require.Equal(t, []string{seen}, b.recordedHashes)
			_, err = os.Lstat(b.path("gone"))
			require.Equal(t, seen == "h2", errors.Is(err, fs.ErrNotExist), "the restart does the remaining steps")
			versions, err := filepath.Glob(b.path(rules.ReservedFileDir, "v*"))
			require.NoError(t, err)
			require.Len(t, versions, 1)
			b.apply("h2", after)
			b.requireClean()
		})
	}
}

// TestSetIsOnDiskBeforeUse: each directory of a set is synced once, when all is in it.
func TestSetIsOnDiskBeforeUse(t *testing.T) {
	b := newTestStore(t)
	f, err := b.withFaults(nil)
	require.NoError(t, err)
	b.apply("h1", tree{"a": "1", "d/e/x": "x", "d/e/y": "y", "d/z": "z"})
	version := path.Join(rules.ReservedFileDir, "v1")
	synced := slices.Index(f.ops, "use "+version+"/manifest.json") + 1
	used := slices.Index(f.ops, "rename to "+rules.ReservedFileDir+"/current")
	require.Less(t, synced, used)
	var dirs []string
	for _, op := range f.ops[synced:used] {
		if name, ok := strings.CutPrefix(op, "use "); ok {
			dirs = append(dirs, name)
		}
	}
	require.ElementsMatch(t, []string{version, version + "/files", version + "/files/d", version + "/files/d/e", rules.ReservedFileDir, "."}, dirs)
}

// TestUnreadableFileIsReplaced: not even an empty file is taken for unchanged if it cannot be read.
func TestUnreadableFileIsReplaced(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"empty": ""})
	require.NoError(t, os.WriteFile(b.path("empty"), []byte("changed"), 0o640))
	_, err := b.withFaults(func(op string) error {
		if op == "read "+rules.ReservedFileDir+"/v1/files/empty" {
			return syscall.EIO
		}
		return nil
	})
	require.NoError(t, err)
	b.apply("h2", tree{"empty": ""})
}

// TestStatusWithErrors: a file that cannot be read has no digest, until it can.
func TestStatusWithErrors(t *testing.T) {
	for n, more := 0, true; more; n++ {
		more = false
		b, count, failing := beforeChange(t), 0, false
		_, err := b.withFaults(func(string) error {
			if count++; failing && count-1 == n {
				more = true
				return syscall.EIO
			}
			return nil
		})
		require.NoError(t, err)
		b.recordedHashes = nil
		count, failing = 0, true
		got := b.store.Status()
		require.Len(t, got, len(before))
		without := 0
		for _, st := range got {
			if st.Digest == "" {
				without++
				continue
			}
			require.Equal(t, machinefiles.Digest([]byte(before[st.Path])), st.Digest)
		}
		require.Equal(t, map[bool]int{true: 1, false: 0}[more], without)
		count, failing = 0, false
		for _, st := range b.store.Status() {
			require.Equal(t, machinefiles.Digest([]byte(before[st.Path])), st.Digest)
		}
	}
}
