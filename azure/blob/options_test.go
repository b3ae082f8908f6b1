package blob_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure/blob"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
)

// credentials sets those of the tests, and no other.
func credentials(t *testing.T) {
	t.Helper()
	for _, k := range []string{"SAS_TOKEN", "CONNECTION_STRING", "DOMAIN", "PROTOCOL", "IS_LOCAL_EMULATOR"} {
		t.Setenv("AZURE_STORAGE_"+k, "")
	}
	t.Setenv("AZURE_STORAGEBLOB_CONNECTIONSTRING", "")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
}

// write writes a file and returns its name.
func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// secure is a service with TLS, and the URL of a container of it.
func secure(t *testing.T) (srv *faultproxy.Recorder, at, ca string) {
	t.Helper()
	srv = &faultproxy.Recorder{Answer: accept}
	h := httptest.NewTLSServer(srv)
	t.Cleanup(h.Close)
	ca = write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})))
	return srv, "azblob://box?localemu=true&protocol=https&domain=" + h.Listener.Addr().String(), ca
}

// TestSharedKey: the key is for the account of the URL, and else for that of the environment.
func TestSharedKey(t *testing.T) {
	credentials(t)
	for _, c := range []struct{ environment, url, account string }{
		{"account", "", "account"}, {"", "&storage_account=other", "other"}, {"account", "&storage_account=other", "other"},
	} {
		t.Setenv("AZURE_STORAGE_ACCOUNT", c.environment)
		srv, at, ca := secure(t)
		s, err := blob.Open(t.Context(), at+c.url+"&ca_file="+url.QueryEscape(ca), nil)
		require.NoError(t, err)
		_, err = s.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Contains(t, srv.Requests()[0].Header.Get("Authorization"), "SharedKey "+c.account+":")
	}
}

// TestCertificates: a service whose certificate only the file knows.
func TestCertificates(t *testing.T) {
	credentials(t)
	_, at, ca := secure(t)
	s, err := blob.Open(t.Context(), at, nil)
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "a")
	require.ErrorIs(t, err, nstance.Unavailable)

	s, err = blob.Open(t.Context(), at+"&ca_file="+url.QueryEscape(ca), nil)
	require.NoError(t, err)
	obj, err := s.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "abc", string(obj.Data))
}

// TestEncryptionKey: every read and write of an object has the key, and no other call.
func TestEncryptionKey(t *testing.T) {
	credentials(t)
	srv, at, ca := secure(t)
	key := []byte("0123456789abcdef0123456789abcdef")
	sum := sha256.Sum256(key)
	file := write(t, base64.StdEncoding.EncodeToString(key)+"\n")
	s, err := blob.Open(t.Context(), at+"&ca_file="+url.QueryEscape(ca)+"&prefix=p&encryption_key_file="+url.QueryEscape(file), nil)
	require.NoError(t, err)
	v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	_, err = s.PutIfMatch(t.Context(), "a", []byte("1"), v)
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "a")
	require.NoError(t, err)
	seen := srv.Requests()
	require.Len(t, seen, 3)
	for _, r := range seen {
		require.Equal(t, base64.StdEncoding.EncodeToString(key), r.Header.Get("x-ms-encryption-key"))
		require.Equal(t, base64.StdEncoding.EncodeToString(sum[:]), r.Header.Get("x-ms-encryption-key-sha256"))
		require.Equal(t, "AES256", r.Header.Get("x-ms-encryption-algorithm"))
	}
	require.NoError(t, s.DeleteIfMatch(t.Context(), "a", v))
	for _, err := range s.List(t.Context(), "instance/", "") {
		require.NoError(t, err)
	}
	for _, r := range srv.Requests() {
		require.Empty(t, r.Header.Get("x-ms-encryption-key"), "%s", r.Method)
	}
}

// TestEncryptionScope: writes name the scope, and reads need not.
func TestEncryptionScope(t *testing.T) {
	srv := &faultproxy.Recorder{Answer: accept}
	h := httptest.NewServer(srv)
	defer h.Close()
	credentials(t)
	s, err := blob.Open(t.Context(), "azblob://box?localemu=true&protocol=http&encryption_scope=fleet-1&domain="+h.Listener.Addr().String(), nil)
	require.NoError(t, err)
	_, err = s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "a")
	require.NoError(t, err)
	seen := srv.Requests()
	require.Len(t, seen, 2)
	require.Equal(t, "fleet-1", seen[0].Header.Get("x-ms-encryption-scope"))
	require.Empty(t, seen[1].Header.Get("x-ms-encryption-scope"))
}

// TestRefusedParameters: errors name the parameter, and no secret.
func TestRefusedParameters(t *testing.T) {
	credentials(t)
	key := url.QueryEscape(write(t, base64.StdEncoding.EncodeToString(make([]byte, 32))))
	short := url.QueryEscape(write(t, base64.StdEncoding.EncodeToString([]byte("topsecret"))))
	for params, name := range map[string]string{
		"encryption_scope=a": "encryption_scope",
		"encryption_scope=fleet&encryption_key_file=" + key: "encryption_key_file",
		"encryption_key_file=" + short:                      "encryption_key_file",
		"encryption_key_file=/no/such/file":                 "encryption_key_file",
		"protocol=http&encryption_key_file=" + key:          "encryption_key_file",
		"ca_file=/no/such/file":                             "ca_file",
		"ca_file=" + key:                                    "ca_file",
		"encryption_key_file=" + url.QueryEscape(write(t, strings.Repeat("A", 2000))): "encryption_key_file",
	} {
		_, err := blob.Open(t.Context(), "azblob://box?"+params, nil)
		require.ErrorIs(t, err, nstance.Invalid, params)
		require.ErrorContains(t, err, name)
		require.NotContains(t, err.Error(), "topsecret")
	}
	client, err := container.NewClientWithNoCredential("https://example.invalid/account/box", nil)
	require.NoError(t, err)
	for _, o := range []blob.Options{{EncryptionKey: []byte("short")}, {EncryptionScope: "a/b"}, {EncryptionScope: "fleet", EncryptionKey: make([]byte, 32)}} {
		_, err := blob.New(client, &o)
		require.ErrorIs(t, err, nstance.Invalid)
	}
}

// TestProxy reads through the proxy that the environment names. The environment is read once in
// a process: the read happens in another one.
func TestProxy(t *testing.T) {
	if os.Getenv("BLOB_TEST_PROXY") != "" {
		s, err := blob.Open(t.Context(), "azblob://box?protocol=http&domain=storage.invalid"+os.Getenv("BLOB_TEST_PARAMS"), nil)
		require.NoError(t, err)
		_, err = s.Get(t.Context(), "a")
		require.NoError(t, err)
		return
	}
	credentials(t)
	_, _, ca := secure(t)
	for _, params := range []string{"", "&ca_file=" + url.QueryEscape(ca)} {
		srv := &faultproxy.Recorder{Answer: accept}
		h := httptest.NewServer(srv)
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxy$")
		child.Env = append(os.Environ(), "BLOB_TEST_PROXY=1", "BLOB_TEST_PARAMS="+params, "HTTP_PROXY="+h.URL, "http_proxy=", "NO_PROXY=", "no_proxy=")
		out, err := child.CombinedOutput()
		h.Close()
		require.NoError(t, err, "%s", out)
		seen := srv.Requests()
		require.Len(t, seen, 1)
		require.Equal(t, http.MethodGet, seen[0].Method)
		require.Equal(t, "account.storage.invalid", seen[0].Host)
	}
}
