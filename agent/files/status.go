package files

import (
	"cmp"
	"io/fs"
	"os"

	"github.com/nstance-go/nstance"
)

// A sighting is a file as it was when it was last read.
type sighting struct {
	info   fs.FileInfo
	digest string
}

// Status returns every file of the set in use as it is in the receive directory
// at this moment, changed by whomever. A file that looks untouched is not read
// again.
func (s *Store) Status() []nstance.FileStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open() != nil {
		return nil
	}
	out := make([]nstance.FileStatus, 0, len(s.now.Files))
	for _, f := range s.now.Files {
		st := nstance.FileStatus{Path: f.Path, Error: f.Error}
		if f.Digest != "" {
			st.Digest = s.digest(f.Path)
		}
		out = append(out, st)
	}
	return out
}

// Trouble returns why the last set is not in place, or what its command said;
// "" if all is well.
func (s *Store) Trouble() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.trouble, s.said)
}

// digest returns the digest of the file at path, or "" if there is none.
func (s *Store) digest(path string) string {
	info, err := s.root.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > nstance.MaxFileSize {
		delete(s.seen, path)
		return ""
	}
	if was, ok := s.seen[path]; ok && was.same(info) {
		return was.digest
	}
	data, err := s.root.ReadFile(path)
	if err != nil {
		delete(s.seen, path)
		return ""
	}
	if len(s.seen) > 2*nstance.MaxFiles {
		clear(s.seen) // of files that are no more
	}
	now := sighting{info: info, digest: Digest(data)}
	s.seen[path] = now
	return now.digest
}

func (g sighting) same(info fs.FileInfo) bool {
	return g.info.Size() == info.Size() && g.info.ModTime().Equal(info.ModTime()) && os.SameFile(g.info, info)
}
