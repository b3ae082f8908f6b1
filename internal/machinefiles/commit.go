package machinefiles

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/rules"
)

// Commit puts the announced set into use. Nil means that it is in place and, if
// it is complete, its hash recorded. On an error either no file has changed, or
// all have, and the next set or Open does the remaining steps.
func (s *Store) Commit(hash string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.commit(hash)
	s.dropTransfer()
	if s.commitError = ""; err != nil {
		s.commitError = err.Error()
	}
	return classify(err)
}

func (s *Store) commit(hash string) error {
	t := s.incoming
	switch {
	case t == nil || t.set.Hash != hash:
		return nstance.Errorf(nstance.Conflict, "no set %s has been announced", hash)
	case len(t.missing) > 0:
		return nstance.Errorf(nstance.Conflict, "%d contents of the set have not been received", len(t.missing))
	}
	next := s.keepFailed(t.set)
	if s.root == nil {
		s.inUse = next
		return s.record()
	}
	if err := s.stage(next); err != nil {
		return errors.Join(err, s.removeStaged())
	}
	if err := s.use(next); err != nil {
		return err
	}
	if err := s.record(); err != nil {
		return fmt.Errorf("record the hash of the files: %w", err)
	}
	return nil
}

// keepFailed returns the set with the present content of every file that the
// server could not make.
func (s *Store) keepFailed(set Set) Set {
	for i, f := range set.Files {
		if f.Error == "" {
			continue
		}
		present, _ := s.inUse.find(f.Path)
		info, err := s.root.Lstat(s.currentPath(f.Path))
		if errors.Is(err, fs.ErrNotExist) || err == nil && (!info.Mode().IsRegular() || info.Size() > filelimit.Size) {
			present = File{} // it was removed on the machine, or is none that a set may hold
		}
		present.Path, present.Error = f.Path, f.Error
		set.Files[i] = present
	}
	return set
}

// stage builds the next version beside the one in use and makes it durable.
func (s *Store) stage(set Set) error {
	dir := versionDir(s.version + 1)
	if err := s.root.RemoveAll(dir); err != nil {
		return err
	}
	if err := s.makeDir(dir + "/" + dirFiles); err != nil {
		return err
	}
	if err := s.root.Chmod(dir, dirMode(s.o.Mode)); err != nil {
		return err
	}
	dirs := []string{dir, dir + "/" + dirFiles}
	held := s.held()
	for _, f := range set.Files {
		if f.Digest == "" {
			continue
		}
		made, err := s.place(dir+"/"+dirFiles, f, held)
		if err != nil {
			return err
		}
		dirs = append(dirs, made...)
	}
	if s.mustRun(set) {
		if err := s.writeFile(dir+"/"+filePending, nil, 0o600); err != nil {
			return err
		}
	}
	data, _ := json.Marshal(manifest{Set: set}) // of texts and numbers
	if err := s.writeFile(dir+"/"+fileManifest, append(data, '\n'), 0o600); err != nil {
		return err
	}
	slices.Sort(dirs)
	for _, d := range append(slices.Compact(dirs), rules.ReservedFileDir) {
		if err := s.sync(d); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) removeStaged() error { return s.root.RemoveAll(versionDir(s.version + 1)) }

// place puts one file into a version and returns the directories it made.
func (s *Store) place(base string, f File, held map[string]string) (dirs []string, err error) {
	to := base + "/" + f.Path
	for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
		dirs = append(dirs, base+"/"+dir)
	}
	for _, dir := range slices.Backward(dirs) {
		if err := s.makeDir(dir); err != nil {
			return nil, err
		}
	}
	mode := s.o.Mode
	if f.Mode != 0 {
		mode = fs.FileMode(f.Mode)
	}
	if present := held[f.Digest]; s.sameMode(present, mode) {
		return dirs, s.root.Link(s.currentPath(present), to)
	}
	data, err := s.content(f, held)
	if err != nil {
		return nil, err
	}
	if f.Key != "" && f.Error == "" {
		if err := s.checkKey(f, data); err != nil {
			return nil, err
		}
	}
	return dirs, s.writeFile(to, data, mode)
}

// sameMode reports whether there is a file in use at a path, and has this mode.
func (s *Store) sameMode(held string, mode fs.FileMode) bool {
	info, err := s.root.Stat(s.currentPath(held))
	return err == nil && info.Mode() == mode
}

