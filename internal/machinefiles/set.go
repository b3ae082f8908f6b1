package machinefiles

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/validate"
)

// A Set is all the files that a machine should have from its server.
type Set struct {
	Hash    string   `json:"hash"` // recorded once all of it is in place
	Files   []File   `json:"files,omitempty"`
	Command []string `json:"command,omitempty"` // to run after a change; nil: none
}

// A File is one file of a set. Its content travels apart.
type File struct {
	Path   string `json:"path"`
	Digest string `json:"digest,omitempty"` // sha256:<hex>; empty: there is no content
	Size   int64  `json:"size,omitempty"`
	Mode   uint32 `json:"mode,omitempty"`  // 0: Options.Mode
	Error  string `json:"error,omitempty"` // the server could not make it: the present file stays
	Key    string `json:"key,omitempty"`   // the content is a certificate for this key
}

// complete reports whether the server could make every file.
func (s *Set) complete() bool {
	return !slices.ContainsFunc(s.Files, func(f File) bool { return f.Error != "" })
}

func (s *Set) find(path string) (File, bool) {
	i := slices.IndexFunc(s.Files, func(f File) bool { return f.Path == path })
	if i < 0 {
		return File{}, false
	}
	return s.Files[i], true
}

// names returns the top-level name of each file that has content.
func (s *Set) names() []string {
	var out []string
	for _, f := range s.Files {
		if name, _, _ := strings.Cut(f.Path, "/"); f.Digest != "" {
			out = append(out, name)
		}
	}
	return out
}

// validate returns nil or Invalid. The server decides the content of files; the
// agent limits their paths and sizes.
func (s *Set) validate() error {
	if len(s.Files) > filelimit.Files {
		return nstance.Errorf(nstance.Invalid, "file set has %d files, more than %d", len(s.Files), filelimit.Files)
	}
	var total int64
	seen := map[string]bool{}
	for _, f := range s.Files {
		if err := f.validate(); err != nil {
			return err
		}
		if seen[f.Path] {
			return nstance.Errorf(nstance.Invalid, "file %q appears twice in its set", f.Path)
		}
		seen[f.Path] = true
		if f.Error == "" {
			total += f.Size
		}
	}
	if total > filelimit.SetSize {
		return nstance.Errorf(nstance.Invalid, "file set has %d bytes, more than %d", total, filelimit.SetSize)
	}
	for path := range seen {
		for dir := path; strings.Contains(dir, "/"); {
			dir = dir[:strings.LastIndexByte(dir, '/')]
			if seen[dir] {
				return nstance.Errorf(nstance.Invalid, "file %q lies below the file %q", path, dir)
			}
		}
	}
	return nil
}

func (f *File) validate() error {
	if err := validate.FilePath("file", f.Path); err != nil {
		return err
	}
	if f.Mode != 0 {
		if err := validate.FileMode("file "+f.Path, f.Mode); err != nil {
			return err
		}
	}
	if f.Key != "" {
		if err := validate.Name("file "+f.Path+": key", f.Key); err != nil {
			return err
		}
	}
	if f.Error != "" {
		return nil
	}
	if sum, _ := hex.DecodeString(strings.TrimPrefix(f.Digest, digestPrefix)); len(sum) != sha256.Size || f.Digest != digestOf(sum) {
		return nstance.Errorf(nstance.Invalid, "file %q: %q is not a digest", f.Path, clip.Quote(f.Digest))
	}
	if f.Size < 0 || f.Size > filelimit.Size {
		return nstance.Errorf(nstance.Invalid, "file %q has %d bytes, more than %d", f.Path, f.Size, filelimit.Size)
	}
	return nil
}

const digestPrefix = "sha256:"

func digestOf(sum []byte) string { return digestPrefix + hex.EncodeToString(sum) }

// Digest returns the digest of a content, as in File.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return digestOf(sum[:])
}
