// Package pki holds what every party that shows or checks a certificate must
// agree on: how an identity is written into a certificate, how a server is
// recognised, and how keys and certificates are kept in files. It issues
// nothing; package registration does. The agent links it, so it stays small.
//
// All keys are Ed25519 and all connections TLS 1.3.
package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"

	"github.com/nstance-go/nstance"
)

// NewKey returns a fresh private key.
func NewKey() ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails: crypto/rand ends the process instead
	return ed25519.NewKeyFromSeed(seed)
}

// KeyFingerprint returns the lower-case hex SHA-256 of the DER form of pub
// (SubjectPublicKeyInfo, RFC 5280 §4.1), by which records and identities name
// a key. It is "" for a key of a type that has no such form.
func KeyFingerprint(pub any) string {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// NewCSR returns a PKCS#10 request in DER that proves possession of key. The
// subject is a wish: for agents their instance ID, which the nonce decides
// anyway, for others the start of the name they would like to have.
func NewCSR(key ed25519.PrivateKey, subject string) ([]byte, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, nstance.FieldError("key", "make it with pki.NewKey", "is %d bytes long instead of %d", len(key), ed25519.PrivateKeySize)
	}
	tmpl := x509.CertificateRequest{Subject: pkix.Name{CommonName: subject}}
	der, err := x509.CreateCertificateRequest(rand.Reader, &tmpl, key)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "certificate request: %w", err)
	}
	return der, nil
}

// ServerName is the name by which clients know the server of a shard, whatever
// address they dialled.
func ServerName(shard nstance.ShardID, cluster nstance.ClusterID) string {
	return "server." + string(shard) + "." + string(cluster)
}

// SerialOf returns a certificate's serial number as lower-case hex, the form
// in records, logs and nstance.Identity.
func SerialOf(cert *x509.Certificate) string { return cert.SerialNumber.Text(16) }
