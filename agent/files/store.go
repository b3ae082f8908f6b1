package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// Options say where files go. Dir and KeysDir are required.
type Options struct {
	Dir            string        // receive directory; made if need be
	Mode           fs.FileMode   // of files that their set gives none; default 0640
	KeysDir        string        // directory of the keys; made if need be
	KeysMode       fs.FileMode   // of keys; default 0640
	CommandTimeout time.Duration // longest run of a set's command; default one minute

	// Applied records the hash of a set that is in place. It is called last,
	// and again by Open. Nil records nothing.
	Applied func(hash string) error

	step func(label string) error // called after each step, for crash tests
}

// A Store is a machine's files. It is safe for concurrent use, though transfers
// are one at a time. Its lock is held while the directory is changed or looked
// at, because that is what it guards; not while a command runs.
type Store struct {
	o Options

	mu       sync.Mutex
	root     *os.Root  // nil until the directory could be opened
	version  int       // in use; 0: none
	now      Set       // what it holds
	pending  bool      // the command is still to be run
	incoming *transfer // announced, not committed; nil: none
	seen     map[string]sighting
	trouble  string // why the last set is not in place; empty: it is
	said     string // what its command said; empty: it did well
}

// New returns a store. The directory is opened when it is first needed: it may
// not be there yet.
func New(o Options) *Store {
	if o.Mode == 0 {
		o.Mode = 0o640
	}
	if o.KeysMode == 0 {
		o.KeysMode = 0o640
	}
	if o.CommandTimeout <= 0 {
		o.CommandTimeout = time.Minute
	}
	if o.Applied == nil {
		o.Applied = func(string) error { return nil }
	}
	if o.step == nil {
		o.step = func(string) error { return nil }
	}
	return &Store{o: o, seen: map[string]sighting{}}
}

// Names within FilesOwn.
const (
	dirIncoming  = nstance.FilesOwn + "/incoming"
	linkCurrent  = nstance.FilesOwn + "/current"
	dirFiles     = "files"
	fileManifest = "manifest.json"
	filePending  = "pending" // there while the command is still to be run
)

func versionDir(n int) string { return fmt.Sprintf("%s/v%d", nstance.FilesOwn, n) }

// Open finishes what the end of an earlier process left: keys have their
// permission bits, the set in use has its links and its recorded hash, and what
// was not in use is gone. Where there is
// no directory there is nothing to finish. It may be repeated; the other methods
// call it as long as it has not succeeded.
func (s *Store) Open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	repaired := s.repairModes()
	if err := s.open(); !errors.Is(err, nstance.NotFound) {
		return errors.Join(repaired, err)
	}
	return repaired
}

// create opens the directory, and makes it before.
func (s *Store) create() error {
	if err := os.MkdirAll(s.o.Dir, dirMode(s.o.Mode)); err != nil {
		return classify(err)
	}
	return s.open()
}

// open fails with NotFound when there is no directory.
func (s *Store) open() error {
	if s.root != nil {
		return nil
	}
	root, err := os.OpenRoot(s.o.Dir)
	if err != nil {
		return classify(err)
	}
	s.root = root
	if err := s.recover(); err != nil {
		s.root = nil
		return errors.Join(classify(err), root.Close())
	}
	return nil
}

// Close lets go of the directory.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == nil {
		return nil
	}
	s.dropTransfer()
	root := s.root
	s.root = nil
	return root.Close()
}

func (s *Store) recover() error {
	if err := s.makeDir(nstance.FilesOwn); err != nil {
		return err
	}
	err := s.readCurrent()
	if err == nil {
		err = s.tidy()
	}
	if err == nil {
		err = s.record()
	}
	s.note(err) // the next set puts it right
	return nil
}

// record makes the hash of the set in use known, if it is complete.
func (s *Store) record() error {
	if s.now.Hash == "" || !s.now.complete() {
		return nil
	}
	return s.o.Applied(s.now.Hash)
}

// tidy makes the directory what the set in use says: its links and no others of
// ours, its version and no other.
func (s *Store) tidy() error {
	for _, name := range s.now.names() {
		if err := s.link(name, true); err != nil {
			return err
		}
	}
	if err := s.unlink(s.now.names()); err != nil {
		return err
	}
	return s.prune()
}

// unlink removes links into the agent's own directory that no name needs.
func (s *Store) unlink(keep []string) error {
	names, err := s.list(".")
	if err != nil {
		return err
	}
	for _, name := range names {
		target, err := s.root.Readlink(name)
		if err != nil || !strings.HasPrefix(target, linkCurrent+"/") || slices.Contains(keep, name) {
			continue
		}
		if err := s.root.Remove(name); err != nil {
			return err
		}
	}
	return s.sync(".")
}

// prune removes every version but the one in use.
func (s *Store) prune() error {
	names, err := s.list(nstance.FilesOwn)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := nstance.FilesOwn + "/" + name
		if strings.HasPrefix(name, "v") && path != versionDir(s.version) {
			if err := s.root.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// link makes a top-level name point at the set in use. What somebody has put in
// place of one of ours is replaced, unless it is a directory; what was never
// ours is in the way.
func (s *Store) link(name string, ours bool) error {
	want := linkCurrent + "/" + dirFiles + "/" + name
	info, err := s.root.Lstat(name)
	switch target, _ := s.root.Readlink(name); {
	case errors.Is(err, fs.ErrNotExist):
		return s.root.Symlink(want, name)
	case err != nil:
		return err
	case target == want:
		return nil
	case info.IsDir() || !ours:
		return nstance.Errorf(nstance.Conflict, "%s/%s is in the way: it is no file of the server's, move it", s.o.Dir, name)
	}
	return s.swap(want, name)
}

// swap makes name a link to target, atomically.
func (s *Store) swap(target, name string) error {
	const tmp = nstance.FilesOwn + "/next"
	if err := s.root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.root.Symlink(target, tmp); err != nil {
		return err
	}
	return s.root.Rename(tmp, name)
}

func (s *Store) list(dir string) ([]string, error) {
	d, err := s.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// makeDir makes a directory that those may search who may read the files in it.
func (s *Store) makeDir(path string) error {
	if err := s.root.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return s.root.Chmod(path, dirMode(s.o.Mode))
}

func dirMode(files fs.FileMode) fs.FileMode { return 0o700 | files&0o040 | files&0o040>>2 }

// sync makes what a directory lists durable.
func (s *Store) sync(dir string) error {
	d, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// classify gives what the file system says a code. Its messages name the file.
func classify(err error) error {
	if _, ok := errors.AsType[*nstance.Error](err); ok || err == nil {
		return err
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nstance.Errorf(nstance.Denied, "%w", err)
	case errors.Is(err, fs.ErrNotExist):
		return nstance.Errorf(nstance.NotFound, "%w", err)
	}
	return nstance.Errorf(nstance.Internal, "%w", err)
}
