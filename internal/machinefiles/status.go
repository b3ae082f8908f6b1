package machinefiles

import (
	"cmp"
	"io/fs"
	"os"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/filelimit"
)

// A cachedDigest is the digest of a file when it was last read.
type cachedDigest struct {
	info   fs.FileInfo
	digest string
}

// Status returns the present state of every file of the set in use in the receive
// directory, including changes made on the machine. A file with unchanged size and
// time is not read again until another set is in use.
func (s *Store) Status() []nstance.FileStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open() != nil {
		return nil
	}
	out := make([]nstance.FileStatus, 0, len(s.inUse.Files))
	for _, f := range s.inUse.Files {
		st := nstance.FileStatus{Path: f.Path, Error: f.Error}
		if f.Digest != "" {
			st.Digest = s.digest(f.Path)
		}
		out = append(out, st)
	}
	return out
}

// LastError returns why the last set is not in place, or why its command failed;
// "" for neither.
func (s *Store) LastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.commitError, s.commandError)
}

// digest returns the digest of the file at path, or "" if there is none.
func (s *Store) digest(path string) string {
	info, err := s.root.Stat(path)
	if err != nil {
		return ""
	}
	if cached, ok := s.digests[path]; ok && cached.validFor(info) {
		return cached.digest
	}
	data, err := s.read(path, filelimit.Size)
	if err != nil {
		return ""
	}
	read := cachedDigest{info: info, digest: Digest(data)}
	s.digests[path] = read
	return read.digest
}

func (c cachedDigest) validFor(info fs.FileInfo) bool {
	return c.info.Size() == info.Size() && c.info.ModTime().Equal(info.ModTime()) && os.SameFile(c.info, info)
}
