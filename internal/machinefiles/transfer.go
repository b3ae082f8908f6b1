package machinefiles

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/regular"
)

// A transfer is a set that is being received.
type transfer struct {
	set     Set
	missing map[string]int64 // size by digest
	part    *part            // the content that is being received; nil: none
}

// A part is a partly received content.
type part struct {
	digest string
	file   *os.File
	sum    hash.Hash
	n      int64
}

// Begin starts the transfer of a set, in place of one that was not committed, and
// returns the digests of the contents that are missing here. Contents that an
// interrupted transfer has completed are not missing. Fails with Invalid for a set
// that is not permitted.
func (s *Store) Begin(set Set) (wanted []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropTransfer()
	wanted, err = s.begin(set)
	s.keepError(err)
	return wanted, classify(err)
}

func (s *Store) begin(set Set) ([]string, error) {
	if err := set.validate(); err != nil {
		return nil, err
	}
	if err := s.open(); errors.Is(err, nstance.NotFound) && len(set.Files) == 0 {
		s.incoming = &transfer{set: set} // a machine without files needs no directory for them
		return nil, nil
	}
	if err := s.create(); err != nil {
		return nil, err
	}
	if s.inUse.Hash == "" { // there is none, or it could not be read
		err := s.readCurrent()
		if _, ok := errors.AsType[*fs.PathError](err); ok && !errors.Is(err, fs.ErrNotExist) {
			return nil, err // a set that cannot be read is not absent: this one must not take its place
		}
	}
	set.Files = slices.Clone(set.Files)
	for i, f := range set.Files {
		if f.Error != "" {
			set.Files[i] = File{Path: f.Path, Error: f.Error}
		}
	}
	for _, name := range set.names() {
		if err := s.free(name); err != nil {
			return nil, err
		}
	}
	t := &transfer{set: set, missing: map[string]int64{}}
	held := s.held()
	var keep []string
	for _, f := range set.Files {
		if f.Size == 0 || held[f.Digest] != "" {
			continue
		}
		keep = append(keep, incomingName(f.Digest))
		if !s.arrived(f.Digest, f.Size) {
			t.missing[f.Digest] = f.Size
		}
	}
	if err := s.sweep(keep); err != nil {
		return nil, err
	}
	s.incoming = t
	wanted := make([]string, 0, len(t.missing))
	for _, f := range set.Files { // in the order of the set
		if _, ok := t.missing[f.Digest]; ok && !slices.Contains(wanted, f.Digest) {
			wanted = append(wanted, f.Digest)
		}
	}
	return wanted, nil
}

// free fails with Conflict if a file of another owner has the name.
func (s *Store) free(name string) error {
	if slices.Contains(s.inUse.names(), name) {
		return nil
	}
	if target, _ := s.root.Readlink(name); strings.HasPrefix(target, linkCurrent+"/") {
		return nil
	}
	switch _, err := s.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return nstance.Errorf(nstance.Conflict, "%s/%s exists and is not managed by the server: move it away", s.o.Dir, name)
}

// held returns the path in the version in use of each content, by digest. Files
// that were changed on the machine are left out.
func (s *Store) held() map[string]string {
	out := map[string]string{}
	for _, f := range s.inUse.Files {
		if data, err := s.readInUse(f.Path); err == nil && Digest(data) == f.Digest {
			out[f.Digest] = f.Path
		}
	}
	return out
}

func (s *Store) currentPath(path string) string {
	return versionDir(s.version) + "/" + dirFiles + "/" + path
}

func incomingName(digest string) string { return strings.TrimPrefix(digest, digestPrefix) }

// arrived reports whether a content has been received completely.
func (s *Store) arrived(digest string, size int64) bool {
	data, _ := s.readIncoming(digest, size)
	return Digest(data) == digest
}

func (s *Store) readIncoming(digest string, size int64) ([]byte, error) {
	return s.read(dirIncoming+"/"+incomingName(digest), size)
}

// readInUse reads a file of the version in use, which may have been changed on the machine.
func (s *Store) readInUse(path string) ([]byte, error) {
	return s.read(s.currentPath(path), filelimit.Size)
}

func (s *Store) read(name string, limit int64) ([]byte, error) {
	return regular.Open(s.root.OpenFile).Read(name, limit)
}

// sweep makes the directory of incoming contents and keeps only these files in it.
func (s *Store) sweep(keep []string) error {
	if err := s.root.MkdirAll(dirIncoming, 0o700); err != nil {
		return err
	}
	names, err := s.list(dirIncoming)
	if err != nil {
		return err
	}
	for _, name := range names {
		if slices.Contains(keep, name) {
			continue
		}
		if err := s.root.RemoveAll(dirIncoming + "/" + name); err != nil {
			return err
		}
	}
	return nil
}

// Write adds the next piece of a content that Begin returned. Pieces come in
// order, one content after another. Any error ends the transfer: Invalid for a
// piece that was not requested, is out of order, or completes a content with
// another digest.
func (s *Store) Write(digest string, offset int64, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.write(digest, offset, data)
	if err != nil {
		s.dropTransfer()
	}
	s.keepError(err)
	return classify(err)
}

func (s *Store) write(digest string, offset int64, data []byte) error {
	t := s.incoming
	if t == nil {
		return nstance.Errorf(nstance.Invalid, "received a piece of a file without a transfer")
	}
	size, ok := t.missing[digest]
	if !ok || t.part != nil && t.part.digest != digest {
		return nstance.Errorf(nstance.Invalid, "received a piece of %s, which was not requested or is not next", digest)
	}
	if t.part == nil {
		if err := s.beginPart(digest); err != nil {
			return err
		}
	}
	p := t.part
	if offset != p.n || p.n+int64(len(data)) > size || len(data) == 0 {
		return nstance.Errorf(nstance.Invalid, "received %d bytes at offset %d of %s, which has %d bytes, of which %d were received before", len(data), offset, digest, size, p.n)
	}
	if _, err := p.file.Write(data); err != nil {
		return err
	}
	p.sum.Write(data) // never fails
	if p.n += int64(len(data)); p.n < size {
		return nil
	}
	return s.endPart()
}

func (s *Store) beginPart(digest string) error {
	f, err := s.root.OpenFile(dirIncoming+"/"+incomingName(digest)+".part", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	s.incoming.part = &part{digest: digest, file: f, sum: sha256.New()}
	return nil
}

func (s *Store) endPart() error {
	p := s.incoming.part
	s.incoming.part = nil
	if err := p.file.Close(); err != nil {
		return err
	}
	if got := digestOf(p.sum.Sum(nil)); got != p.digest {
		return nstance.Errorf(nstance.Invalid, "content announced as %s has the digest %s", p.digest, got)
	}
	delete(s.incoming.missing, p.digest)
	name := dirIncoming + "/" + incomingName(p.digest)
	return s.root.Rename(name+".part", name)
}

// dropTransfer ends a transfer. Completed contents stay for the next one.
func (s *Store) dropTransfer() {
	if s.incoming != nil && s.incoming.part != nil {
		_ = s.incoming.part.file.Close() // the next set removes it
	}
	s.incoming = nil
}

// keepError keeps an error for LastError.
func (s *Store) keepError(err error) {
	if err != nil {
		s.commitError = err.Error()
	}
}
