package keyring_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
)

func authority(t testing.TB, name string) *keyring.Authority {
	a, err := keyring.NewAuthority(name, epoch)
	require.NoError(t, err)
	return a
}

func agentTemplate() keyring.Template {
	return keyring.Template{
		Subject: fixedID, Tenant: "default", Key: public(pki.NewKey()), Role: nstance.RoleAgent,
		Lifetime: 24 * time.Hour, Now: epoch.Add(500 * time.Millisecond),
	}
}

func issue(t testing.TB, a *keyring.Authority, tmpl keyring.Template) (keyring.KeyRecord, *x509.Certificate) {
	rec, err := a.Issue(tmpl)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(rec.Certificate)
	require.NoError(t, err)
	return rec, cert
}

func TestAuthoritySurvivesRestart(t *testing.T) {
	for _, name := range []string{keyring.Identity, keyring.Workload} {
		a := authority(t, name)
		keyPEM, err := a.KeyPEM()
		require.NoError(t, err)
		b, err := keyring.LoadAuthority(a.CertPEM(), keyPEM)
		require.NoError(t, err)
		require.Equal(t, name, b.Name())
		require.Equal(t, a.Issuer(), b.Issuer())
		require.Equal(t, a.Certificate(), b.Certificate())

		cert, err := x509.ParseCertificate(a.Certificate())
		require.NoError(t, err)
		require.True(t, cert.IsCA)
		require.True(t, cert.MaxPathLenZero, "no authority is below it")
	}
}

func TestLoadAuthorityRefuses(t *testing.T) {
	a := authority(t, keyring.Identity)
	keyPEM, err := a.KeyPEM()
	require.NoError(t, err)
	leafKey := pki.NewKey()
	tmpl := agentTemplate()
	tmpl.Key = public(leafKey)
	leaf, _ := issue(t, a, tmpl)
	leafPEM, err := pki.MarshalKey(leafKey)
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		cert, key []byte
		says      string
	}{
		"nothing":                      {nil, nil, "holds no certificate"},
		"no certificate":               {nil, keyPEM, "holds no certificate"},
		"no key":                       {a.CertPEM(), nil, "not exactly one PEM block"},
		"another's key":                {authority(t, keyring.Identity).CertPEM(), keyPEM, "another key"},
		"two certificates":             {append(a.CertPEM(), a.CertPEM()...), keyPEM, "2 certificates instead of one"},
		"a leaf certificate":           {pki.MarshalCertificates(leaf.Certificate), leafPEM, "is not an authority's"},
		"a leaf with an authority's":   {selfSigned(t, leafKey, "nstance identity", false), leafPEM, "is not an authority's"},
		"an authority of another kind": {selfSigned(t, leafKey, "nstance root", true), leafPEM, "is not an authority's"},
		"an authority of others":       {selfSigned(t, leafKey, "identity", true), leafPEM, "is not an authority's"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := keyring.LoadAuthority(tc.cert, tc.key)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, tc.says)
		})
	}
	_, err = keyring.LoadAuthority(selfSigned(t, leafKey, "nstance identity", true), leafPEM)
	require.NoError(t, err)
	_, err = keyring.NewAuthority("root", epoch)
	require.ErrorIs(t, err, nstance.Invalid)
}

// selfSigned returns a certificate of a key by itself, as PEM.
func selfSigned(t *testing.T, key ed25519.PrivateKey, name string, authority bool) []byte {
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: epoch, NotAfter: epoch.Add(time.Hour),
		BasicConstraintsValid: true, IsCA: authority, SubjectKeyId: []byte{1},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	require.NoError(t, err)
	return pki.MarshalCertificates(der)
}

