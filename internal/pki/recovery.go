package pki

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"

	"github.com/nstance-go/nstance"
)

const (
	// The tls-exporter channel binding, RFC 9266 §2: the label, no context, and
	// the length.
	bindingLabel = "EXPORTER-Channel-Binding"
	bindingSize  = 32

	// recoveryLabel begins what is signed. Nothing else that an agent's key
	// signs begins so: TLS 1.3 starts with spaces (RFC 8446 §4.4.3), a request
	// for a certificate with an ASN.1 tag.
	recoveryLabel = "nstance agent recovery v1\x00"
)

// ChannelBinding returns a value that both ends of a connection compute alike
// and that no other connection has. It fails with Invalid unless the
// connection's TLS 1.3 handshake is complete.
func ChannelBinding(state tls.ConnectionState) ([]byte, error) {
	if !state.HandshakeComplete || state.Version != tls.VersionTLS13 {
		return nil, nstance.Errorf(nstance.Invalid, "connection is not secured by TLS 1.3")
	}
	value, err := state.ExportKeyingMaterial(bindingLabel, nil, bindingSize)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "channel binding: %w", err)
	}
	return value, nil
}

// ProveRecovery returns the proof that the holder of key asks for csr over the
// connection with that channel binding.
func ProveRecovery(key ed25519.PrivateKey, binding, csr []byte) []byte {
	return ed25519.Sign(key, recoveryMessage(binding, csr))
}

// VerifyRecovery fails with Denied unless proof is what ProveRecovery returns
// for the private key of key and the same binding and csr.
func VerifyRecovery(key ed25519.PublicKey, binding, csr, proof []byte) error {
	if len(key) != ed25519.PublicKeySize || len(binding) != bindingSize || !ed25519.Verify(key, recoveryMessage(binding, csr), proof) {
		return denied("the proof is not by the certificate's key, or for another connection or request")
	}
	return nil
}

func recoveryMessage(binding, csr []byte) []byte {
	sum := sha256.Sum256(csr)
	return append(append([]byte(recoveryLabel), binding...), sum[:]...)
}
