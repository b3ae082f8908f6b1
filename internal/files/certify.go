package files

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
)

// An Authority certifies what machines show each other.
type Authority interface {
	// Issue signs a certificate and has it logged.
	Issue(ctx context.Context, t keyring.Template) (keyring.KeyRecord, error)
	// Certificate returns the certificate (DER) of the key that signs.
	Certificate() []byte
	// CertPEM returns the certificates of all keys that are trusted.
	CertPEM() []byte
}

// A Key is a key that a machine has.
type Key struct {
	Public      ed25519.PublicKey
	Certificate []byte // DER of the one that the machine holds for it; nil: none
	Err         error  // why there is no key
}

// slack is what the times of a certificate may differ from what was asked for:
// they are cut to seconds, and begin a minute early.
const slack = 2 * time.Minute

// renewAt is two thirds of the way through a certificate's life.
func renewAt(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// certify returns the certificate for a machine's key: the one that it has, as
// long as that is good and young enough, else a new one.
func (k *Kit) certify(ctx context.Context, name string, m *Machine, key Key, by Authority, now time.Time) (*x509.Certificate, error) {
	if key.Err != nil {
		return nil, key.Err
	}
	if key.Public == nil {
		return nil, nstance.Errorf(nstance.Unavailable, "the machine has made no key yet")
	}
	want, err := k.template(ctx, name, m, key.Public, now)
	if err != nil {
		return nil, err
	}
	if held, err := x509.ParseCertificate(key.Certificate); err == nil && good(held, want, by, now) {
		return held, nil
	}
	rec, err := by.Issue(ctx, want)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(rec.Certificate)
}

// template says what to certify.
func (k *Kit) template(ctx context.Context, name string, m *Machine, key ed25519.PublicKey, now time.Time) (t keyring.Template, err error) {
	c := k.def.Certificates[name]
	t = keyring.Template{Tenant: m.Tenant, Key: key, Lifetime: c.Validity, Now: now, Uses: uses(c)}
	if t.Subject, err = k.certifiedName(ctx, c, c.CommonName, m); err != nil {
		return t, err
	}
	for _, text := range c.DNSNames {
		dns, err := k.certifiedName(ctx, c, text, m)
		if err != nil {
			return t, err
		}
		if dns != "" { // such as .Instance.FQDN of a machine without
			t.DNSNames = append(t.DNSNames, dns)
		}
	}
	if c.Addresses {
		t.Addresses = m.Addresses
	}
	return t, nil
}

// certifiedName renders a template of a name. What the machine says of itself, and what
// its tenant has set through the API, reaches a certificate only within the domains that
// the tenant or the certificate permits: a name that would be another one without it must
// be there.
func (k *Kit) certifiedName(ctx context.Context, c nstance.Certificate, text string, m *Machine) (string, error) {
	name, err := k.render(ctx, text, &view{common: &k.common, vars: k.def.Vars, machine: m})
	if err != nil || name == "" {
		return "", err
	}
	known, err := k.render(ctx, text, &view{common: &k.common, vars: m.knownVars(k.def.Vars), machine: m.known()})
	if err == nil && known == name {
		return name, nil
	}
	domains := m.Domains
	if len(domains) == 0 && c.DNSSuffix != "" {
		domains = []string{c.DNSSuffix}
	}
	switch inside := func(domain string) bool { return within(name, domain) }; {
	case slices.ContainsFunc(domains, inside):
		return name, nil
	case len(domains) == 0:
		return "", nstance.FieldError("dns_suffix", "set it to the domain of such names", "name %q is what the machine calls itself, or its tenant", name)
	}
	return "", nstance.Errorf(nstance.Denied, "the machine, or its tenant, calls it %q, which is not a name within %s", name, strings.Join(domains, " or "))
}

// within reports whether name is a name of that domain, by whole labels.
func within(name, suffix string) bool {
	host, ok := strings.CutSuffix(strings.ToLower(name), "."+suffix)
	if suffix == "" || !ok {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return false
		}
	}
	return true
}

func uses(c nstance.Certificate) (out []x509.ExtKeyUsage) {
	if c.Server {
		out = append(out, x509.ExtKeyUsageServerAuth)
	}
	if c.Client {
		out = append(out, x509.ExtKeyUsageClientAuth)
	}
	return out
}

// good reports whether a certificate that a machine holds is what it would get
// now, and has not reached two thirds of its life.
func good(c *x509.Certificate, want keyring.Template, by Authority, now time.Time) bool {
	issuer, err := x509.ParseCertificate(by.Certificate())
	if err != nil || c.CheckSignatureFrom(issuer) != nil || !want.Key.Equal(c.PublicKey) {
		return false
	}
	life := c.NotAfter.Sub(c.NotBefore)
	full := max(life-want.Lifetime, want.Lifetime-life) <= slack || c.NotAfter.Equal(issuer.NotAfter)
	return full && !now.Before(c.NotBefore) && now.Before(renewAt(c)) &&
		c.Subject.CommonName == want.Subject && slices.Equal(c.Subject.Organization, []string{string(want.Tenant)}) &&
		slices.Equal(c.DNSNames, want.DNSNames) && slices.EqualFunc(c.IPAddresses, want.Addresses, sameAddress) &&
		slices.Equal(c.ExtKeyUsage, want.Uses)
}

func sameAddress(a net.IP, b netip.Addr) bool {
	other, ok := netip.AddrFromSlice(a)
	return ok && other.Unmap() == b.Unmap()
}

// pem writes one part of a certificate.
func pem(part nstance.CertificatePart, c *x509.Certificate, by Authority) []byte {
	if part == nstance.PartCert {
		return pki.MarshalCertificates(c.Raw)
	}
	return bytes.Join([][]byte{pki.MarshalCertificates(c.Raw), pki.MarshalCertificates(by.Certificate())}, nil)
}
