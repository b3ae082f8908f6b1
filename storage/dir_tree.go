package storage

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A tree is how a store reaches its files, by their whole paths.
type tree interface {
	OpenFile(path string, flag int, mode fs.FileMode) (*os.File, error)
	Mkdir(path string, mode fs.FileMode) error
	Stat(path string) (fs.FileInfo, error)
	Lstat(path string) (fs.FileInfo, error)
	Remove(path string) error
	Rename(from, to string) error

	// Adopt is called with each file and folder that the store has made.
	Adopt(made *os.File) error
}

// ownTree are files of this process's user.
type ownTree struct{}

func (ownTree) OpenFile(path string, flag int, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag, mode)
}
func (ownTree) Mkdir(path string, mode fs.FileMode) error { return os.Mkdir(path, mode) }
func (ownTree) Stat(path string) (fs.FileInfo, error)     { return os.Stat(path) }
func (ownTree) Lstat(path string) (fs.FileInfo, error)    { return os.Lstat(path) }
func (ownTree) Remove(path string) error                  { return os.Remove(path) }
func (ownTree) Rename(from, to string) error              { return os.Rename(from, to) }
func (ownTree) Adopt(*os.File) error                      { return nil }

// An othersTree is what root sees of another user's files. That user may replace any path
// below base by a link to somewhere else, so nothing outside is reached; and what root makes
// belongs to that user, whose server is to read it.
type othersTree struct {
	base     string // a folder that only its parent's owner can replace, or one of the same user
	uid, gid int
}

// errReplaced means that base is not the other user's any more.
var errReplaced = errors.New("another user's folder has been replaced by a link")

// within calls do with the tree and a path in it.
func (t othersTree) within(path string, do func(r *os.Root, name string) error) error {
	name, err := filepath.Rel(t.base, path)
	if err != nil {
		return err
	}
	r, err := os.OpenRoot(t.base)
	if err != nil {
		return err
	}
	defer r.Close() // only used to reach others
	base, err := r.Stat(".")
	if err != nil {
		return err
	}
	if uid, _ := ownerOf(base); uid != t.uid {
		return &fs.PathError{Op: "open", Path: t.base, Err: errReplaced}
	}
	err = do(r, name)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: e.Op, Path: path, Err: e.Err}
	}
	return err
}

func (t othersTree) OpenFile(path string, flag int, mode fs.FileMode) (f *os.File, err error) {
	err = t.within(path, func(r *os.Root, name string) error { f, err = r.OpenFile(name, flag, mode); return err })
	return f, err
}

func (t othersTree) Mkdir(path string, mode fs.FileMode) error {
	return t.within(path, func(r *os.Root, name string) error { return r.Mkdir(name, mode) })
}

func (t othersTree) Stat(path string) (info fs.FileInfo, err error) {
	err = t.within(path, func(r *os.Root, name string) error { info, err = r.Stat(name); return err })
	return info, err
}

func (t othersTree) Lstat(path string) (info fs.FileInfo, err error) {
	err = t.within(path, func(r *os.Root, name string) error { info, err = r.Lstat(name); return err })
	return info, err
}

func (t othersTree) Remove(path string) error {
	return t.within(path, func(r *os.Root, name string) error { return r.Remove(name) })
}

func (t othersTree) Rename(from, to string) error {
	return t.within(to, func(r *os.Root, name string) error {
		old, err := filepath.Rel(t.base, from)
		if err != nil {
			return err
		}
		return r.Rename(old, name)
	})
}

func (t othersTree) Adopt(made *os.File) error { return made.Chown(t.uid, t.gid) }

// readFile returns the content of a short file.
func (d *Dir) readFile(path string) ([]byte, error) {
	f, err := d.tree.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	return io.ReadAll(f)
}

// readDir returns the entries of a folder, in any order.
func (d *Dir) readDir(path string) ([]fs.DirEntry, error) {
	f, err := d.tree.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	return f.ReadDir(-1)
}
