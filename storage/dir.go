package storage

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/regular"
)

// Dir is a Store in a directory of this machine, for one or many processes.
//
// An object is a file at its key's path: one header line with a random token,
// then the data, so that version and content change in one rename. The version
// is the token and a digest of the content. A file without the header, copied
// there by hand, is an object too; its version is its digest alone. Edits in
// place are detected as changes, but they are not atomic.
//
// A write goes to a temporary file, which is synced and then renamed under a
// lock that all processes share; then the folder is synced. After any crash the
// key holds the old object or the new one. Get takes no lock. List takes it while
// it reads the names in one folder: some file systems, tmpfs among them, show a
// reader neither the old nor the new entry of a file that is being replaced.
// Files are made with mode 0600, folders with 0700.
//
// The directory must be on a local disk of the machine on which all processes
// run that use it. Network file systems such as NFS and SMB do not qualify: their
// locks, renames and syncs promise less.
//
// A Dir is safe for concurrent use.
type Dir struct {
	root string
	tree tree
	turn chan struct{}           // holds one token: one call of this process waits for the file lock at a time
	step func(step string) error // for crash tests; nil outside them
	sync func(*os.File) error    // for power cut tests; nil: (*os.File).Sync
}

var (
	_ Store   = (*Dir)(nil)
	_ Located = (*Dir)(nil)
)

// DirOptions adjust OpenDir. Nil means the defaults.
type DirOptions struct {
	Existing bool // fail with NotFound instead of making a new store
}

const (
	markerName  = ".nstance-store" // proves that the directory is there and mounted; its lock is the store's
	markerText  = "nstance-store 1\n"
	tempName    = ".tmp"
	tempMaxAge  = time.Hour // an older temporary file belongs to no living writer
	headerStart = "#nstance-object 1 "
	tokenLen    = 26 // of rand.Text
	headerLen   = len(headerStart) + tokenLen + 1
)

// OpenDir opens the store in the directory path, and makes it where there is
// none. Fails with Denied when the directory cannot be written, Invalid when
// it was made by a newer version, Unavailable when it cannot be read.
func OpenDir(path string, o *DirOptions) (*Dir, error) {
	if o == nil {
		o = &DirOptions{}
	}
	d, err := newDir(path)
	if err != nil {
		return nil, err
	}
	if err := d.open(o.Existing); err != nil {
		return nil, err
	}
	return d, d.clean(time.Now())
}

func newDir(path string) (*Dir, error) {
	if path == "" {
		return nil, nstance.FieldError("storage.path", "name a directory", "is empty")
	}
	root, err := filepath.Abs(path)
	if err != nil {
		return nil, dirError("open", path, err)
	}
	return &Dir{root: root, tree: treeOf(root), turn: make(chan struct{}, 1)}, nil
}

func (d *Dir) open(existing bool) error {
	if existing {
		if _, err := d.tree.Stat(d.marker()); errors.Is(err, fs.ErrNotExist) {
			return d.noStore()
		}
	}
	if info, err := d.tree.Stat(d.root); err == nil && !info.IsDir() {
		return nstance.FieldError("storage.path", "name a directory", "%s is not a directory", d.root)
	}
	if err := d.makeDirs(filepath.Join(d.root, tempName)); err != nil {
		return dirError("open", d.root, err)
	}
	f, err := d.tree.OpenFile(d.marker(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return dirError("open", d.root, err)
	}
	if err := errors.Join(d.tree.Adopt(f), f.Close()); err != nil {
		return dirError("open", d.root, err)
	}
	return d.writeMarker()
}

func (d *Dir) noStore() error {
	return nstance.Errorf(nstance.NotFound, "open %s: there is no store in this directory", d.root)
}

// inspect checks that there is a store, and changes nothing. A marker without text
// belongs to a store that is being made.
func (d *Dir) inspect() error {
	text, err := d.readFile(d.marker())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.noStore()
	case err != nil:
		return dirError("open", d.root, err)
	case len(text) == 0:
		return nil
	}
	return d.checkMarker(text)
}

// checkMarker refuses a store of another format.
func (d *Dir) checkMarker(text []byte) error {
	if string(text) == markerText {
		return nil
	}
	return &nstance.Error{
		Code: nstance.Invalid, Remedy: "use a newer program, or another directory",
		Msg: "open " + d.root + ": this store has a format that this program does not know",
	}
}

// writeMarker writes the marker's text if it is empty, and checks it otherwise.
func (d *Dir) writeMarker() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	unlock, err := d.lock(ctx, toWrite)
	if err != nil {
		return err
	}
	defer unlock()
	text, err := d.readFile(d.marker())
	if err == nil && len(text) == 0 {
		text = []byte(markerText)
		if err = d.writeFile(d.marker(), text, os.O_WRONLY); err == nil {
			err = d.syncDir(d.root)
		}
	}
	if err != nil {
		return dirError("open", d.root, err)
	}
	return d.checkMarker(text)
}

