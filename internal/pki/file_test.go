package pki_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

func TestKeysAndCertificatesRoundTrip(t *testing.T) {
	dir, ca, key := t.TempDir(), newAuthority(t), pki.NewKey()
	keyPath, certPath := filepath.Join(dir, "key.pem"), filepath.Join(dir, "cert.pem")
	cert := ca.issue(t, agentLeaf(), key.Public())
	require.NoError(t, pki.SaveKey(keyPath, key))
	require.NoError(t, pki.SaveCertificates(certPath, cert.Raw, ca.cert.Raw))

	pair, err := pki.LoadPair(certPath, keyPath)
	require.NoError(t, err)
	require.Equal(t, key, pair.PrivateKey)
	require.Equal(t, [][]byte{cert.Raw, ca.cert.Raw}, pair.Certificate)
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	require.NoError(t, pki.WriteFile(path, []byte("new")))

	t.Run("replaces the content", func(t *testing.T) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "new", string(data))
	})
	t.Run("lets only the owner read", func(t *testing.T) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	})
	t.Run("leaves no other file behind", func(t *testing.T) {
		require.Error(t, pki.WriteFile(dir, []byte("a folder is in the way")))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1)
		siblings, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".*"))
		require.NoError(t, err)
		require.Empty(t, siblings)
	})
	t.Run("does not call a missing folder absence", func(t *testing.T) {
		require.ErrorIs(t, pki.WriteFile(filepath.Join(dir, "none", "key.pem"), nil), nstance.Invalid)
	})
}

func TestParseKeyRefuses(t *testing.T) {
	good, err := pki.MarshalKey(pki.NewKey())
	require.NoError(t, err)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ecDER, err := x509.MarshalPKCS8PrivateKey(ec)
	require.NoError(t, err)
	for name, data := range map[string][]byte{
		"nothing":                        nil,
		"text":                           []byte("not a key"),
		"two keys":                       append(bytes.Clone(good), good...),
		"a certificate":                  pki.MarshalCertificates(newAuthority(t).cert.Raw),
		"broken DER":                     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte{1, 2}}),
		"a key of RSA's or ECDSA's kind": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: ecDER}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pki.ParseKey(data)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	}
	_, err = pki.MarshalKey(nil)
	require.ErrorIs(t, err, nstance.Invalid)
}

func TestParseCertificatesRefuses(t *testing.T) {
	good := pki.MarshalCertificates(newAuthority(t).cert.Raw)
	for name, data := range map[string][]byte{
		"nothing":         nil,
		"white space":     []byte(" \n"),
		"text after them": append(bytes.Clone(good), "text"...),
		"text":            []byte("text"),
		"broken DER":      pki.MarshalCertificates([]byte{1, 2}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pki.ParseCertificates(data)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	}
}

func TestLoadDistinguishesAbsentFromBroken(t *testing.T) {
	dir := t.TempDir()
	absent, broken, huge := filepath.Join(dir, "absent"), filepath.Join(dir, "broken"), filepath.Join(dir, "huge")
	require.NoError(t, os.WriteFile(broken, []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(huge, make([]byte, 1<<20+1), 0o600))
	for path, code := range map[string]nstance.Code{absent: nstance.NotFound, broken: nstance.Invalid, huge: nstance.Invalid} {
		_, err := pki.LoadKey(path)
		require.ErrorIs(t, err, code)
		require.ErrorContains(t, err, path)
		_, err = pki.LoadCertificates(path)
		require.ErrorIs(t, err, code)
		require.ErrorContains(t, err, path)
		_, err = pki.LoadPair(path, path)
		require.ErrorIs(t, err, code)
	}
}

func TestPairRefusesAKeyOfAnother(t *testing.T) {
	cert := newAuthority(t).issue(t, agentLeaf(), pki.NewKey().Public())
	_, err := pki.Pair(pki.NewKey(), cert)
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = pki.Pair(pki.NewKey())
	require.ErrorIs(t, err, nstance.Invalid)
}

func TestNewPoolRefuses(t *testing.T) {
	_, err := pki.NewPool()
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = pki.NewPool([]byte{1})
	require.ErrorIs(t, err, nstance.Invalid)
}
