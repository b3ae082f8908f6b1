package keyring

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/validate"
)

// The two authorities of a cluster.
const (
	Identity = "identity" // signs servers, agents, operators and administrators
	Workload = "workload" // signs certificates that machines show each other
)

const (
	authorityLifetime = 10 * 365 * 24 * time.Hour
	// backdate is how far before its issue a certificate becomes valid, so that
	// a server whose clock is slightly behind accepts it at once.
	backdate = time.Minute
	// serverBackdate is the same for certificates that clients check: those of
	// authorities and servers. Clients' clocks are less reliable than servers'.
	serverBackdate   = time.Hour
	authoritySubject = "nstance " // followed by the authority's name
)

// An Authority signs certificates and holds the keys that are trusted. During a
// rotation it has several keys: one of them signs, all of them are trusted, and
// servers use a certificate of the oldest, which every client knows. A [Keyring]
// replaces its keys while it is in use. It is safe for concurrent use.
type Authority struct {
	name    string
	signers atomic.Pointer[signers]
}

// A signer is one key of an authority.
type signer struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func (s *signer) id() string { return hex.EncodeToString(s.cert.SubjectKeyId) }

// signers are the keys of an authority. They are immutable: a rotation replaces
// them.
type signers struct {
	current *signer
	oldest  *signer
	trusted []*signer // from the oldest to the newest
	pool    *x509.CertPool
}

// newSigners returns the keys, of which there is at least one, ordered from the
// oldest to the newest.
func newSigners(current *signer, trusted []*signer) *signers {
	s := &signers{current: current, oldest: trusted[0], trusted: trusted, pool: x509.NewCertPool()}
	for _, t := range trusted {
		s.pool.AddCert(t.cert)
	}
	return s
}

// NewAuthority returns the authority of that name, Identity or Workload, with a
// fresh key, valid for ten years from now.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	key := pki.NewKey()
	der, err := certifyAuthority(name, key, now)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "certificate of the %s authority: %w", name, err)
	}
	return newAuthority(name, &signer{cert, key}), nil
}

func newAuthority(name string, one *signer) *Authority {
	a := &Authority{name: name}
	a.signers.Store(newSigners(one, []*signer{one}))
	return a
}

// LoadAuthority returns the authority that CertPEM and KeyPEM describe. It
// fails with Invalid when they are no pair or no authority.
func LoadAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	name, one, err := loadSigner(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	return newAuthority(name, one), nil
}

func loadSigner(certPEM, keyPEM []byte) (name string, s *signer, err error) {
	certs, err := pki.ParseCertificates(certPEM)
	if err != nil {
		return "", nil, err
	}
	key, err := pki.ParseKey(keyPEM)
	if err != nil {
		return "", nil, err
	}
	if _, err := pki.Pair(key, certs...); err != nil {
		return "", nil, err
	}
	name, ok := strings.CutPrefix(certs[0].Subject.CommonName, authoritySubject)
	switch {
	case len(certs) != 1:
		return "", nil, nstance.Errorf(nstance.Invalid, "%d certificates instead of one", len(certs))
	case !ok || !isAuthority(name) || !certs[0].IsCA:
		return "", nil, nstance.Errorf(nstance.Invalid, "certificate of %q is not an authority's", certs[0].Subject.CommonName)
	}
	return name, &signer{certs[0], key}, nil
}

func isAuthority(name string) bool { return name == Identity || name == Workload }

func certifyAuthority(name string, key ed25519.PrivateKey, now time.Time) ([]byte, error) {
	if !isAuthority(name) {
		return nil, nstance.FieldError("authority", "use identity or workload", "%q does not exist", name)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: authoritySubject + name},
		NotBefore:             now.Add(-serverBackdate),
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // signs leaves only
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "certificate of the %s authority: %w", name, err)
	}
	return der, nil
}

// newSerial returns 128 random bits.
func newSerial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b) // never fails: crypto/rand ends the process instead
	return new(big.Int).SetBytes(b)
}

// Name returns Identity or Workload.
func (a *Authority) Name() string { return a.name }

