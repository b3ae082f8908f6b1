package agent // the directory's layout is private

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

// The directory holds what an agent of version 0.1 has left: an identity that
// was renewed once, with the next renewal under way. It is never written again.
// Its keys guard nothing.
const previous = "testdata/v0.1/identity"

var makePrevious = flag.Bool("make-previous", false, "write "+previous+", which only its own version may")

// previousSerial is that of the certificate in use.
const previousSerial = "f3e76a235a225266fd8ac4465f95bf7c"

func TestMakePrevious(t *testing.T) {
	if !*makePrevious {
		return // it stands, and must not change
	}
	authority, err := registration.NewAuthority(registration.Identity, time.Now())
	require.NoError(t, err)
	m := &mint{t, authority, identityDir{dir: previous, mode: 0o600}}
	require.NoError(t, os.MkdirAll(m.v.dir, 0o755))
	nonce := jwt(goodPayload)
	require.NoError(t, m.v.write(m.v.path(fileNonce), []byte(nonce+"\n")))
	require.NoError(t, m.v.write(m.v.path(fileCA), pki.MarshalCertificates(authority.Certificate())))
	require.NoError(t, m.v.saveClaims(claims{Cluster: "prod", Shard: "zone-a", ConfigHash: "v1:sha256:00"}))
	require.NoError(t, m.v.install(m.credential()))
	require.NoError(t, m.v.markNonceUsed(nonce))
	require.NoError(t, m.v.install(m.credential()))
	require.NoError(t, m.v.record("v1:sha256:77"))
	_, err = m.v.nextKey()
	require.NoError(t, err)
	t.Log("serial in use:", m.serial())
}

func TestPrevious(t *testing.T) {
	v := identityDir{dir: filepath.Join(t.TempDir(), "identity"), mode: 0o600}
	require.NoError(t, os.CopyFS(v.dir, os.DirFS(previous)))
	id, err := v.load()
	require.NoError(t, err)
	require.Equal(t, previousSerial, pki.SerialOf(id.pair.Leaf))
	require.Equal(t, string(thisMachine), id.pair.Leaf.Subject.CommonName)
	require.Equal(t, serverRef{Cluster: "prod", Shard: "zone-a"}, id.serverRef)
	require.Equal(t, "v1:sha256:77", v.configHash())

	token, c, err := v.nonce()
	require.NoError(t, err)
	require.Equal(t, thisMachine, c.Subject)
	require.True(t, v.nonceUsed(token), "a certificate was had for it")
	roots, err := v.registrationRoots()
	require.NoError(t, err)
	require.True(t, roots.Equal(id.roots))

	t.Run("the renewal under way goes on with its key", func(t *testing.T) {
		want, err := pki.LoadKey(filepath.Join(previous, "v3", fileKey))
		require.NoError(t, err)
		got, err := v.nextKey()
		require.NoError(t, err)
		require.Equal(t, want, got)
		authority, err := registration.NewAuthority(registration.Identity, time.Now())
		require.NoError(t, err)
		m := &mint{t, authority, v}
		next := m.credential()
		require.NoError(t, v.install(next))
		require.Equal(t, next.Serial, m.serial())
		require.NoDirExists(t, v.path("v1"))
	})
	t.Run("without server.json the nonce says where it belongs", func(t *testing.T) {
		require.NoError(t, os.Remove(v.path(fileServer)))
		id, err := v.load()
		require.NoError(t, err)
		require.Equal(t, nstance.ShardID("zone-a"), id.Shard)
	})
}
