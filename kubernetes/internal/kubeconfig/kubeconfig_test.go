package kubeconfig_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api/v1"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/kubernetes/internal/kubeconfig"
)

// A server stands for that of whoever wrote the Secret.
type server struct {
	*httptest.Server
	got chan *http.Request
}

func newServer(t *testing.T, answer http.HandlerFunc) server {
	s := server{got: make(chan *http.Request, 100)}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.got <- r
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s server) authority() string {
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// text returns a kubeconfig with further settings of its cluster and its user.
func (s server) text(cluster, user string) []byte {
	if !strings.Contains(cluster, "server:") {
		cluster = fmt.Sprintf("server: %q, ", s.URL) + cluster
	}
	if !strings.Contains(cluster, "insecure") {
		cluster = "certificate-authority-data: " + s.authority() + ", " + cluster
	}
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
users: [{name: u, user: {%s}}]
`, cluster, user)
}

func unavailable(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }

// TestInlineCredentials: what is inline is sent, to the server of the file.
func TestInlineCredentials(t *testing.T) {
	s := newServer(t, unavailable)
	cfg, err := kubeconfig.Parse(s.text("", "token: SECRET"))
	require.NoError(t, err)
	ask(t, cfg)
	require.Equal(t, "Bearer SECRET", (<-s.got).Header.Get("Authorization"))
}

// TestNothingElse: each setting that is no data is refused with its name, the server
// hears nothing, no file is read and no program runs.
func TestNothingElse(t *testing.T) {
	s := newServer(t, unavailable)
	dir := t.TempDir()
	token, mark := filepath.Join(dir, "token"), filepath.Join(dir, "ran")
	require.NoError(t, os.WriteFile(token, []byte("OF-THE-PROGRAM"), 0o600))
	for field, in := range map[string][2]string{
		"clusters.cluster.server":                   {"server: 'http://127.0.0.1:1'", ""},
		"clusters.cluster.certificate-authority":    {fmt.Sprintf("certificate-authority: %q", token), ""},
		"clusters.cluster.insecure-skip-tls-verify": {"insecure-skip-tls-verify: true", "token: SECRET"},
		"clusters.cluster.proxy-url":                {fmt.Sprintf("proxy-url: %q", s.URL), "token: SECRET"},
		"users.user.exec":                           {"", fmt.Sprintf(`exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /bin/sh, args: ["-c", "id > %s"]}`, mark)},
		"users.user.auth-provider":                  {"", "auth-provider: {name: oidc, config: {a: b}}"},
		"users.user.tokenFile":                      {"", fmt.Sprintf("token: SECRET, tokenFile: %q", token)},
		"users.user.client-certificate":             {"", fmt.Sprintf("client-certificate: %q", token)},
		"users.user.client-key":                     {"", fmt.Sprintf("client-key: %q", token)},
		"users.user.username":                       {"", "username: a, password: b"},
		"users.user.as":                             {"", "token: SECRET, as: admin"},
		"users.user.as-uid":                         {"", "token: SECRET, as-uid: '1'"},
		"users.user.as-groups":                      {"", "token: SECRET, as-groups: ['system:masters']"},
		"users.user.as-user-extra":                  {"", "token: SECRET, as-user-extra: {a: [b]}"},
	} {
		t.Run(field, func(t *testing.T) {
			_, err := kubeconfig.Parse(s.text(in[0], in[1]))
			e, ok := err.(*nstance.Error) //nolint:errorlint // not wrapped
			require.True(t, ok, "%v", err)
			require.Equal(t, nstance.Invalid, e.Code)
			require.Equal(t, "kubeconfig."+field, e.Field)
			require.NotEmpty(t, e.Remedy)
			require.NotContains(t, err.Error(), "SECRET")
		})
	}
	require.Empty(t, s.got)
	require.NoFileExists(t, mark)
}

// TestServerAddress: an address that is no other than https://HOST is refused.
func TestServerAddress(t *testing.T) {
	s := newServer(t, unavailable)
	for address, good := range map[string]bool{
		"https://10.0.0.1:6443": true, "https://10.0.0.1:6443/clusters/c": true,
		"https://": false, "10.0.0.1:6443": false, "ftp://10.0.0.1": false, "https://admin:SECRET@10.0.0.1:6443": false, "https://10.0.0.1:port": false,
	} {
		_, err := kubeconfig.Parse(s.text(fmt.Sprintf("server: %q", address), "token: a"))
		require.Equal(t, good, err == nil, "%s: %v", address, err)
		if err != nil {
			require.ErrorIs(t, err, nstance.Invalid)
			require.NotContains(t, err.Error(), "SECRET")
		}
	}
}

// TestEverySettingIsKnown: a setting that a newer client library reads is decided on here.
func TestEverySettingIsKnown(t *testing.T) {
	count := func(of any) int { return reflect.TypeOf(of).NumField() }
	require.Equal(t, 8, count(clientcmdapi.Cluster{}), "read or refuse the new setting of clusters")
	require.Equal(t, 15, count(clientcmdapi.AuthInfo{}), "read or refuse the new setting of users")
}

// TestBrokenFiles: what is no kubeconfig is refused as such.
func TestBrokenFiles(t *testing.T) {
	s := newServer(t, unavailable)
	good := string(s.text("", "token: a"))
	for _, text := range []string{
		"", "not yaml: [", "{}", strings.Replace(good, "current-context: x", "current-context: y", 1),
		strings.Replace(good, "user: u}", "user: v}", 1), strings.Replace(good, "cluster: c,", "cluster: d,", 1),
		string(s.text("", "client-certificate-data: YQ==, client-key-data: YQ==")), strings.Replace(good, s.authority(), "YQ==", 1),
	} {
		_, err := kubeconfig.Parse([]byte(text))
		require.ErrorIs(t, err, nstance.Invalid, text)
	}
}

// TestNoRedirects: a redirect is an error, and the credentials go nowhere else.
func TestNoRedirects(t *testing.T) {
	elsewhere := newServer(t, unavailable)
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	})
	cfg, err := kubeconfig.Parse(s.text("", "token: SECRET"))
	require.NoError(t, err)
	require.ErrorContains(t, ask(t, cfg), "redirects")
	require.Len(t, s.got, 1)
	require.Empty(t, elsewhere.got)
}

// TestNotModified: an answer that names no other server is none of a redirect.
func TestNotModified(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
	cfg, err := kubeconfig.Parse(s.text("", "token: a"))
	require.NoError(t, err)
	transport, err := rest.TransportFor(cfg)
	require.NoError(t, err)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/openapi/v3", nil)
	require.NoError(t, err)
	resp, err := transport.RoundTrip(q)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusNotModified, resp.StatusCode)
}

// ask asks for a Node, and returns the answer's error.
func ask(t *testing.T, cfg *rest.Config) error {
	t.Helper()
	cfg.Timeout = time.Minute
	c, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	_, err = c.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	require.Error(t, err)
	return err
}