// Certificate returns the certificate (DER) of the key that signs.
func (a *Authority) Certificate() []byte { return slices.Clone(a.signers.Load().current.cert.Raw) }

// Certificates returns the certificates (DER) of all keys that are trusted, from
// the oldest to the newest.
func (a *Authority) Certificates() [][]byte {
	var out [][]byte
	for _, s := range a.signers.Load().trusted {
		out = append(out, slices.Clone(s.cert.Raw))
	}
	return out
}

// CertPEM returns Certificates as PEM, for agents and for storage.
func (a *Authority) CertPEM() []byte { return pki.MarshalCertificates(a.Certificates()...) }

// CertPEMOf returns the certificates of the keys with those IDs as PEM, from the
// oldest to the newest. Keys that are not trusted any more are left out.
func (a *Authority) CertPEMOf(ids []string) []byte {
	var ders [][]byte
	for _, s := range a.signers.Load().trusted {
		if slices.Contains(ids, s.id()) {
			ders = append(ders, s.cert.Raw)
		}
	}
	return pki.MarshalCertificates(ders...)
}

// KeyPEM returns the private key that signs, to store it in a Vault.
func (a *Authority) KeyPEM() ([]byte, error) { return pki.MarshalKey(a.signers.Load().current.key) }

// Issuer returns the ID of the key that signs in hex: the subject key identifier
// of its certificate and the Issuer of what it signs.
func (a *Authority) Issuer() string { return a.signers.Load().current.id() }

// Issuers returns the IDs of all keys that are trusted, from the oldest to the
// newest.
func (a *Authority) Issuers() []string {
	var out []string
	for _, s := range a.signers.Load().trusted {
		out = append(out, s.id())
	}
	return out
}

// Trusts reports whether certificates signed by the key with that ID are valid.
func (a *Authority) Trusts(issuer string) bool { return slices.Contains(a.Issuers(), issuer) }

// Pool returns the keys that are trusted now as roots to verify peers against.
// Do not change it.
func (a *Authority) Pool() *x509.CertPool { return a.signers.Load().pool }

// A Template describes a certificate. The identity authority requires a role, the
// workload authority refuses one.
type Template struct {
	Subject  string // common name
	Tenant   nstance.TenantID
	Key      ed25519.PublicKey
	Role     nstance.Role  // decides the use: of clients, and of servers too for RoleServer
	Lifetime time.Duration // from Now; cut short where the authority itself ends
	Now      time.Time

	Shard   nstance.ShardID   // for RoleServer: with Cluster it makes the
	Cluster nstance.ClusterID // only name in the certificate

	DNSNames  []string           // for workloads
	Addresses []netip.Addr       // for workloads, as observed by the provider where it reports any
	Uses      []x509.ExtKeyUsage // for workloads; nil: of servers and of clients
}

// Issue signs a certificate with a random serial of 128 bits, valid from one
// minute before Now, a server's from one hour before. It fails with Invalid for a
// template that this authority must not sign.
func (a *Authority) Issue(t Template) (KeyRecord, error) { return a.issue(a.signers.Load().current, t) }

func (a *Authority) issue(by *signer, t Template) (KeyRecord, error) {
	if err := a.check(by, t); err != nil {
		return KeyRecord{}, err
	}
	cert, err := t.certificate()
	if err != nil {
		return KeyRecord{}, err
	}
	if cert.NotAfter.After(by.cert.NotAfter) {
		cert.NotAfter = by.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, by.cert, t.Key, by.key)
	if err != nil {
		return KeyRecord{}, nstance.Errorf(nstance.Internal, "certificate of %q: %w", t.Subject, err)
	}
	return KeyRecord{
		Fingerprint: pki.KeyFingerprint(t.Key),
		PublicKey:   slices.Clone(t.Key),
		Serial:      pki.SerialOf(cert),
		Issuer:      by.id(),
		NotBefore:   cert.NotBefore,
		NotAfter:    cert.NotAfter,
		Certificate: der,
	}, nil
}

