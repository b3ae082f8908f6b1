package machinefiles

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
	"github.com/nstance-go/nstance/internal/rules"
)

// Options say where files go. Dir and KeysDir are required.
type Options struct {
	Dir            string        // receive directory; made if need be
	Mode           fs.FileMode   // of files without a mode in their set; default 0640
	KeysDir        string        // directory of the keys; made if need be
	KeysMode       fs.FileMode   // of keys; default 0640
	CommandTimeout time.Duration // longest run of a set's command; default one minute

	// Applied records the hash of a set that is in place. It is called last,
	// and again by Open. Nil records nothing.
	Applied func(hash string) error

	openDir func(path string) (directory, error) // of tests in which an operation fails; nil: os.OpenRoot
}

// A directory is what a Store uses of an os.Root.
type directory interface {
	Chmod(name string, mode fs.FileMode) error
	Close() error
	Link(oldName, newName string) error
	Lstat(name string) (fs.FileInfo, error)
	MkdirAll(name string, mode fs.FileMode) error
	Open(name string) (*os.File, error)
	OpenFile(name string, flag int, mode fs.FileMode) (*os.File, error)
	Readlink(name string) (string, error)
	Remove(name string) error
	RemoveAll(name string) error
	Rename(oldName, newName string) error
	Stat(name string) (fs.FileInfo, error)
	Symlink(oldName, newName string) error
}

// A Store is a machine's files. It is safe for concurrent use; there is one
// transfer at a time. Its lock guards the directory, so it is held while the
// directory is read or changed, but not while a command runs.
type Store struct {
	o Options

	mu       sync.Mutex
	root     directory // nil until the directory could be opened
	version  int       // in use; 0: none
	inUse    Set       // the set of that version
	pending  bool      // the command has not succeeded yet
	incoming *transfer // announced, not committed; nil: none
	digests  map[string]cachedDigest

	commitError  string // why the last set is not in place; empty: it is
	commandError string // why its command failed; empty: it succeeded
}

// New returns a store. The directory is opened when it is first needed, because it
// may not exist yet.
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
	if o.openDir == nil {
		o.openDir = func(path string) (directory, error) { return os.OpenRoot(path) }
	}
	return &Store{o: o, digests: map[string]cachedDigest{}}
}

// Names within ReservedFileDir.
const (
	dirIncoming  = rules.ReservedFileDir + "/incoming"
	linkCurrent  = rules.ReservedFileDir + "/current"
	dirFiles     = "files"
	fileManifest = "manifest.json"
	filePending  = "pending" // exists until the command has succeeded
)

func versionDir(n int) string { return fmt.Sprintf("%s/v%d", rules.ReservedFileDir, n) }

// Open finishes an interrupted change of an earlier process: it makes the links,
// records the hash of the set in use, and removes every other version. Without a
// directory there is nothing to do. It may be repeated; the other methods open the
// directory until that has succeeded.
func (s *Store) Open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(); !errors.Is(err, nstance.NotFound) {
		return err
	}
	return nil
}

// create makes the directory and opens it.
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
	root, err := s.o.openDir(s.o.Dir)
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

// Close closes the directory.
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
	if err := s.makeDir(rules.ReservedFileDir); err != nil {
		return err
	}
	err := s.readCurrent()
	if err == nil {
		err = s.tidy()
	}
	if err == nil {
		err = s.record()
	}
	s.keepError(err) // Begin reads it again, and its set repairs what is damaged
	return nil
}

// record records the hash of the set in use if the set is complete.
func (s *Store) record() error {
	if s.inUse.Hash == "" || !s.inUse.complete() {
		return nil
	}
	return s.o.Applied(s.inUse.Hash)
}

// tidy makes the directory match the set in use: it creates missing links and
// removes other links and versions of the agent.
func (s *Store) tidy() error {
	for _, name := range s.inUse.names() {
		if err := s.link(name, true); err != nil {
			return err
		}
	}
	if err := s.unlink(s.inUse.names()); err != nil {
		return err
	}
	return s.prune()
}

// unlink removes links into the agent's own directory, except the names in keep.
func (s *Store) unlink(keep []string) error {
	names, err := s.list(".")
	if err != nil {
		return err
	}
	for _, name := range names {
		target, _ := s.root.Readlink(name)
		if !strings.HasPrefix(target, linkCurrent+"/") || slices.Contains(keep, name) {
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
	names, err := s.list(rules.ReservedFileDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := rules.ReservedFileDir + "/" + name
		if strings.HasPrefix(name, "v") && path != versionDir(s.version) {
			if err := s.root.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// link makes a top-level name point at the set in use. A file in place of one of
// our links is replaced, unless it is a directory. A name that was never ours is a
// Conflict.
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
		return nstance.Errorf(nstance.Conflict, "%s/%s exists and is not managed by the server: move it away", s.o.Dir, name)
	}
	return s.swap(want, name)
}

// swap makes name a link to target, atomically.
func (s *Store) swap(target, name string) error {
	const tmp = rules.ReservedFileDir + "/next"
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

// makeDir makes a directory that the readers of its files may search.
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

// classify classifies an error of the file system. Its message names the file.
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
