package files

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/filelimit"
)

// A Set is the files of one machine.
type Set struct {
	Hash    string
	Files   []File    // sorted by path
	Command []string  // to be run after a change; nil: none
	Renew   time.Time // when a certificate is due to be issued again; zero: never
	Own     int64     // bytes that no other set shares

	contents map[string][]byte // by digest
	held     map[string][]byte // certificate (DER) by key
}

// A File is one file of a set.
type File struct {
	Path   string
	Digest string
	Size   int64
	Mode   uint32
	Key    string // it is a certificate for this key; empty: it is not
	Error  string // why it could not be made; empty: it could

	certificate bool // or what to trust others by
}

// Set makes the files of one machine. What needs a key that is not among keys
// has an error.
func (k *Kit) Set(ctx context.Context, m Machine, keys map[string]Key, by Authority, now time.Time) *Set {
	s := &Set{Hash: k.hash, Command: k.def.PostApply, contents: map[string][]byte{}, held: map[string][]byte{}}
	certs := map[string]certified{}
	total := int64(0)
	for _, path := range k.paths {
		f := k.def.Files[path]
		p, shared := k.alike[path]
		switch {
		case shared:
		case f.Kind == nstance.FileCertificate && f.Part == nstance.PartCA:
			p = pieceOf(by.CertPEM(), nil)
		case f.Kind == nstance.FileCertificate:
			p = k.certificate(ctx, s, certs, f, &m, keys, by, now)
		default:
			p = pieceOf(k.content(ctx, f, &view{common: &k.common, vars: k.def.Vars, machine: &m}))
		}
		if total += int64(len(p.data)); total > filelimit.SetSize && p.err == nil {
			total -= int64(len(p.data))
			p = piece{err: nstance.Errorf(nstance.Invalid, "the files of a machine have more than %d MiB together", filelimit.SetSize>>20)}
		}
		s.add(path, f, p, shared)
		last := &s.Files[len(s.Files)-1]
		if last.certificate = f.Kind == nstance.FileCertificate; last.certificate && f.Part != nstance.PartCA {
			last.Key = k.def.Certificates[f.Certificate].Key
		}
	}
	return s
}

// A certified is what came of asking for one certificate.
type certified struct {
	cert *x509.Certificate
	err  error
}

// certificate makes a part of a certificate, which is issued once for all files
// of the set that hold parts of it.
func (k *Kit) certificate(ctx context.Context, s *Set, certs map[string]certified, f nstance.File, m *Machine, keys map[string]Key, by Authority, now time.Time) piece {
	key := k.def.Certificates[f.Certificate].Key
	c, ok := certs[f.Certificate]
	if !ok {
		c.cert, c.err = k.certify(ctx, f.Certificate, m, keys[key], by, now)
		if c.err != nil {
			c.err = fmt.Errorf("certificate %s: %w", f.Certificate, c.err)
		}
		certs[f.Certificate] = c
	}
	if c.err != nil {
		return piece{err: c.err}
	}
	s.held[key] = c.cert.Raw
	if at := renewAt(c.cert); s.Renew.IsZero() || at.Before(s.Renew) {
		s.Renew = at
	}
	return pieceOf(pem(f.Part, c.cert, by), nil)
}

func (s *Set) add(path string, f nstance.File, p piece, shared bool) {
	file := File{Path: path, Digest: p.digest, Size: int64(len(p.data)), Mode: f.Mode, Error: message(p.err)}
	s.Files = append(s.Files, file)
	if _, known := s.contents[p.digest]; p.err != nil || known {
		return
	}
	s.contents[p.digest] = p.data
	if !shared {
		s.Own += file.Size
	}
}

// Content returns a content of the set, unless it was dropped.
func (s *Set) Content(digest string) ([]byte, bool) {
	data, ok := s.contents[digest]
	return data, ok
}

// Drop forgets the contents: they have been sent.
func (s *Set) Drop() { s.contents, s.Own = nil, 0 }

// Held returns the certificates that the machine holds once it has the set, by
// key.
func (s *Set) Held() map[string][]byte { return s.held }

// Complete reports whether every file could be made.
func (s *Set) Complete() bool {
	return !slices.ContainsFunc(s.Files, func(f File) bool { return f.Error != "" })
}

// InPlace reports whether a machine that has these files, and recorded that
// hash, needs nothing of the set. have is sorted by path.
func (s *Set) InPlace(hash string, have []nstance.FileStatus) bool {
	return s.matches(hash, have, func(File) bool { return true })
}

// Renews reports whether a machine that has these files, and recorded that hash,
// needs nothing of the set but other certificates in place of those that it has.
func (s *Set) Renews(hash string, have []nstance.FileStatus) bool {
	return s.matches(hash, have, func(f File) bool { return !f.certificate })
}

// matches reports whether a machine has every file of the set and no other, the
// contents of those that count.
func (s *Set) matches(hash string, have []nstance.FileStatus, counts func(File) bool) bool {
	if len(have) != len(s.Files) || s.Complete() && hash != s.Hash {
		return false
	}
	for i, f := range s.Files {
		h := have[i]
		if h.Path != f.Path || (h.Error != "") != (f.Error != "") || f.Error == "" && h.Digest != f.Digest && counts(f) {
			return false
		}
	}
	return true
}

// Errors says what could not be made, in one line; "" if all could.
func (s *Set) Errors() string {
	var out []string
	for _, f := range s.Files {
		if f.Error != "" {
			out = append(out, f.Path+": "+f.Error)
		}
	}
	return strings.Join(out, "; ")
}
