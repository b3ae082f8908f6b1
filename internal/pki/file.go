package pki

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/regular"
)

// maxFile bounds what is read from a file of keys or certificates, in bytes.
const maxFile = 1 << 20

// SaveKey writes key to path as PEM, as WriteFile does.
func SaveKey(path string, key ed25519.PrivateKey) error {
	data, err := MarshalKey(key)
	if err != nil {
		return err
	}
	return WriteFile(path, data)
}

// LoadKey reads what SaveKey wrote. It fails with NotFound when there is no
// file, Invalid when the file is not a key.
func LoadKey(path string) (ed25519.PrivateKey, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	key, err := ParseKey(data)
	return key, inFile(path, err)
}

// SaveCertificates writes DER certificates to path as PEM, as WriteFile does.
func SaveCertificates(path string, ders ...[]byte) error {
	return WriteFile(path, MarshalCertificates(ders...))
}

// LoadCertificates reads PEM certificates, at least one. It fails with NotFound
// when there is no file, Invalid when the file holds anything else.
func LoadCertificates(path string) ([]*x509.Certificate, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	certs, err := ParseCertificates(data)
	return certs, inFile(path, err)
}

// LoadPair reads a chain, leaf first, and its key, ready for use in TLS. It
// fails with NotFound when either file is missing, Invalid when they do not
// belong together.
func LoadPair(certPath, keyPath string) (*tls.Certificate, error) {
	certs, err := LoadCertificates(certPath)
	if err != nil {
		return nil, err
	}
	key, err := LoadKey(keyPath)
	if err != nil {
		return nil, err
	}
	pair, err := Pair(key, certs...)
	return pair, inFile(certPath, err)
}

// WriteFile replaces path with data, readable by its owner only. Readers see
// the old content or the new, never a part, and the new content is on disk when
// WriteFile returns. It fails with Invalid when the folder does not exist,
// Denied when it may not be written.
func WriteFile(path string, data []byte) error { return WriteFileMode(path, data, 0o600) }

// WriteFileMode is WriteFile with other permission bits, which the file has from
// the moment on at which it is there.
func WriteFileMode(path string, data []byte, mode fs.FileMode) error {
	err := replace(path, data, mode)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist): // the folder: nothing that a caller may take for absence
		return nstance.Errorf(nstance.Invalid, "write: %w", err)
	}
	return nstance.Errorf(codeOf(err), "write: %w", err)
}

func replace(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails, as it should, after the rename
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func readFile(path string) ([]byte, error) {
	data, err := regular.File(path, maxFile)
	if err != nil {
		return nil, nstance.Errorf(codeOf(err), "read: %w", err)
	}
	return data, nil
}

// inFile adds the path to an error that ParseKey and its like classified.
func inFile(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

func codeOf(err error) nstance.Code {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nstance.NotFound
	case errors.Is(err, fs.ErrPermission):
		return nstance.Denied
	case errors.Is(err, nstance.Invalid):
		return nstance.Invalid
	}
	return nstance.Internal
}
