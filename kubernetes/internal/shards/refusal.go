package shards

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
)

// A Refusal is why a shard and a certificate cannot be used together. Only another
// certificate helps: trying again does not.
type Refusal struct {
	Certificate []byte // DER
	Err         error
}

// Error implements error.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the shard's answer.
func (r *Refusal) Unwrap() error { return r.Err }

// refused returns the error of the first call on a connection, as a Refusal if it is one.
func (id Identity) refused(err error) error {
	if !isRefusal(err) {
		return err
	}
	return &Refusal{id.Certificate(), err}
}

// isRefusal reports whether an answer is about the certificate: the first call needs no
// right, and names no object.
func isRefusal(err error) bool {
	switch nstance.CodeOf(err) {
	case nstance.Denied, nstance.NotFound: // NotFound: there is no record of this operator
		return true
	case nstance.Unavailable:
		return slices.ContainsFunc(handshakeRefusals(), func(text string) bool { return strings.Contains(err.Error(), text) })
	}
	return false
}

// certificateAlerts are the TLS alerts about the certificate of the peer, RFC 8446 section 6.2:
// bad_certificate to certificate_unknown, unknown_ca and access_denied.
var certificateAlerts = []tls.AlertError{42, 43, 44, 45, 46, 48, 49}

// handshakeRefusals returns what the error of a handshake says that ends for a certificate:
// that of the operator, by an alert, or that of the server, whose authority the operator does
// not know. gRPC keeps only the text.
func handshakeRefusals() []string {
	texts := []string{x509.UnknownAuthorityError{}.Error()}
	for _, alert := range certificateAlerts {
		texts = append(texts, alert.Error())
	}
	return texts
}
