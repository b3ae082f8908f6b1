package blob

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"

	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bucket"
)

// keySize is how long an encryption key is, in bytes (AES-256).
const keySize = 32

// scopeName is how encryption scopes are named ("Create and manage encryption scopes").
var scopeName = regexp.MustCompile(`^[A-Za-z0-9-]{3,63}$`)

// check refuses options that the service would refuse.
func (o *Options) check() error {
	switch {
	case len(o.EncryptionKey) != 0 && len(o.EncryptionKey) != keySize:
		return nstance.Errorf(nstance.Invalid, "encryption key has %d bytes: use 32", len(o.EncryptionKey))
	case len(o.EncryptionKey) != 0 && o.EncryptionScope != "":
		return nstance.Errorf(nstance.Invalid, "encryption key and encryption scope exclude each other: use one")
	case o.EncryptionScope != "" && !scopeName.MatchString(o.EncryptionScope):
		return nstance.Errorf(nstance.Invalid, "encryption scope %.64q: use 3 to 63 letters, digits and -", o.EncryptionScope)
	}
	return nil
}

// key is how requests carry the encryption key; nil: there is none.
// https://learn.microsoft.com/en-us/azure/storage/blobs/encryption-customer-provided-keys
func (o *Options) key() *azblob.CPKInfo {
	if len(o.EncryptionKey) == 0 {
		return nil
	}
	sum := sha256.Sum256(o.EncryptionKey)
	algorithm := azblob.EncryptionAlgorithmTypeAES256
	return &azblob.CPKInfo{
		EncryptionAlgorithm: &algorithm, EncryptionKey: new(base64.StdEncoding.EncodeToString(o.EncryptionKey)),
		EncryptionKeySHA256: new(base64.StdEncoding.EncodeToString(sum[:])),
	}
}

// scope is how writes name the encryption scope; nil: there is none.
func (o *Options) scope() *azblob.CPKScopeInfo {
	if o.EncryptionScope == "" {
		return nil
	}
	return &azblob.CPKScopeInfo{EncryptionScope: &o.EncryptionScope}
}

// encryption reads the parameters about encryption into o. The service refuses keys that come
// without TLS.
func (o *Options) encryption(u *bucket.URL, service string) error {
	if name := u.Params.Get("encryption_scope"); name != "" {
		if o.EncryptionScope = name; !scopeName.MatchString(name) {
			return u.Invalid("encryption_scope", "use 3 to 63 letters, digits and -")
		}
	}
	file := u.Params.Get("encryption_key_file")
	switch {
	case file == "":
		return nil
	case o.EncryptionScope != "":
		return u.Invalid("encryption_key_file", "leave it or encryption_scope out")
	case !strings.HasPrefix(service, "https://"):
		return u.Invalid("encryption_key_file", "use protocol=https: a key is sent with each request")
	}
	text, err := readFile(file, 1<<10)
	if err != nil {
		return u.Invalid("encryption_key_file", "name a readable file of at most 1 KiB")
	}
	o.EncryptionKey, err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(o.EncryptionKey) != keySize {
		return u.Invalid("encryption_key_file", "write 32 bytes in base64 into the file, as openssl rand -base64 32 does")
	}
	return nil
}

// readFile reads a file of at most limit bytes.
func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = nstance.Errorf(nstance.Invalid, "is longer than %d bytes", limit)
	}
	return text, err
}

// maxCertificates bounds a file of certificates, in bytes.
const maxCertificates = 1 << 20

// transport connects as Go programs do, through the proxy that the environment names, and
// trusts the certificates of the parameter ca_file in addition to the system's; nil: there is
// no such parameter.
func transport(u *bucket.URL) (*http.Transport, error) {
	file := u.Params.Get("ca_file")
	if file == "" {
		return nil, nil
	}
	pem, err := readFile(file, maxCertificates)
	if err != nil {
		return nil, u.Invalid("ca_file", "name a readable file of at most 1 MiB")
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, u.Invalid("ca_file", "write certificates in PEM into the file")
	}
	base, _ := http.DefaultTransport.(*http.Transport)
	t := cmp.Or(base, &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}).Clone()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	return t, nil
}
