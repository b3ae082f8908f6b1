package pki

import (
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// The role extension's OID is 1.2.840.113556.1.8000.2554.<uuid>.1 with the UUID
// aab8c2ee-f889-4224-8944-b5b832b82bf4, cut into five arcs of four and two of
// six hexadecimal digits. Under that arc every program may use what a UUID of their
// own yields, without registration: see "Obtaining an Object Identifier from
// Microsoft", learn.microsoft.com/windows/win32/ad. The arc made for UUIDs,
// 2.25 (ITU-T X.667), takes the UUID as one 128-bit number, and crypto/x509
// refuses every certificate with an extension whose OID has a number above 31
// bits.
//
// The extension is not critical, so that ordinary tools still verify the
// certificate; its value is one UTF8String, the role.
var oidRole = asn1.ObjectIdentifier{1, 2, 840, 113556, 1, 8000, 2554, 0xaab8, 0xc2ee, 0xf889, 0x4224, 0x8944, 0xb5b832, 0xb82bf4, 1}

var roles = []nstance.Role{nstance.RoleAgent, nstance.RoleOperator, nstance.RoleAdmin, nstance.RoleServer}

// RoleExtension returns the certificate extension that states role, or Invalid
// for a role that does not exist.
func RoleExtension(role nstance.Role) (pkix.Extension, error) {
	if !slices.Contains(roles, role) {
		return pkix.Extension{}, nstance.FieldError("role", "use agent, operator, admin or server", "role %q does not exist", role)
	}
	value, err := asn1.MarshalWithParams(string(role), "utf8")
	if err != nil {
		return pkix.Extension{}, nstance.Errorf(nstance.Invalid, "role %q: %w", role, err)
	}
	return pkix.Extension{Id: oidRole, Value: value}, nil
}

// IdentityOf reads the identity in a certificate: the common name as subject, exactly
// one organisation as tenant, exactly one role. It verifies no signature: use
// it on a certificate whose chain has been verified. It fails with Denied when
// any part is missing, doubled or malformed.
func IdentityOf(cert *x509.Certificate) (nstance.Identity, error) {
	role, err := roleOf(cert)
	if err != nil {
		return nstance.Identity{}, err
	}
	subject, org := cert.Subject.CommonName, cert.Subject.Organization
	if subject == "" {
		return nstance.Identity{}, denied("certificate has no common name")
	}
	if len(org) != 1 {
		return nstance.Identity{}, denied("certificate names %d organisations instead of one tenant", len(org))
	}
	tenant := nstance.TenantID(org[0])
	if err := validate.Name("tenant", tenant); err != nil {
		return nstance.Identity{}, denied("certificate's organisation: %w", err)
	}
	if role == nstance.RoleAgent {
		if _, err := nstance.ParseInstanceID(subject); err != nil {
			return nstance.Identity{}, denied("agent certificate's common name: %w", err)
		}
	}
	key, ok := cert.PublicKey.(ed25519.PublicKey)
	if !ok {
		return nstance.Identity{}, denied("certificate's key is %s instead of Ed25519", cert.PublicKeyAlgorithm)
	}
	return nstance.Identity{
		Subject: subject, Role: role, Tenant: tenant,
		Serial: SerialOf(cert), Key: KeyFingerprint(key), Issuer: hex.EncodeToString(cert.AuthorityKeyId), NotAfter: cert.NotAfter.UTC(),
	}, nil
}

// roleOf relies on crypto/x509 to refuse a certificate with one extension twice.
func roleOf(cert *x509.Certificate) (nstance.Role, error) {
	for _, ext := range cert.Extensions {
		if !ext.Id.Equal(oidRole) {
			continue
		}
		var role string
		rest, err := asn1.UnmarshalWithParams(ext.Value, &role, "utf8")
		if err != nil || len(rest) > 0 || !slices.Contains(roles, nstance.Role(role)) {
			return "", denied("certificate's role extension is not a known role")
		}
		return nstance.Role(role), nil
	}
	return "", denied("certificate states no role")
}

func denied(format string, args ...any) error { return nstance.Errorf(nstance.Denied, format, args...) }
