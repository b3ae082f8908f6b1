package machinefiles

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/validate"
)

// A Key proves possession of a private key that this machine generated and that
// never leaves it.
type Key struct {
	Name        string
	Request     []byte // PKCS#10 request in DER
	Certificate []byte // DER of the certificate for it among the files in use; nil: none
	Err         error  // why there is no request
}

// Keys returns the named keys and generates missing ones. subject is the subject
// of the requests; the server decides which one it certifies.
func (s *Store) Keys(subject string, names []string) []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Key
	for _, name := range names[:min(len(names), filelimit.Certificates)] {
		k := Key{Name: name}
		var key ed25519.PrivateKey
		if key, k.Err = s.key(name); k.Err == nil {
			k.Request, k.Err = pki.NewCSR(key, subject)
			k.Certificate = s.certificateFor(name, key)
		}
		out = append(out, k)
	}
	return out
}

// key reads a key, or generates it if there is none. A key that cannot be read is
// never replaced.
func (s *Store) key(name string) (ed25519.PrivateKey, error) {
	if err := validate.Name("key", name); err != nil {
		return nil, err
	}
	key, err := pki.LoadKey(s.keyPath(name))
	if err == nil {
		return key, nil
	}
	if !errors.Is(err, nstance.NotFound) {
		return nil, err
	}
	if err := os.MkdirAll(s.o.KeysDir, dirMode(s.o.KeysMode)); err != nil {
		return nil, classify(err)
	}
	key = pki.NewKey()
	data, err := pki.MarshalKey(key)
	if err != nil {
		return nil, err
	}
	return key, pki.WriteFileMode(s.keyPath(name), data, s.o.KeysMode)
}

func (s *Store) keyPath(name string) string { return filepath.Join(s.o.KeysDir, name+".pem") }

// certificateFor returns the certificate for a key among the files in use.
func (s *Store) certificateFor(name string, key ed25519.PrivateKey) []byte {
	if s.open() != nil {
		return nil
	}
	for _, f := range s.inUse.Files {
		if f.Key != name {
			continue
		}
		data, _ := s.readInUse(f.Path) // without, there is no certificate in it
		if leaf, err := leafOf(data); err == nil && key.Public().(ed25519.PublicKey).Equal(leaf.PublicKey) {
			return leaf.Raw
		}
	}
	return nil
}

// checkKey fails with Invalid unless the content is a certificate for the file's
// key.
func (s *Store) checkKey(f File, data []byte) error {
	key, err := s.key(f.Key)
	if err != nil {
		return fmt.Errorf("key %s: %w", f.Key, err)
	}
	leaf, err := leafOf(data)
	if err != nil {
		return nstance.Errorf(nstance.Invalid, "%s: %w", f.Path, err)
	}
	if !key.Public().(ed25519.PublicKey).Equal(leaf.PublicKey) {
		return nstance.Errorf(nstance.Invalid, "%s is a certificate for another key than %s", f.Path, f.Key)
	}
	return nil
}

// leafOf returns the first certificate in PEM data.
func leafOf(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("holds no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
