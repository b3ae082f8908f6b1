package files

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
)

// Commit puts the announced set to use. Nil means that it is in place and, if
// it is complete, its hash recorded. On an error either nothing has changed, or
// all has and what is left to do is done with the next set or by Open.
func (s *Store) Commit(hash string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.commit(hash)
	s.dropTransfer()
	if s.trouble = ""; err != nil {
		s.trouble = err.Error()
	}
	return classify(err)
}

func (s *Store) commit(hash string) error {
	t := s.incoming
	switch {
	case t == nil || t.set.Hash != hash:
		return nstance.Errorf(nstance.Conflict, "no set %s has been announced", hash)
	case len(t.lacking) > 0:
		return nstance.Errorf(nstance.Conflict, "%d contents of the set have not come", len(t.lacking))
	}
	next := s.settled(t.set)
	if s.root == nil {
		s.now = next
		return s.record()
	}
	if err := s.stage(next); err != nil {
		return errors.Join(err, s.abandon(err))
	}
	if err := s.use(next); err != nil {
		return err
	}
	if err := s.record(); err != nil {
		return fmt.Errorf("record the hash of the files: %w", err)
	}
	return s.o.step("hash")
}

// settled returns the set with every file that the server could not make as it
// is now.
func (s *Store) settled(set Set) Set {
	set.Files = slices.Clone(set.Files)
	for i, f := range set.Files {
		if f.Error == "" {
			continue
		}
		was, _ := s.now.find(f.Path)
		was.Path, was.Error = f.Path, f.Error
		set.Files[i] = was
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
		if err := s.o.step("file"); err != nil {
			return err
		}
	}
	if s.mustRun(set) {
		if err := s.writeFile(dir+"/"+filePending, nil, 0o600); err != nil {
			return err
		}
	}
	data, err := json.Marshal(manifest{Set: set})
	if err != nil {
		return err
	}
	if err := s.writeFile(dir+"/"+fileManifest, append(data, '\n'), 0o600); err != nil {
		return err
	}
	slices.Sort(dirs)
	for _, d := range append(slices.Compact(dirs), nstance.FilesOwn) {
		if err := s.sync(d); err != nil {
			return err
		}
	}
	return s.o.step("manifest")
}

// abandon removes what stage has left, unless it was meant to look like a crash.
func (s *Store) abandon(cause error) error {
	if errors.Is(cause, errCrash) {
		return nil
	}
	return s.root.RemoveAll(versionDir(s.version + 1))
}

// errCrash is what a crash test's step returns.
var errCrash = errors.New("crash")

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
	if was := held[f.Digest]; was != "" && s.sameMode(was, mode) {
		return dirs, s.root.Link(s.currentPath(was), to)
	}
	data, err := s.content(f, held)
	if err != nil {
		return nil, err
	}
	if f.Key != "" && f.Error == "" {
		if err := s.belongs(f, data); err != nil {
			return nil, err
		}
	}
	return dirs, s.writeFile(to, data, mode)
}

func (s *Store) sameMode(held string, mode fs.FileMode) bool {
	info, err := s.root.Stat(s.currentPath(held))
	return err == nil && info.Mode().Perm() == mode
}

// content reads a content, and believes nothing but its digest.
func (s *Store) content(f File, held map[string]string) (data []byte, err error) {
	switch was := held[f.Digest]; {
	case f.Size == 0 && f.Error == "":
	case was != "":
		data, err = s.root.ReadFile(s.currentPath(was))
	case f.Error != "": // it was changed here, and there is nothing better
		return s.root.ReadFile(s.currentPath(f.Path))
	default:
		data, err = s.readIncoming(f.Digest, f.Size)
	}
	if err == nil && Digest(data) != f.Digest {
		return nil, nstance.Errorf(nstance.Internal, "content of %s is damaged", f.Path)
	}
	return data, err
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

// mustRun reports whether the set's command is to be run once it is in place:
// something is another than before, the command itself for one, or it has
// not succeeded yet.
func (s *Store) mustRun(set Set) bool {
	if len(set.Command) == 0 {
		return false
	}
	if s.pending || !slices.Equal(set.Command, s.now.Command) || len(set.names()) != len(s.now.names()) {
		return true
	}
	return !reflect.DeepEqual(s.shape(set), s.shape(s.now)) || s.altered()
}

// shape is what a workload can see of a set.
func (s *Store) shape(set Set) map[string]string {
	out := map[string]string{}
	for _, f := range set.Files {
		if f.Digest != "" {
			out[f.Path] = f.Digest + strconv.FormatUint(uint64(f.Mode), 8)
		}
	}
	return out
}

// altered reports whether somebody has changed what is in use.
func (s *Store) altered() bool {
	for _, f := range s.now.Files {
		if f.Digest != "" && s.digest(f.Path) != f.Digest {
			return true
		}
	}
	return false
}

// use puts the staged version to use: the one rename that counts, and the links
// around it.
func (s *Store) use(set Set) error {
	old := s.now.names()
	for _, name := range set.names() {
		if err := s.link(name, slices.Contains(old, name)); err != nil {
			return errors.Join(err, s.abandon(err), s.unlink(old))
		}
	}
	if err := s.sync("."); err != nil {
		return err
	}
	if err := s.o.step("links"); err != nil {
		return err
	}
	pending := s.mustRun(set)
	if err := s.swap(path.Base(versionDir(s.version+1)), linkCurrent); err != nil {
		return err
	}
	s.version++
	s.now, s.pending = set, pending
	if err := s.sync(nstance.FilesOwn); err != nil {
		return err
	}
	if err := s.o.step("swap"); err != nil {
		return err
	}
	if err := s.unlink(set.names()); err != nil {
		return err
	}
	if err := s.o.step("unlink"); err != nil {
		return err
	}
	return errors.Join(s.prune(), s.sweep(nil))
}

// readCurrent reads which version is in use and what it holds.
func (s *Store) readCurrent() error {
	target, err := s.root.Readlink(linkCurrent)
	if errors.Is(err, fs.ErrNotExist) {
		s.version, s.now, s.pending = 0, Set{}, false
		return nil
	}
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimPrefix(target, "v"))
	if err != nil || n < 1 {
		return nstance.Errorf(nstance.Invalid, "%s/%s points at %q, which no agent made: remove it", s.o.Dir, linkCurrent, target)
	}
	s.version = n
	if s.now, err = s.readManifest(n); err != nil {
		return err
	}
	_, err = s.root.Stat(versionDir(n) + "/" + filePending)
	s.pending = err == nil
	return nil
}

// A manifest is what manifest.json holds. Its first format, which is the one
// that is written, says no number; whoever changes the meaning of a field, or
// adds one that must not be passed over, writes the next.
type manifest struct {
	Format int `json:"format,omitempty"` // 0: 1
	Set
}

const manifestFormat = 1

func (s *Store) readManifest(n int) (Set, error) {
	var m manifest
	data, err := s.root.ReadFile(versionDir(n) + "/" + fileManifest)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err == nil && m.Format > manifestFormat {
		err = fmt.Errorf("%s is of format %d, which a newer agent wrote", fileManifest, m.Format)
	}
	if err != nil {
		return Set{}, fmt.Errorf("what the files in %s are is not known, they stay as they are: %w", s.o.Dir, err)
	}
	return m.Set, nil
}