// clean checks that the directory can be written, and removes the temporary files
// of dead writers.
func (d *Dir) clean(now time.Time) error {
	probe, _, err := d.writeTemp(nil)
	if err != nil {
		return err
	}
	if err := d.tree.Remove(probe); err != nil {
		return dirError("open", d.root, err)
	}
	left, err := d.readDir(filepath.Join(d.root, tempName))
	if err != nil {
		return dirError("open", d.root, err)
	}
	for _, e := range left {
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > tempMaxAge {
			_ = d.tree.Remove(filepath.Join(d.root, tempName, e.Name())) // the next start tries again
		}
	}
	return nil
}

// Location implements Located. A directory that is moved keeps it, a copy has another one;
// where the file system does not keep the time of birth of files it is not known.
func (d *Dir) Location() string { return placeOf(d.marker()) }

func (d *Dir) marker() string { return filepath.Join(d.root, markerName) }

func (d *Dir) path(key string) string { return filepath.Join(d.root, filepath.FromSlash(key)) }

// Get implements Store.
func (d *Dir) Get(ctx context.Context, key string) (Object, error) {
	if err := begin(ctx, "get", key); err != nil {
		return Object{}, err
	}
	data, v, err := d.read(key)
	if errors.Is(err, fs.ErrNotExist) {
		return Object{}, notFound("get", key)
	}
	if err != nil {
		return Object{}, dirError("get", d.path(key), err)
	}
	return Object{Key: key, Data: data, Version: v}, nil
}

// read returns the object of key. It fails with fs.ErrNotExist only when absence is
// certain: not for a dangling link, nor when the whole store is gone.
func (d *Dir) read(key string) ([]byte, Version, error) {
	path := d.path(key)
	for range 3 {
		data, v, err := d.readObject(path)
		if err == nil || !absent(err) {
			return data, v, err
		}
		if info, err := d.tree.Lstat(path); err == nil && !info.IsDir() {
			continue // made since, or a dangling link
		}
		if err := d.alive(); err != nil {
			return nil, "", err
		}
		return nil, "", fs.ErrNotExist
	}
	return nil, "", errors.New("it is a dangling link")
}

// alive fails when the store's directory is gone, as after an unmount.
func (d *Dir) alive() error {
	if _, err := d.tree.Stat(d.marker()); err != nil {
		return errGone
	}
	return nil
}

var errGone = errors.New("the store's directory is gone or not mounted")

// absent reports whether err means that there is no file at the path. A folder is
// no file, and there is none below a file.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || isNotDir(err) || isDir(err)
}

func (d *Dir) readObject(path string) ([]byte, Version, error) {
	f, err := d.tree.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // which opens a pipe without a writer too
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		return nil, "", cmp.Or(err, regular.Err)
	}
	raw, err := io.ReadAll(io.LimitReader(f, MaxObjectSize+int64(headerLen)+1))
	if err != nil {
		return nil, "", err
	}
	if len(raw) > MaxObjectSize+headerLen {
		return nil, "", errors.New("the file is larger than an object may be")
	}
	data, v := parseObject(raw)
	return data, v, nil
}

func parseObject(raw []byte) ([]byte, Version) {
	token := ""
	if bytes.HasPrefix(raw, []byte(headerStart)) && len(raw) >= headerLen && raw[headerLen-1] == '\n' {
		token, raw = string(raw[len(headerStart):headerLen-1]), raw[headerLen:]
	}
	return raw, versionOf(token, raw)
}

func versionOf(token string, data []byte) Version {
	sum := sha256.Sum256(data)
	if token == "" {
		return Version("plain-" + hex.EncodeToString(sum[:]))
	}
	return Version(token + "-" + hex.EncodeToString(sum[:8]))
}

func newToken() string { return rand.Text() }

// dirError classifies an error of the file system. Nothing was changed.
func dirError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	reason := err
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		reason, path = e.Err, e.Path
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		reason, path = e.Err, e.New
	}
	out := &nstance.Error{Code: nstance.Unavailable, Msg: op + " " + path + ": " + reason.Error(), Err: err}
	switch {
	case errors.Is(err, fs.ErrPermission), isReadOnly(err):
		out.Code, out.Remedy = nstance.Denied, "let this program's user own and write the storage directory, or choose another one"
	case isFull(err):
		out.Remedy = "free some space on that file system"
	case isNotDir(err), isDir(err), errors.Is(err, fs.ErrExist):
		out.Code, out.Remedy = nstance.Invalid, "no key may continue another key after a slash; remove what is in the way"
	case errors.Is(err, errGone):
		out.Remedy = "mount it again, or restart the program if it was replaced"
	case errors.Is(err, errors.ErrUnsupported):
		out.Code = nstance.Invalid
	}
	return out
}
