package agent // tests the private layout of the identity directory

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
)

const thisMachine = nstance.InstanceID("acc06bgm7733st2576nx5jht4ecjw")

// A certificateIssuer issues certificates for an identityDir's next key.
type certificateIssuer struct {
	t         *testing.T
	authority *keyring.Authority
	v         identityDir
}

func newCertificateIssuer(t *testing.T) *certificateIssuer {
	t.Helper()
	authority, err := keyring.NewAuthority(keyring.Identity, time.Now())
	require.NoError(t, err)
	m := &certificateIssuer{t, authority, identityDir{dir: filepath.Join(t.TempDir(), "identity"), mode: 0o600}}
	require.NoError(t, os.MkdirAll(m.v.dir, 0o700))
	require.NoError(t, m.v.saveClaims(claims{Cluster: "prod", Shard: "zone-a", ConfigHash: "v1:sha256:00"}))
	return m
}

func (m *certificateIssuer) credential() nstance.Credential {
	return m.issue(string(thisMachine), nstance.RoleAgent)
}

func (m *certificateIssuer) issue(subject string, role nstance.Role) nstance.Credential {
	m.t.Helper()
	key, err := m.v.nextKey()
	require.NoError(m.t, err)
	issued, err := m.authority.Issue(keyring.Template{
		Subject: subject, Tenant: "default", Key: key.Public().(ed25519.PublicKey),
		Role: role, Lifetime: time.Hour, Now: time.Now(),
	})
	require.NoError(m.t, err)
	return nstance.Credential{Chain: [][]byte{issued.Certificate}, Roots: [][]byte{m.authority.Certificate()}, Serial: issued.Serial}
}

// currentSerial returns the serial of the identity in use.
func (m *certificateIssuer) currentSerial() string {
	m.t.Helper()
	id, err := m.v.load()
	require.NoError(m.t, err)
	require.True(m.t, id.pair.Leaf.PublicKey.(ed25519.PublicKey).Equal(id.pair.PrivateKey.(ed25519.PrivateKey).Public()))
	return pki.SerialOf(id.pair.Leaf)
}

func TestPairs(t *testing.T) {
	t.Parallel()
	t.Run("an empty directory holds no identity", func(t *testing.T) {
		_, err := newCertificateIssuer(t).v.load()
		require.ErrorIs(t, err, nstance.NotFound)
	})
	t.Run("the next key stays until its certificate is installed", func(t *testing.T) {
		m := newCertificateIssuer(t)
		for range 3 {
			first, err := m.v.nextKey()
			require.NoError(t, err)
			again, err := m.v.nextKey()
			require.NoError(t, err)
			require.Equal(t, first, again)
			require.NoError(t, m.v.install(m.credential()))
			next, err := m.v.nextKey()
			require.NoError(t, err)
			require.NotEqual(t, first, next)
		}
	})
	t.Run("the well-known names show the pair in use", func(t *testing.T) {
		m := newCertificateIssuer(t)
		for range 3 {
			c := m.credential()
			require.NoError(t, m.v.install(c))
			pair, err := pki.LoadPair(m.v.path("cert.pem"), m.v.path("key.pem"))
			require.NoError(t, err)
			require.Equal(t, c.Serial, pki.SerialOf(pair.Leaf))
			require.Equal(t, c.Serial, m.currentSerial())
		}
	})
	t.Run("a certificate without roots keeps the previous roots", func(t *testing.T) {
		m := newCertificateIssuer(t)
		require.NoError(t, m.v.write(m.v.path("ca.crt"), m.authority.CertPEM()))
		for range 2 {
			c := m.credential()
			c.Roots = nil
			require.NoError(t, m.v.install(c))
			got, err := os.ReadFile(m.v.path("ca.pem"))
			require.NoError(t, err)
			require.Equal(t, string(m.authority.CertPEM()), string(got))
		}
	})
	t.Run("a certificate for another key is not used", func(t *testing.T) {
		m := newCertificateIssuer(t)
		good := m.credential()
		require.NoError(t, m.v.install(good))
		require.ErrorIs(t, m.v.install(good), nstance.Invalid, "it is for the former key")
		require.Equal(t, good.Serial, m.currentSerial())
	})
	t.Run("a link to another name is an error, not absence", func(t *testing.T) {
		m := newCertificateIssuer(t)
		require.NoError(t, m.v.install(m.credential()))
		require.NoError(t, m.v.link("elsewhere", linkCurrent))
		_, err := m.v.load()
		require.ErrorIs(t, err, nstance.Invalid)
	})
}

func TestAccept(t *testing.T) {
	t.Parallel()
	for name, corrupt := range map[string]func(m *certificateIssuer, c nstance.Credential) nstance.Credential{
		"no certificate": func(_ *certificateIssuer, c nstance.Credential) nstance.Credential { c.Chain = nil; return c },
		"garbage":        func(_ *certificateIssuer, c nstance.Credential) nstance.Credential { c.Chain = [][]byte{{1}}; return c },
		"another machine's": func(m *certificateIssuer, _ nstance.Credential) nstance.Credential {
			return m.issue("acc06bgm7733st2576nx5jht4ec00", nstance.RoleAgent)
		},
		"another role's": func(m *certificateIssuer, _ nstance.Credential) nstance.Credential {
			return m.issue(string(thisMachine), nstance.RoleOperator)
		},
		"another key's": func(m *certificateIssuer, c nstance.Credential) nstance.Credential {
			require.NoError(m.t, m.v.install(c))
			return c
		},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			m := newCertificateIssuer(t)
			r := &registrant{id: thisMachine, identityDir: m.v}
			c := corrupt(m, m.credential())
			key, err := m.v.nextKey()
			require.NoError(t, err)
			require.Error(t, r.accept(key, c))
			require.NoFileExists(t, m.v.path("v2", fileCert))
		})
	}
}

