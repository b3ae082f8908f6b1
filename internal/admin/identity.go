package admin

import (
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/validate"
)

// Files of an identity directory. A key and its certificate cannot be replaced
// in one step, so a new key has its own name until its certificate has been
// written. The key that matches the certificate is the one in use.
const (
	fileKey     = "key.pem"
	fileNextKey = "key.next.pem"
	fileCert    = "cert.pem"
	fileRoots   = "ca.pem"
	fileServers = "admin.json"
	fileLock    = "lock" // of the process that renews
)

// An Identity is an administrator's certificate and key for one shard, with the
// addresses and authorities of its servers.
type Identity struct {
	Servers []string // addresses of the shard's operator API, host:port
	Cluster nstance.ClusterID
	Shard   nstance.ShardID
	Key     ed25519.PrivateKey
	Chain   [][]byte // DER, leaf first
	Roots   [][]byte // DER, the authorities that sign servers
}

// identityConfig is the content of admin.json.
type identityConfig struct {
	Servers []string          `json:"servers"`
	Shard   nstance.ShardID   `json:"shard"`
	Cluster nstance.ClusterID `json:"cluster"`
}

// SaveIdentity writes an identity into dir, which it makes if needed, readable for
// the owner only. An existing identity is replaced; after a crash LoadIdentity
// finds the old one, the new one or none. It fails with Invalid when id is
// incomplete, and like pki.WriteFile.
func SaveIdentity(dir string, id Identity) error {
	if err := id.validate(); err != nil {
		return err
	}
	if err := makeDir(dir); err != nil {
		return err
	}
	if err := forget(dir); err != nil {
		return err
	}
	if err := pki.SaveKey(filepath.Join(dir, fileNextKey), id.Key); err != nil {
		return err
	}
	return install(dir, id)
}

// forget removes an identity's certificate, so that no process reads a mixture of
// two identities.
func forget(dir string) error {
	if err := os.Remove(filepath.Join(dir, fileCert)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fileError(err)
	}
	return nil
}

// install writes an identity whose key is stored as the next key.
func install(dir string, id Identity) error {
	data, err := json.MarshalIndent(identityConfig{id.Servers, id.Shard, id.Cluster}, "", "  ")
	if err != nil {
		return nstance.Errorf(nstance.Internal, "%s: %w", fileServers, err)
	}
	if err := pki.WriteFile(filepath.Join(dir, fileServers), append(data, '\n')); err != nil {
		return err
	}
	return replaceCertificate(dir, id)
}

// replaceCertificate writes what a renewal changes.
func replaceCertificate(dir string, id Identity) error {
	if err := pki.SaveCertificates(filepath.Join(dir, fileRoots), id.Roots...); err != nil {
		return err
	}
	if err := pki.SaveCertificates(filepath.Join(dir, fileCert), id.Chain...); err != nil {
		return err
	}
	err := os.Rename(filepath.Join(dir, fileNextKey), filepath.Join(dir, fileKey))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // not there: another process, which had the same key, was faster
		return fileError(err)
	}
	return nil
}

func (id Identity) validate() error {
	if err := errors.Join(validate.Name("cluster", id.Cluster), validate.Shard("shard", id.Shard)); err != nil {
		return err
	}
	if len(id.Servers) == 0 {
		return nstance.FieldError("servers", "name the operator API's address", "there is none")
	}
	if _, err := pki.NewPool(id.Roots...); err != nil {
		return err
	}
	_, err := id.pair()
	return err
}

// LoadIdentity reads what SaveIdentity wrote. It fails with Denied when there is no
// identity, Invalid when it cannot be used.
func LoadIdentity(dir string) (Identity, error) {
	var err error
	for range 3 { // another process may be replacing the key just now
		var id Identity
		if id, err = loadIdentity(dir); err == nil {
			return id, nil
		}
	}
	if errors.Is(err, nstance.NotFound) {
		return Identity{}, fault(nstance.Denied, err, "run nstance-admin login, or name the directory with --identity",
			fmt.Sprintf("not logged in: %s holds no identity", dir))
	}
	if errors.Is(err, syscall.ENOTDIR) {
		return Identity{}, nstance.FieldError("--identity", "name the folder that nstance-admin login wrote to", "%s is a file", dir)
	}
	return Identity{}, fmt.Errorf("identity in %s: %w", dir, err)
}

