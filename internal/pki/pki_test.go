package pki_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

const agentID = "acc06bgm7733st2576nx5jht4ecjw"

// A leaf describes a certificate of the test's authority. Its fields override
// what a good agent certificate would have.
type leaf struct {
	role    nstance.Role
	name    string
	org     []string
	dns     []string
	use     x509.ExtKeyUsage
	expired bool
	change  func(*x509.Certificate)
}

func agentLeaf() leaf {
	return leaf{role: nstance.RoleAgent, name: agentID, org: []string{"default"}, use: x509.ExtKeyUsageClientAuth}
}

func serverLeaf() leaf {
	return leaf{
		role: nstance.RoleServer, name: "a", org: []string{"default"}, use: x509.ExtKeyUsageServerAuth,
		dns: []string{pki.ServerName("a", "prod")},
	}
}

type authority struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func newAuthority(t testing.TB) authority {
	key := pki.NewKey()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{cert, key}
}

func (a authority) pool(t testing.TB) *x509.CertPool {
	pool, err := pki.NewPool(a.cert.Raw)
	require.NoError(t, err)
	return pool
}

func (a authority) issue(t testing.TB, l leaf, pub any) *x509.Certificate {
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(0xabc), Subject: pkix.Name{CommonName: l.name, Organization: l.org}, DNSNames: l.dns,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{l.use},
	}
	if l.expired {
		tmpl.NotAfter = time.Now().Add(-time.Second)
	}
	if l.role != "" {
		ext, err := pki.RoleExtension(l.role)
		require.NoError(t, err)
		tmpl.ExtraExtensions = append(tmpl.ExtraExtensions, ext)
	}
	if l.change != nil {
		l.change(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, pub, a.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

func TestIdentityOfReadsWhatWasWritten(t *testing.T) {
	ca, key := newAuthority(t), pki.NewKey()
	id, err := pki.IdentityOf(ca.issue(t, agentLeaf(), key.Public()))
	require.NoError(t, err)
	require.Equal(t, agentID, id.Subject)
	require.Equal(t, nstance.RoleAgent, id.Role)
	require.Equal(t, nstance.DefaultTenant, id.Tenant)
	require.Equal(t, "abc", id.Serial)
	require.Equal(t, pki.KeyFingerprint(key.Public()), id.Key)
	require.Len(t, id.Key, 64)
	require.Equal(t, time.UTC, id.NotAfter.Location())
}

func TestIdentityOfRefuses(t *testing.T) {
	role, err := pki.RoleExtension(nstance.RoleAgent)
	require.NoError(t, err)
	value := func(v []byte) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{{Id: role.Id, Value: v}} }
	}
	unknown, err := asn1.MarshalWithParams("root", "utf8")
	require.NoError(t, err)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	for name, tc := range map[string]struct {
		change func(*leaf)
		key    any
		says   string
	}{
		"no role":               {change: func(l *leaf) { l.role = "" }, says: "no role"},
		"an unknown role":       {change: func(l *leaf) { l.change = value(unknown) }, says: "not a known role"},
		"a role that is no DER": {change: func(l *leaf) { l.change = value([]byte("agent")) }, says: "not a known role"},
		"bytes after the role":  {change: func(l *leaf) { l.change = value(append(role.Value, 0)) }, says: "not a known role"},
		"no name":               {change: func(l *leaf) { l.name = "" }, says: "no common name"},
		"no tenant":             {change: func(l *leaf) { l.org = nil }, says: "0 organisations"},
		"two tenants":           {change: func(l *leaf) { l.org = []string{"a", "b"} }, says: "2 organisations"},
		"a malformed tenant":    {change: func(l *leaf) { l.org = []string{"Acme Ltd"} }, says: "tenant"},
		"an agent without ID":   {change: func(l *leaf) { l.name = "web-1" }, says: "instance_id"},
		"a key of another kind": {change: func(*leaf) {}, key: ec.Public(), says: "ECDSA"},
	} {
		t.Run(name, func(t *testing.T) {
			l := agentLeaf()
			tc.change(&l)
			if tc.key == nil {
				tc.key = pki.NewKey().Public()
			}
			_, err := pki.IdentityOf(newAuthority(t).issue(t, l, tc.key))
			require.ErrorIs(t, err, nstance.Denied)
			require.ErrorContains(t, err, tc.says)
		})
	}
	t.Run("a doubled role", func(t *testing.T) {
		ca, l := newAuthority(t), agentLeaf()
		l.change = func(c *x509.Certificate) { c.ExtraExtensions = append(c.ExtraExtensions, role) }
		tmpl := ca.issue(t, agentLeaf(), pki.NewKey().Public())
		tmpl.ExtraExtensions = []pkix.Extension{role, role}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, pki.NewKey().Public(), ca.key)
		if err == nil {
			_, err = x509.ParseCertificate(der)
		}
		require.ErrorContains(t, err, "duplicate extension", "roleOf relies on this")
	})
}

func TestRoleExtensionRefusesUnknownRoles(t *testing.T) {
	for _, role := range []nstance.Role{"", "root", "Agent"} {
		_, err := pki.RoleExtension(role)
		require.ErrorIs(t, err, nstance.Invalid, role)
	}
}

// The OID is in certificates out there: it must never change.
func TestRoleOIDIsThatOfTheUUID(t *testing.T) {
	ext, err := pki.RoleExtension(nstance.RoleAdmin)
	require.NoError(t, err)
	require.Equal(t, "1.2.840.113556.1.8000.2554.43704.49902.63625.16932.35140.11909170.12069876.1", ext.Id.String())
	require.False(t, ext.Critical)
}

func TestNewCSRProvesPossession(t *testing.T) {
	key := pki.NewKey()
	der, err := pki.NewCSR(key, agentID)
	require.NoError(t, err)
	csr, err := x509.ParseCertificateRequest(der)
	require.NoError(t, err)
	require.NoError(t, csr.CheckSignature())
	require.Equal(t, key.Public(), csr.PublicKey)
	require.Equal(t, agentID, csr.Subject.CommonName)

	_, err = pki.NewCSR(nil, agentID)
	require.ErrorIs(t, err, nstance.Invalid)
}

func TestKeyFingerprintOfNoKeyIsEmpty(t *testing.T) {
	require.Empty(t, pki.KeyFingerprint("not a key"))
	require.NotEqual(t, pki.KeyFingerprint(pki.NewKey().Public()), pki.KeyFingerprint(pki.NewKey().Public()))
}

func Example() {
	key := pki.NewKey()
	csr, err := pki.NewCSR(key, agentID)
	if err != nil {
		fmt.Println(err)
		return
	}
	// The registrar answers csr with a chain and the roots to trust; the agent
	// then dials any of its addresses and trusts only the shard's own server.
	cfg := pki.ClientTLS(nil, nil, "eu-1a", "prod")
	fmt.Println(len(csr) > 0, cfg.ServerName)
	// Output: true server.eu-1a.prod
}
