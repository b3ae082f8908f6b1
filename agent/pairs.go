package agent

import (
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

// load returns the identity in use, or NotFound. A pair that was complete but not
// yet in use when the agent crashed is put into use first.
func (v identityDir) load() (*identity, error) {
	n, err := v.version()
	if err != nil {
		return nil, err
	}
	if _, err := v.pair(n + 1); err == nil {
		n++
	}
	if n == 0 {
		return nil, nstance.Errorf(nstance.NotFound, "%s holds no certificate", v.dir)
	}
	if err := v.use(n); err != nil {
		return nil, err
	}
	return v.identity(n)
}

func (v identityDir) identity(n int) (*identity, error) {
	pair, err := v.pair(n)
	if err != nil {
		return nil, err
	}
	roots, err := loadRoots(v.path(versionDir(n), fileRoots))
	if err != nil {
		return nil, err
	}
	h, err := v.server()
	if err != nil {
		return nil, err
	}
	return &identity{serverRef: h, pair: pair, roots: roots}, nil
}

func (v identityDir) pair(n int) (*tls.Certificate, error) {
	return pki.LoadPair(v.path(versionDir(n), fileCert), v.path(versionDir(n), fileKey))
}

// nextKey returns the key for the next certificate. It is the same one until
// install has been called: the server returns the same certificate for the same
// key, so a request whose reply was lost can be repeated.
func (v identityDir) nextKey() (ed25519.PrivateKey, error) {
	n, err := v.version()
	if err != nil {
		return nil, err
	}
	path := v.path(versionDir(n+1), fileKey)
	key, err := pki.LoadKey(path)
	if err == nil || !errors.Is(err, nstance.NotFound) && !errors.Is(err, nstance.Invalid) {
		return key, err
	}
	if err := os.MkdirAll(filepath.Dir(path), v.dirMode()); err != nil {
		return nil, fileError(err)
	}
	key = pki.NewKey()
	return key, pki.SaveKey(path, key)
}

// install puts a certificate for nextKey into use. Every reader of the directory
// sees the old pair or the new one, even if the agent crashes.
func (v identityDir) install(c nstance.Credential) error {
	n, err := v.version()
	if err != nil {
		return err
	}
	roots := c.Roots
	if len(roots) == 0 {
		if roots, err = v.presentRoots(n); err != nil {
			return err
		}
	}
	if err := v.write(v.path(versionDir(n+1), fileRoots), pki.MarshalCertificates(roots...)); err != nil {
		return err
	}
	// The certificate is written last: load puts a complete pair into use.
	if err := v.write(v.path(versionDir(n+1), fileCert), pki.MarshalCertificates(c.Chain...)); err != nil {
		return err
	}
	if _, err := v.identity(n + 1); err != nil {
		return err
	}
	return v.use(n + 1)
}

// presentRoots returns the authorities trusted so far.
func (v identityDir) presentRoots(n int) ([][]byte, error) {
	path := v.userDataPath(fileCA)
	if n > 0 {
		path = v.path(versionDir(n), fileRoots)
	}
	certs, err := pki.LoadCertificates(path)
	if err != nil {
		return nil, err
	}
	var ders [][]byte
	for _, cert := range certs {
		ders = append(ders, cert.Raw)
	}
	return ders, nil
}

// use switches the link, creates the well-known names and removes pairs older than
// the one just replaced, which a reader may still have open.
func (v identityDir) use(n int) error {
	if err := v.link(versionDir(n), linkCurrent); err != nil {
		return err
	}
	for _, name := range []string{fileKey, fileCert, fileRoots} {
		if err := v.link(filepath.Join(linkCurrent, name), name); err != nil {
			return err
		}
	}
	for old := n - 2; old > 0; old-- {
		if _, err := os.Lstat(v.path(versionDir(old))); err != nil {
			return nil //nolint:nilerr // this pair and all older ones have been removed before
		}
		if err := v.next(); err != nil {
			return err
		}
		if err := os.RemoveAll(v.path(versionDir(old))); err != nil {
			return fileError(err)
		}
	}
	return nil
}

// link makes name point at target, atomically.
func (v identityDir) link(target, name string) error {
	if now, err := os.Readlink(v.path(name)); err == nil && now == target {
		return nil
	}
	tmp := v.path("." + name + ".next")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fileError(err)
	}
	if err := v.next(); err != nil {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return fileError(err)
	}
	if err := v.next(); err != nil {
		return err
	}
	if err := os.Rename(tmp, v.path(name)); err != nil {
		return fileError(err)
	}
	return nil
}

// version returns the number of the pair in use, 0 for none.
func (v identityDir) version() (int, error) {
	target, err := os.Readlink(v.path(linkCurrent))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fileError(err)
	}
	n, err := strconv.Atoi(strings.TrimPrefix(target, "v"))
	if err != nil || n < 1 || versionDir(n) != target {
		return 0, nstance.Errorf(nstance.Invalid, "%s points at %q, which is not a version directory: remove it", v.path(linkCurrent), target)
	}
	return n, nil
}

func versionDir(n int) string { return "v" + strconv.Itoa(n) }
