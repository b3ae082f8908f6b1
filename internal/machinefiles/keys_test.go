package machinefiles_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/pki"
)

// certify returns a certificate for what a request proves possession of.
func certify(t *testing.T, csr []byte) []byte {
	t.Helper()
	key, err := keyring.ParseCSR(csr)
	require.NoError(t, err)
	ca, err := keyring.NewAuthority(keyring.Workload, time.Now())
	require.NoError(t, err)
	rec, err := ca.Issue(keyring.Template{Subject: "x", Tenant: "default", Key: key, Lifetime: time.Hour, Now: time.Now()})
	require.NoError(t, err)
	return rec.Certificate
}

func TestKeys(t *testing.T) {
	b := newTestStore(t)
	keys := b.store.Keys("web1", []string{"web", "../web"})
	require.Len(t, keys, 2)
	require.NoError(t, keys[0].Err)
	require.Nil(t, keys[0].Certificate)
	require.ErrorIs(t, keys[1].Err, nstance.Invalid, "a name that leads elsewhere")
	path := filepath.Join(b.o.KeysDir, "web.pem")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o640), info.Mode().Perm())

	again := b.store.Keys("web1", []string{"web"})
	require.Equal(t, keys[0].Request, again[0].Request, "the same key")

	cert := certify(t, keys[0].Request)
	content := string(pki.MarshalCertificates(cert))
	s := set("h1", tree{"web.crt": content})
	s.Files[0].Key = "web"
	_, err = b.send(s, tree{"web.crt": content})
	require.NoError(t, err)
	b.reopen()
	require.Equal(t, cert, b.store.Keys("web1", []string{"web"})[0].Certificate)

	t.Run("of the files for the key", func(t *testing.T) {
		newer := string(pki.MarshalCertificates(certify(t, keys[0].Request)))
		both := tree{"a.crt": newer, "web.crt": content}
		s := set("h2", both)
		s.Files[1].Key = "web"
		_, err := b.send(s, both)
		require.NoError(t, err)
		require.Equal(t, cert, b.store.Keys("web1", []string{"web"})[0].Certificate)
	})
	t.Run("a certificate that was changed on the machine is none, and stays where the server makes no other", func(t *testing.T) {
		require.NoError(t, os.WriteFile(b.path("web.crt"), []byte("changed"), 0o600))
		require.Nil(t, b.store.Keys("web1", []string{"web"})[0].Certificate)
		failed := set("h3", nil)
		failed.Files = append(failed.Files, machinefiles.File{Path: "web.crt", Error: "no such authority"})
		_, err := b.send(failed, nil)
		require.NoError(t, err)
		require.Equal(t, tree{"web.crt": "changed"}, b.tree())
		_, err = b.send(s, tree{"web.crt": content})
		require.NoError(t, err)
		require.Equal(t, cert, b.store.Keys("web1", []string{"web"})[0].Certificate)
	})
	t.Run("a certificate for another key is not put to use", func(t *testing.T) {
		other, err := pki.NewCSR(pki.NewKey(), "x")
		require.NoError(t, err)
		for _, content := range []string{string(pki.MarshalCertificates(certify(t, other))), "no certificate"} {
			s := set("h2", tree{"web.crt": content})
			s.Files[0].Key = "web"
			_, err = b.send(s, tree{"web.crt": content})
			require.ErrorIs(t, err, nstance.Invalid)
		}
		require.Equal(t, cert, b.store.Keys("web1", []string{"web"})[0].Certificate)
	})
	t.Run("a key that cannot be read is not replaced", func(t *testing.T) {
		require.NoError(t, os.WriteFile(path, []byte("changed"), 0o600))
		require.ErrorIs(t, b.store.Keys("web1", []string{"web"})[0].Err, nstance.Invalid)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "changed", string(data))
		renewed := string(pki.MarshalCertificates(certify(t, keys[0].Request)))
		s := set("h2", tree{"web.crt": renewed})
		s.Files[0].Key = "web"
		_, err = b.send(s, tree{"web.crt": renewed})
		require.ErrorContains(t, err, "key web", "and no certificate is put to use for it")
	})
	t.Run("a new key has no certificate", func(t *testing.T) {
		require.NoError(t, os.Remove(path))
		k := b.store.Keys("web1", []string{"web"})[0]
		require.NoError(t, k.Err)
		require.Nil(t, k.Certificate)
		pub, err := keyring.ParseCSR(k.Request)
		require.NoError(t, err)
		key, err := pki.LoadKey(path)
		require.NoError(t, err)
		require.Equal(t, key.Public(), pub)
	})
	t.Run("there is no place for keys", func(t *testing.T) {
		b.o.KeysDir = filepath.Join(b.dir, "lost")
		require.NoError(t, os.Symlink("nowhere", b.o.KeysDir))
		b.reopen()
		require.Equal(t, nstance.Internal, nstance.CodeOf(b.store.Keys("web1", []string{"web"})[0].Err))
	})
	t.Run("the directory of the files is gone", func(t *testing.T) {
		b.o.KeysDir = filepath.Dir(path)
		b.reopen()
		require.NoError(t, b.store.Close())
		require.NoError(t, os.RemoveAll(b.o.Dir))
		k := b.store.Keys("web1", []string{"web"})[0]
		require.NoError(t, k.Err)
		require.Nil(t, k.Certificate)
	})
}
