package pki

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"

	"github.com/nstance-go/nstance"
)

const (
	typeKey  = "PRIVATE KEY" // PKCS#8
	typeCert = "CERTIFICATE"
)

// MarshalKey returns key as PEM (PKCS#8).
func MarshalKey(key ed25519.PrivateKey) ([]byte, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, nstance.FieldError("key", "make it with pki.NewKey", "is %d bytes long instead of %d", len(key), ed25519.PrivateKeySize)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: der}), nil
}

// ParseKey returns the one Ed25519 key in data, or Invalid. Its errors never
// quote data.
func ParseKey(data []byte) (ed25519.PrivateKey, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != typeKey || len(bytes.TrimSpace(rest)) > 0 {
		return nil, nstance.Errorf(nstance.Invalid, "not exactly one PEM block of type %q", typeKey)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "private key is not PKCS#8")
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, nstance.Errorf(nstance.Invalid, "private key is a %T instead of Ed25519", parsed)
	}
	return key, nil
}

// MarshalCertificates returns DER certificates as PEM, in the given order.
func MarshalCertificates(ders ...[]byte) []byte {
	var out []byte
	for _, der := range ders {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: typeCert, Bytes: der})...)
	}
	return out
}

// ParseCertificates returns the certificates in PEM data, at least one, or
// Invalid. Anything but certificates and white space is refused.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := bytes.TrimSpace(data); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != typeCert {
			return nil, nstance.Errorf(nstance.Invalid, "not a PEM block of type %q after %d certificates", typeCert, len(certs))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nstance.Errorf(nstance.Invalid, "certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, nstance.Errorf(nstance.Invalid, "holds no certificate")
	}
	return certs, nil
}

// NewPool returns a pool of DER certificates, at least one, or Invalid.
func NewPool(ders ...[]byte) (*x509.CertPool, error) {
	if len(ders) == 0 {
		return nil, nstance.Errorf(nstance.Invalid, "no root certificate")
	}
	pool := x509.NewCertPool()
	for i, der := range ders {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, nstance.Errorf(nstance.Invalid, "root certificate %d: %w", i+1, err)
		}
		pool.AddCert(cert)
	}
	return pool, nil
}

// Pair joins a key with its chain, leaf first, for use in TLS. It fails with
// Invalid when the leaf is for another key.
func Pair(key ed25519.PrivateKey, chain ...*x509.Certificate) (*tls.Certificate, error) {
	if len(chain) == 0 || len(key) != ed25519.PrivateKeySize {
		return nil, nstance.Errorf(nstance.Invalid, "certificate or key is missing")
	}
	if pub, ok := chain[0].PublicKey.(ed25519.PublicKey); !ok || !pub.Equal(key.Public()) {
		return nil, nstance.Errorf(nstance.Invalid, "certificate is for another key than the one given")
	}
	pair := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, cert := range chain {
		pair.Certificate = append(pair.Certificate, cert.Raw)
	}
	return pair, nil
}
