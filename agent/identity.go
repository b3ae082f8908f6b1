package agent

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/regular"
	"github.com/nstance-go/nstance/internal/validate"
)

// Files of an identity directory. The key and its certificate must change
// together, so each pair has a directory of its own, v1, v2 and so on, and the
// link current names the one in use: to swap a pair is to swap the link. A
// directory beyond the current one holds the key of a request under way, so
// that the same key is used again after a crash.
const (
	fileNonce      = "nonce.jwt"   // from user data
	fileCA         = "ca.crt"      // from user data: trusted for registration
	fileUsedNonce  = "nonce.used"  // digest of the nonce that was exchanged
	fileServer     = "server.json" // which server to talk to, from the nonce
	fileConfigHash = "config.hash" // of the configuration last applied
	fileKey        = "key.pem"
	fileCert       = "cert.pem"
	fileRoots      = "ca.pem" // authorities of the server, from registration on
	linkCurrent    = "current"
)

// A serverRef names the server that the agent belongs to.
type serverRef struct {
	Cluster nstance.ClusterID `json:"cluster"`
	Shard   nstance.ShardID   `json:"shard"`
}

// An identity is a certificate in use, and what to trust with it.
type identity struct {
	serverRef
	pair  *tls.Certificate
	roots *x509.CertPool
}

func (id *identity) expired(now time.Time) bool { return !now.Before(id.pair.Leaf.NotAfter) }

func (id *identity) tls() *tls.Config { return pki.ClientTLS(id.roots, id.pair, id.Shard, id.Cluster) }

// An identityDir is the identity directory. One agent at a time uses it.
type identityDir struct {
	dir      string
	userData string      // folder of nonce and authority; one that has none: dir
	mode     fs.FileMode // of all files but keys

	step func() error // called before each change of the directory, for crash tests; nil: nothing
}

// next is called before each change of the directory.
func (v identityDir) next() error {
	if v.step == nil {
		return nil
	}
	return v.step()
}

func (v identityDir) path(elem ...string) string {
	return filepath.Join(append([]string{v.dir}, elem...)...)
}

// userDataPath returns the path of a file that user data puts there.
func (v identityDir) userDataPath(name string) string {
	path := filepath.Join(v.userData, name)
	if _, err := os.Stat(path); v.userData == "" || errors.Is(err, fs.ErrNotExist) {
		return v.path(name)
	}
	return path
}

// A noUserData error means that user data has not been written yet, or not all of it, or is that of another machine.
// No server was asked.
type noUserData struct{ error }

func (e *noUserData) Unwrap() error { return e.error }

// nonce reads the nonce and its claims. Unavailable means that user data has
// not been written yet.
func (v identityDir) nonce() (string, claims, error) {
	path := v.userDataPath(fileNonce)
	data, err := readFile(path, maxNonce)
	if errors.Is(err, nstance.NotFound) {
		return "", claims{}, &noUserData{nstance.Errorf(nstance.Unavailable, "there is no nonce yet: %v", err)}
	}
	if err != nil {
		return "", claims{}, err
	}
	token := strings.TrimSpace(string(data))
	c, err := parseNonce(token)
	if err != nil { // perhaps half of it has been written
		return "", claims{}, &noUserData{fmt.Errorf("%s: %w", path, err)}
	}
	return token, c, nil
}

// registrationRoots returns the authorities in user data.
func (v identityDir) registrationRoots() (*x509.CertPool, error) {
	roots, err := loadRoots(v.userDataPath(fileCA))
	switch {
	case errors.Is(err, nstance.NotFound):
		err = &noUserData{nstance.Errorf(nstance.Unavailable, "there is no authority to trust yet: %v", err)}
	case errors.Is(err, nstance.Invalid):
		err = &noUserData{err}
	}
	return roots, err
}

// configHash returns the hash of the configuration last applied, or "".
func (v identityDir) configHash() string {
	data, err := v.read(fileConfigHash)
	if err != nil {
		return "" // unknown, which is not drift
	}
	return strings.TrimSpace(string(data))
}

func (v identityDir) read(name string) ([]byte, error) { return readFile(v.path(name), maxNonce) }

func readFile(path string, limit int64) ([]byte, error) {
	data, err := regular.File(path, limit)
	if err != nil {
		return nil, fileError(err)
	}
	return data, nil
}

// server reads which server this agent belongs to, from the nonce if the file is
// missing.
func (v identityDir) server() (serverRef, error) {
	data, err := v.read(fileServer)
	if errors.Is(err, nstance.NotFound) {
		_, c, err := v.nonce()
		return serverRef{Cluster: c.Cluster, Shard: c.Shard}, err
	}
	if err != nil {
		return serverRef{}, err
	}
	var h serverRef
	if err := json.Unmarshal(data, &h); err != nil {
		return serverRef{}, nstance.Errorf(nstance.Invalid, "%s: %w", v.path(fileServer), err)
	}
	return h, errors.Join(validate.Name("cluster", h.Cluster), validate.Shard("shard", h.Shard))
}

// saveClaims stores the claims of the nonce that are needed after registration.
func (v identityDir) saveClaims(c claims) error {
	data, err := json.Marshal(serverRef{Cluster: c.Cluster, Shard: c.Shard})
	if err != nil {
		return err
	}
	if err := v.write(v.path(fileServer), append(data, '\n')); err != nil {
		return err
	}
	if c.ConfigHash == "" {
		return nil
	}
	return v.write(v.path(fileConfigHash), []byte(c.ConfigHash+"\n"))
}

// nonceUsed reports whether this nonce has been exchanged for a certificate. A
// second exchange would raise an alarm at the server.
func (v identityDir) nonceUsed(token string) bool {
	data, err := v.read(fileUsedNonce)
	return err == nil && strings.TrimSpace(string(data)) == digest(token)
}

func (v identityDir) markNonceUsed(token string) error {
	return v.write(v.path(fileUsedNonce), []byte(digest(token)+"\n"))
}

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// dirMode permits the search of a directory to the readers of its files.
func (v identityDir) dirMode() fs.FileMode { return 0o700 | v.mode&0o040 | v.mode&0o040>>2 }

func loadRoots(path string) (*x509.CertPool, error) {
	certs, err := pki.LoadCertificates(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return pool, nil
}

// fileError classifies an error of the file system. Its message names the file.
func fileError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nstance.Errorf(nstance.NotFound, "%w", err)
	case errors.Is(err, fs.ErrPermission):
		return nstance.Errorf(nstance.Denied, "%w", err)
	case errors.Is(err, nstance.Invalid):
		return err
	}
	return nstance.Errorf(nstance.Internal, "%w", err)
}

func (v identityDir) write(path string, data []byte) error {
	return pki.WriteFileMode(path, data, v.mode)
}
