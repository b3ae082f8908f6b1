package keyring

import (
	"crypto/ed25519"
	"crypto/x509"

	"github.com/nstance-go/nstance"
)

// maxCSR bounds a certificate request, in bytes. One for an Ed25519 key and a
// name is about 200.
const maxCSR = 4 << 10

// ParseCSR returns the key in a PKCS#10 request (DER) that is signed by it. The
// rest of the request is ignored: the nonce or the present certificate decides
// what is certified. It fails with Invalid for any key but Ed25519, a signature by
// another key, and more than 4 KiB.
func ParseCSR(der []byte) (ed25519.PublicKey, error) {
	const remedy = "send a PKCS#10 request in DER for an Ed25519 key"
	if len(der) == 0 || len(der) > maxCSR {
		return nil, nstance.FieldError("csr", remedy, "is %d bytes long", len(der))
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, nstance.FieldError("csr", remedy, "cannot be parsed: %v", err)
	}
	key, ok := csr.PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, nstance.FieldError("csr", remedy, "is for a key of type %s", csr.PublicKeyAlgorithm)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, nstance.FieldError("csr", "sign it with the key it is for", "does not prove possession of its key: %v", err)
	}
	return key, nil
}