func (a *Authority) check(by *signer, t Template) error {
	switch {
	case len(t.Key) != ed25519.PublicKeySize:
		return nstance.FieldError("key", "use an Ed25519 key", "is %d bytes long", len(t.Key))
	case t.Subject == "":
		return nstance.FieldError("subject", "name the holder", "is empty")
	case t.Lifetime <= 0:
		return nstance.FieldError("lifetime", "use a positive duration", "is %s", t.Lifetime)
	case t.Now.Before(by.cert.NotBefore) || !t.Now.Before(by.cert.NotAfter):
		return nstance.Errorf(nstance.Internal, "the %s authority is valid from %s to %s only: check the clock, or rotate the authority",
			a.name, by.cert.NotBefore.Format(time.RFC3339), by.cert.NotAfter.Format(time.RFC3339))
	case (t.Role != "") != (a.name == Identity):
		return nstance.FieldError("role", "use the identity authority for roles, the workload authority without a role",
			"role %q cannot be certified by the %s authority", t.Role, a.name)
	case t.Role != "" && len(t.DNSNames)+len(t.Addresses)+len(t.Uses) > 0:
		return nstance.FieldError("role", "leave names, addresses and uses to workload certificates", "a certificate with a role cannot carry any")
	case slices.ContainsFunc(t.Addresses, func(a netip.Addr) bool { return !a.IsValid() }):
		return nstance.FieldError("addresses", "leave it out", "one is not an IP address")
	case t.Role == nstance.RoleServer && (t.Shard == "" || t.Cluster == ""):
		return nstance.FieldError("shard", "name shard and cluster", "a server's certificate needs both")
	}
	return validate.Name("tenant", t.Tenant)
}

func (t Template) certificate() (*x509.Certificate, error) {
	now := t.Now.UTC().Truncate(time.Second) // the resolution of a certificate
	cert := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: t.Subject, Organization: []string{string(t.Tenant)}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(t.Lifetime).Truncate(time.Second),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
	switch t.Role {
	case "":
		cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		if t.Uses != nil {
			cert.ExtKeyUsage = t.Uses
		}
		cert.DNSNames = t.DNSNames
		for _, addr := range t.Addresses {
			cert.IPAddresses = append(cert.IPAddresses, net.IP(addr.Unmap().AsSlice()))
		}
		return cert, nil
	case nstance.RoleServer:
		// Servers of a shard call each other. No other listener takes the role.
		cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		cert.DNSNames = []string{pki.ServerName(t.Shard, t.Cluster)}
		cert.NotBefore = now.Add(-serverBackdate)
	default:
		cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	role, err := pki.RoleExtension(t.Role)
	cert.ExtraExtensions = []pkix.Extension{role}
	return cert, err
}

// Server returns a certificate, with a fresh key, for the server of a shard. The
// oldest trusted key signs it, not the current one: a machine that was offline
// during a rotation still trusts its server.
func (a *Authority) Server(shard nstance.ShardID, cluster nstance.ClusterID, lifetime time.Duration, now time.Time) (*tls.Certificate, error) {
	key := pki.NewKey()
	issued, err := a.issue(a.signers.Load().oldest, Template{
		Subject: string(shard), Tenant: nstance.DefaultTenant, Key: key.Public().(ed25519.PublicKey),
		Role: nstance.RoleServer, Shard: shard, Cluster: cluster, Lifetime: lifetime, Now: now,
	})
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(issued.Certificate)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "certificate of server %q: %w", shard, err)
	}
	return pki.Pair(key, leaf)
}

// ServerIssuer returns the ID of the key that signs for Server.
func (a *Authority) ServerIssuer() string { return a.signers.Load().oldest.id() }

// A KeyRecord describes one issued certificate and its key.
type KeyRecord struct {
	Fingerprint string    `json:"fingerprint"` // of the key, as in nstance.Identity
	PublicKey   []byte    `json:"public_key"`  // Ed25519, 32 bytes
	Serial      string    `json:"serial"`      // lower-case hex
	Issuer      string    `json:"issuer"`      // ID of the authority's key, lower-case hex
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	Certificate []byte    `json:"certificate"` // DER
}