func TestIssue(t *testing.T) {
	a := authority(t, keyring.Identity)
	rec, cert := issue(t, a, agentTemplate())

	t.Run("reports exactly the contents of the certificate", func(t *testing.T) {
		require.Equal(t, pki.SerialOf(cert), rec.Serial)
		require.Equal(t, cert.NotBefore, rec.NotBefore)
		require.Equal(t, cert.NotAfter, rec.NotAfter)
		require.Equal(t, pki.KeyFingerprint(cert.PublicKey), rec.Fingerprint)
		require.Equal(t, cert.PublicKey, ed25519.PublicKey(rec.PublicKey))
		require.Equal(t, a.Issuer(), rec.Issuer)
	})
	t.Run("back-dates by one minute", func(t *testing.T) {
		require.Equal(t, epoch.Add(-time.Minute), cert.NotBefore)
		require.Equal(t, epoch.Add(24*time.Hour), cert.NotAfter)
	})
	t.Run("uses random 128-bit serials", func(t *testing.T) {
		seen, longest := map[string]bool{}, 0
		for range 50 {
			rec, cert := issue(t, a, agentTemplate())
			require.False(t, seen[rec.Serial])
			seen[rec.Serial] = true
			longest = max(longest, cert.SerialNumber.BitLen())
			require.LessOrEqual(t, cert.SerialNumber.BitLen(), 128)
		}
		require.Greater(t, longest, 120)
	})
	t.Run("certifies clients for client use, without any name", func(t *testing.T) {
		for _, role := range []nstance.Role{nstance.RoleAgent, nstance.RoleOperator, nstance.RoleAdmin} {
			tmpl := agentTemplate()
			tmpl.Role = role
			_, cert := issue(t, a, tmpl)
			require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, cert.ExtKeyUsage)
			require.Empty(t, cert.DNSNames)
			require.Empty(t, cert.IPAddresses)
			require.False(t, cert.IsCA)
		}
	})
	t.Run("certifies servers for both uses, by one name", func(t *testing.T) {
		pair, err := a.Server("eu-1a", "prod", time.Hour, epoch)
		require.NoError(t, err)
		require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, pair.Leaf.ExtKeyUsage)
		require.Equal(t, []string{"server.eu-1a.prod"}, pair.Leaf.DNSNames)
		id, err := pki.IdentityOf(pair.Leaf)
		require.NoError(t, err)
		require.Equal(t, nstance.RoleServer, id.Role)
	})
	t.Run("certifies workloads with the names and addresses given", func(t *testing.T) {
		tmpl := agentTemplate()
		tmpl.Role, tmpl.DNSNames, tmpl.Addresses = "", []string{"db.internal"}, []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")}
		_, cert := issue(t, authority(t, keyring.Workload), tmpl)
		require.Equal(t, []string{"db.internal"}, cert.DNSNames)
		require.Len(t, cert.IPAddresses, 1)
		require.True(t, cert.IPAddresses[0].Equal(net.IPv4(10, 0, 0, 1)))
		_, err := pki.IdentityOf(cert)
		require.ErrorIs(t, err, nstance.Denied, "the cluster does not know it")
	})
	t.Run("certifies workloads for the uses given, or for both", func(t *testing.T) {
		both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		for _, uses := range [][]x509.ExtKeyUsage{nil, {x509.ExtKeyUsageServerAuth}, {x509.ExtKeyUsageClientAuth}, both} {
			tmpl := agentTemplate()
			tmpl.Role, tmpl.Uses = "", uses
			_, cert := issue(t, authority(t, keyring.Workload), tmpl)
			want := uses
			if want == nil {
				want = both
			}
			require.Equal(t, want, cert.ExtKeyUsage)
			require.Empty(t, cert.DNSNames)
			require.Empty(t, cert.IPAddresses)
		}
	})
	t.Run("back-dates a server's by one hour: clients' clocks differ more", func(t *testing.T) {
		pair, err := a.Server("eu-1a", "prod", time.Hour, epoch)
		require.NoError(t, err)
		require.Equal(t, epoch.Add(-time.Hour), pair.Leaf.NotBefore)
		_, err = a.Server("", "prod", time.Hour, epoch)
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("never expires after the authority", func(t *testing.T) {
		tmpl := agentTemplate()
		tmpl.Lifetime = 20 * 365 * 24 * time.Hour
		_, cert := issue(t, a, tmpl)
		ca, err := x509.ParseCertificate(a.Certificate())
		require.NoError(t, err)
		require.Equal(t, ca.NotAfter, cert.NotAfter)
	})
	t.Run("yields a chain that verifies", func(t *testing.T) {
		_, err := cert.Verify(x509.VerifyOptions{Roots: a.Pool(), CurrentTime: epoch, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		require.NoError(t, err)
		_, err = cert.Verify(x509.VerifyOptions{Roots: authority(t, keyring.Identity).Pool(), CurrentTime: epoch})
		require.Error(t, err)
	})
}

func TestIssueRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change    func(*keyring.Template)
		authority string
		code      nstance.Code
	}{
		"no key":                       {func(m *keyring.Template) { m.Key = nil }, keyring.Identity, nstance.Invalid},
		"no subject":                   {func(m *keyring.Template) { m.Subject = "" }, keyring.Identity, nstance.Invalid},
		"no tenant":                    {func(m *keyring.Template) { m.Tenant = "" }, keyring.Identity, nstance.Invalid},
		"no lifetime":                  {func(m *keyring.Template) { m.Lifetime = 0 }, keyring.Identity, nstance.Invalid},
		"an unknown role":              {func(m *keyring.Template) { m.Role = "root" }, keyring.Identity, nstance.Invalid},
		"no role, of identity":         {func(m *keyring.Template) { m.Role = "" }, keyring.Identity, nstance.Invalid},
		"a role, of workload":          {func(*keyring.Template) {}, keyring.Workload, nstance.Invalid},
		"a role with a name":           {func(m *keyring.Template) { m.DNSNames = []string{"server.eu-1a.prod"} }, keyring.Identity, nstance.Invalid},
		"a role with an address":       {func(m *keyring.Template) { m.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1")} }, keyring.Identity, nstance.Invalid},
		"an address that is none":      {func(m *keyring.Template) { m.Role, m.Addresses = "", make([]netip.Addr, 1) }, keyring.Workload, nstance.Invalid},
		"a role with a use":            {func(m *keyring.Template) { m.Uses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, keyring.Identity, nstance.Invalid},
		"a server without either":      {func(m *keyring.Template) { m.Role = nstance.RoleServer }, keyring.Identity, nstance.Invalid},
		"a server without shard":       {func(m *keyring.Template) { m.Role, m.Cluster = nstance.RoleServer, "prod" }, keyring.Identity, nstance.Invalid},
		"a server without cluster":     {func(m *keyring.Template) { m.Role, m.Shard = nstance.RoleServer, "eu-1a" }, keyring.Identity, nstance.Invalid},
		"after the authority's end":    {func(m *keyring.Template) { m.Now = epoch.AddDate(11, 0, 0) }, keyring.Identity, nstance.Internal},
		"before the authority's start": {func(m *keyring.Template) { m.Now = epoch.Add(-2 * time.Hour) }, keyring.Identity, nstance.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := agentTemplate()
			tc.change(&tmpl)
			_, err := authority(t, tc.authority).Issue(tmpl)
			require.ErrorIs(t, err, tc.code)
		})
	}
}