// content reads a content and checks its digest.
func (s *Store) content(f File, held map[string]string) (data []byte, err error) {
	switch present := held[f.Digest]; {
	case f.Size == 0 && f.Error == "":
	case present != "":
		data, err = s.readInUse(present)
	case f.Error != "": // it was changed on the machine, and there is no other content
		return s.readInUse(f.Path)
	default:
		data, err = s.readIncoming(f.Digest, f.Size)
	}
	if err != nil {
		return nil, fmt.Errorf("content of %s: %w", f.Path, err)
	}
	if Digest(data) != f.Digest {
		return nil, nstance.Errorf(nstance.Internal, "content of %s is damaged", f.Path)
	}
	return data, nil
}

// writeFile writes a new file and makes its content durable.
func (s *Store) writeFile(name string, data []byte, mode fs.FileMode) error {
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// mustRun reports whether the set's command runs once the set is in place: a file
// or the command has changed, or the command has not succeeded yet.
func (s *Store) mustRun(set Set) bool {
	if len(set.Command) == 0 {
		return false
	}
	if s.pending || !slices.Equal(set.Command, s.inUse.Command) {
		return true
	}
	return !reflect.DeepEqual(s.shape(set), s.shape(s.inUse)) || s.altered()
}

// shape returns the digest and mode of each file, by path.
func (s *Store) shape(set Set) map[string]string {
	out := map[string]string{}
	for _, f := range set.Files {
		if f.Digest != "" {
			out[f.Path] = f.Digest + strconv.FormatUint(uint64(f.Mode), 8)
		}
	}
	return out
}

// altered reports whether a file in use was changed on the machine.
func (s *Store) altered() bool {
	for _, f := range s.inUse.Files {
		if f.Digest != "" && s.digest(f.Path) != f.Digest {
			return true
		}
	}
	return false
}

// use puts the staged version into use: it creates the links and switches the
// current version by one rename.
func (s *Store) use(set Set) error {
	old := s.inUse.names()
	for _, name := range set.names() {
		if err := s.link(name, slices.Contains(old, name)); err != nil {
			return errors.Join(err, s.removeStaged(), s.unlink(old))
		}
	}
	if err := s.sync("."); err != nil {
		return err
	}
	pending := s.mustRun(set)
	if err := s.swap(path.Base(versionDir(s.version+1)), linkCurrent); err != nil {
		return err
	}
	s.version++
	s.inUse, s.pending = set, pending
	clear(s.digests) // of the files of the former set
	if err := s.sync(rules.ReservedFileDir); err != nil {
		return err
	}
	if err := s.unlink(set.names()); err != nil {
		return err
	}
	return errors.Join(s.prune(), s.sweep(nil))
}

// readCurrent reads the version in use and its manifest.
func (s *Store) readCurrent() error {
	target, err := s.root.Readlink(linkCurrent)
	if errors.Is(err, fs.ErrNotExist) {
		s.version, s.inUse, s.pending = 0, Set{}, false
		return nil
	}
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(target, "v"))
	if n < 1 || target != path.Base(versionDir(n)) {
		return nstance.Errorf(nstance.Invalid, "%s/%s points at %q, which is not a version directory: remove it", s.o.Dir, linkCurrent, target)
	}
	s.version = n
	if s.inUse, err = s.readManifest(n); err != nil {
		return err
	}
	_, err = s.root.Stat(versionDir(n) + "/" + filePending)
	s.pending = err == nil
	return nil
}

// A manifest is the content of manifest.json. Format 1 is written without a
// number. A change of a field's meaning, or a new field that must not be ignored,
// needs the next number.
type manifest struct {
	Format int `json:"format,omitempty"` // 0: 1
	Set
}

const manifestFormat = 1

const maxManifest = 16 << 20 // bytes

func (s *Store) readManifest(n int) (Set, error) {
	var m manifest
	data, err := s.read(versionDir(n)+"/"+fileManifest, maxManifest)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if m.Format > manifestFormat {
		err = fmt.Errorf("%s is of format %d, which a newer agent wrote", fileManifest, m.Format)
	}
	if err != nil {
		return Set{}, fmt.Errorf("the manifest of the files in %s cannot be read, they stay as they are: %w", s.o.Dir, err)
	}
	return m.Set, nil
}
