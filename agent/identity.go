package agent

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

// Files of an identity directory. The key and its certificate must change
// together, so each pair has a directory of its own, v1, v2 and so on, and the
// link current names the one in use: to swap a pair is to swap the link. A
// directory beyond the current one holds the key of a request under way, so
// that the same key is used again after a crash.
const (
	fileNonce      = "nonce.jwt"   // from user data
	fileCA         = "ca.crt"      // from user data: trusted for registration
	fileSpent      = "nonce.spent" // digest of the nonce that was exchanged
	fileServer     = "server.json" // which server to talk to, from the nonce
	fileConfigHash = "config.hash" // of the configuration last applied
	fileKey        = "key.pem"
	fileCert       = "cert.pem"
	fileRoots      = "ca.pem" // authorities of the server, from registration on
	linkCurrent    = "current"
)

// A home names the server that the agent belongs to.
type home struct {
	Cluster nstance.ClusterID `json:"cluster"`
	Shard   nstance.ShardID   `json:"shard"`
}

// An identity is a certificate in use, and what to trust with it.
type identity struct {
	home
	pair  *tls.Certificate
	roots *x509.CertPool
}

func (id *identity) expired(now time.Time) bool { return !now.Before(id.pair.Leaf.NotAfter) }

func (id *identity) tls() *tls.Config { return pki.ClientTLS(id.roots, id.pair, id.Shard, id.Cluster) }

// A vault is the identity directory. One agent at a time uses it.
type vault struct {
	dir  string
	mode fs.FileMode // of all files but keys

	step func() error // called before each change of the directory, for crash tests; nil: nothing
}

// next is called before each change of the directory.
func (v vault) next() error {
	if v.step == nil {
		return nil
	}
	return v.step()
}

func (v vault) path(elem ...string) string { return filepath.Join(append([]string{v.dir}, elem...)...) }

// A noUserData says that user data has not been written yet. No server was asked.
type noUserData struct{ error }

func (e *noUserData) Unwrap() error { return e.error }

// nonce reads the nonce and its claims. Unavailable means that user data has
// not been written yet.
func (v vault) nonce() (string, claims, error) {
	data, err := v.read(fileNonce)
	if errors.Is(err, nstance.NotFound) {
		return "", claims{}, &noUserData{nstance.Errorf(nstance.Unavailable, "there is no nonce yet: %v", err)}
	}
	if err != nil {
		return "", claims{}, err
	}
	token := strings.TrimSpace(string(data))
	c, err := parseNonce(token)
	if err != nil {
		return "", claims{}, fmt.Errorf("%s: %w", v.path(fileNonce), err)
	}
	return token, c, nil
}

// registrationRoots are the authorities that user data says to trust.
func (v vault) registrationRoots() (*x509.CertPool, error) {
	roots, err := loadRoots(v.path(fileCA))
	if errors.Is(err, nstance.NotFound) {
		return nil, &noUserData{nstance.Errorf(nstance.Unavailable, "there is no authority to trust yet: %v", err)}
	}
	return roots, err
}

// configHash returns the hash of the configuration last applied, or "".
func (v vault) configHash() string {
	data, err := v.read(fileConfigHash)
	if err != nil {
		return "" // unknown, which is never taken for drift
	}
	return strings.TrimSpace(string(data))
}

func (v vault) read(name string) ([]byte, error) {
	f, err := os.Open(v.path(name))
	if err != nil {
		return nil, fileError(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxNonce+1))
	if err != nil {
		return nil, fileError(err)
	}
	if len(data) > maxNonce {
		return nil, nstance.Errorf(nstance.Invalid, "%s is longer than %d bytes", f.Name(), maxNonce)
	}
	return data, nil
}

// home reads which server this agent belongs to; where the file is missing the
// nonce says the same.
func (v vault) home() (home, error) {
	data, err := v.read(fileServer)
	if errors.Is(err, nstance.NotFound) {
		_, c, err := v.nonce()
		return home{Cluster: c.Cluster, Shard: c.Shard}, err
	}
	if err != nil {
		return home{}, err
	}
	var h home
	if err := json.Unmarshal(data, &h); err != nil {
		return home{}, nstance.Errorf(nstance.Invalid, "%s: %w", v.path(fileServer), err)
	}
	return h, errors.Join(h.Cluster.Validate("cluster"), h.Shard.Validate("shard"))
}

// settle records what only the nonce says, before the nonce stops mattering.
func (v vault) settle(c claims) error {
	data, err := json.Marshal(home{Cluster: c.Cluster, Shard: c.Shard})
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

// spent reports whether this nonce has become a certificate already. It cannot
// become another: the server would take the attempt for a theft.
func (v vault) spent(token string) bool {
	data, err := v.read(fileSpent)
	return err == nil && strings.TrimSpace(string(data)) == digest(token)
}

func (v vault) spend(token string) error {
	return v.write(v.path(fileSpent), []byte(digest(token)+"\n"))
}

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// dirMode lets those search a directory who may read the files in it.
func (v vault) dirMode() fs.FileMode { return 0o700 | v.mode&0o040 | v.mode&0o040>>2 }

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

// fileError classifies what the file system says. Its messages name the file.
func fileError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nstance.Errorf(nstance.NotFound, "%w", err)
	case errors.Is(err, fs.ErrPermission):
		return nstance.Errorf(nstance.Denied, "%w", err)
	}
	return nstance.Errorf(nstance.Internal, "%w", err)
}

func (v vault) write(path string, data []byte) error { return pki.WriteFileMode(path, data, v.mode) }

// repair gives files the permission bits that they should have: earlier versions
// set them after the write, and could be interrupted in between.
func (v vault) repair() error {
	n, err := v.version()
	if err != nil {
		return err
	}
	for _, name := range []string{
		fileSpent, fileServer, fileConfigHash,
		filepath.Join(version(n), fileCert), filepath.Join(version(n), fileRoots),
	} {
		info, err := os.Stat(v.path(name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Perm() == v.mode {
			continue
		}
		if err == nil {
			err = os.Chmod(v.path(name), v.mode)
		}
		if err != nil {
			return fileError(err)
		}
	}
	return nil
}