// TestCrashDuringInstall ends install before each of its changes, as a crash would,
// and checks the state that the next process finds.
func TestCrashDuringInstall(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	for before := range 4 { // certificates installed before; the third install removes an old one
		installed := false // whether the new certificate is found
		for n, crashed := 0, true; crashed; n++ {
			t.Run(fmt.Sprintf("certificate %d at step %d", before+1, n), func(t *testing.T) {
				m := newCertificateIssuer(t)
				old := ""
				for range before {
					c := m.credential()
					require.NoError(t, m.v.install(c))
					old = c.Serial
				}
				c := m.credential()
				left := n
				m.v.step = func() error {
					if left == 0 {
						return crash
					}
					left--
					return nil
				}
				err := m.v.install(c)
				m.v.step = nil
				if crashed = err != nil; crashed {
					require.ErrorIs(t, err, crash)
				}

				id, err := m.v.load()
				switch {
				case err == nil && pki.SerialOf(id.pair.Leaf) == c.Serial:
					installed = true
				case before == 0:
					require.ErrorIs(t, err, nstance.NotFound)
				default:
					require.NoError(t, err)
					require.Equal(t, old, pki.SerialOf(id.pair.Leaf))
				}
				require.True(t, crashed || installed)
				if installed {
					require.Equal(t, c.Serial, m.currentSerial(), "what was found once is found again")
				}
				if err == nil {
					require.True(t, id.roots.Equal(m.authority.Pool()))
					shown, err := pki.LoadPair(m.v.path("cert.pem"), m.v.path("key.pem"))
					require.NoError(t, err)
					require.Equal(t, id.pair.Certificate, shown.Certificate, "the well-known names show it")
				}

				next := m.credential()
				require.NoError(t, m.v.install(next))
				require.Equal(t, next.Serial, m.currentSerial())
				names, err := filepath.Glob(m.v.path("v*"))
				require.NoError(t, err)
				require.LessOrEqual(t, len(names), 2)
			})
		}
	}
}

func TestUsedNonce(t *testing.T) {
	t.Parallel()
	m := newCertificateIssuer(t)
	require.False(t, m.v.nonceUsed("a"))
	require.NoError(t, m.v.markNonceUsed("a"))
	require.True(t, m.v.nonceUsed("a"))
	require.False(t, m.v.nonceUsed("b"))
	data, err := os.ReadFile(m.v.path(fileUsedNonce))
	require.NoError(t, err)
	require.NotContains(t, string(data), "a\n", "it is a digest")
}

func TestServerAddressFromNonce(t *testing.T) {
	t.Parallel()
	m := newCertificateIssuer(t)
	require.NoError(t, m.v.write(m.v.path(fileNonce), []byte(jwt(goodPayload)+"\n")))
	require.NoError(t, m.v.install(m.credential()))
	require.NoError(t, os.Remove(m.v.path(fileServer)))
	id, err := m.v.load()
	require.NoError(t, err)
	require.Equal(t, nstance.ShardID("zone-a"), id.Shard)
}

// TestDamagedNextKey: a key that a crash or a full disk damaged before it was certified is made
// anew, so that the machine can still get a certificate.
func TestDamagedNextKey(t *testing.T) {
	t.Parallel()
	m := newCertificateIssuer(t)
	_, err := m.v.nextKey()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(m.v.path("v1", fileKey), []byte("half a k"), 0o600))
	require.NoError(t, m.v.install(m.credential()))
	require.NotEmpty(t, m.currentSerial())
}

// TestOwnerOfAPairNotInUse: an image may be made between the last file of a pair and the link to it.
func TestOwnerOfAPairNotInUse(t *testing.T) {
	t.Parallel()
	const another = nstance.InstanceID("acc06bgm7733st2576nx5jht4eckm")
	m := newCertificateIssuer(t)
	require.NoError(t, m.v.install(m.issue(string(thisMachine), nstance.RoleAgent)))
	require.NoError(t, os.Remove(m.v.path(linkCurrent)))
	owner, err := m.v.owner(another)
	require.NoError(t, err)
	require.Equal(t, thisMachine, owner)
}

// TestSetAsideAgain: what was set aside of the same instance before is replaced.
func TestSetAsideAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "v1"), filepath.Join(dir, "aside")
	for _, content := range []string{"first", "second"} {
		require.NoError(t, os.MkdirAll(from, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(from, fileKey), []byte(content), 0o600))
		require.NoError(t, moveInto(to, from))
		kept, err := os.ReadFile(filepath.Join(to, "v1", fileKey))
		require.NoError(t, err)
		require.Equal(t, content, string(kept))
	}
}