func loadIdentity(dir string) (Identity, error) {
	var id Identity
	certs, err := pki.LoadCertificates(filepath.Join(dir, fileCert))
	if err != nil {
		return id, err
	}
	for _, c := range certs {
		id.Chain = append(id.Chain, c.Raw)
	}
	roots, err := pki.LoadCertificates(filepath.Join(dir, fileRoots))
	if err != nil {
		return id, err
	}
	for _, c := range roots {
		id.Roots = append(id.Roots, c.Raw)
	}
	if err := id.locate(filepath.Join(dir, fileServers)); err != nil {
		return id, err
	}
	for _, name := range []string{fileKey, fileNextKey} {
		if id.Key, err = pki.LoadKey(filepath.Join(dir, name)); err != nil && !errors.Is(err, nstance.NotFound) {
			return id, err
		}
		if _, perr := pki.Pair(id.Key, certs...); err == nil && perr == nil {
			return id, id.validate()
		}
	}
	return id, nstance.Errorf(nstance.Invalid, "the key of %s is missing: log in again", fileCert)
}

func (id *Identity) locate(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fileError(err)
	}
	var at identityConfig
	if err := json.Unmarshal(data, &at); err != nil {
		return nstance.Errorf(nstance.Invalid, "%s: %w", path, err)
	}
	id.Servers, id.Shard, id.Cluster = at.Servers, at.Shard, at.Cluster
	return nil
}

func (id Identity) pair() (*tls.Certificate, error) {
	certs, err := pki.ParseCertificates(pki.MarshalCertificates(id.Chain...))
	if err != nil {
		return nil, err
	}
	return pki.Pair(id.Key, certs...)
}

// tls returns the TLS settings of connections with the identity.
func (id Identity) tls() (*tls.Config, error) {
	pair, err := id.pair()
	if err != nil {
		return nil, err
	}
	roots, err := pki.NewPool(id.Roots...)
	if err != nil {
		return nil, err
	}
	return pki.ClientTLS(roots, pair, id.Shard, id.Cluster), nil
}

// life returns when the certificate should be renewed, at two thirds of its life,
// and when it ends.
func (id Identity) life() (renew, end time.Time, err error) {
	pair, err := id.pair()
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	from, until := pair.Leaf.NotBefore, pair.Leaf.NotAfter
	return from.Add(until.Sub(from) * 2 / 3), until, nil
}

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fileError(err)
	}
	return nil
}

// nextKey returns the key of a request under way, making it if there is none:
// a request that is repeated after a lost answer must carry the same key.
func nextKey(dir string) (key ed25519.PrivateKey, err error) {
	path := filepath.Join(dir, fileNextKey)
	if key, err = pki.LoadKey(path); !errors.Is(err, nstance.NotFound) {
		return key, err
	}
	fresh := pki.NewKey()
	temporary, err := os.MkdirTemp(dir, ".key.*")
	if err != nil {
		return nil, fileError(err)
	}
	defer func() { _ = os.RemoveAll(temporary) }() // a leftover is never used
	if err := pki.SaveKey(filepath.Join(temporary, fileKey), fresh); err != nil {
		return nil, err
	}
	switch err := os.Link(filepath.Join(temporary, fileKey), path); { // unlike a rename it replaces nothing
	case errors.Is(err, fs.ErrExist):
		key, err := pki.LoadKey(path)
		return key, err
	case err != nil:
		return nil, fileError(err)
	}
	return fresh, nil
}

func fileError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nstance.Errorf(nstance.NotFound, "%w", err)
	case errors.Is(err, fs.ErrPermission):
		return nstance.Errorf(nstance.Denied, "%w", err)
	}
	return nstance.Errorf(nstance.Internal, "%w", err)
}
