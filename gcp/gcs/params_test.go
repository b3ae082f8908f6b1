package gcs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp/gcs"
	"github.com/nstance-go/nstance/gcp/internal/adc/adctest"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
)

const kmsKey = "projects/keys/locations/us/keyRings/ring/cryptoKeys/nstance"

// serve answers as the service does; reads are of the XML API.
func serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && !strings.HasPrefix(r.URL.Path, "/storage/v1/") {
		w.Header().Set("X-Goog-Generation", "42")
		_, _ = io.WriteString(w, "content")
		return
	}
	accept(w, r)
}

// TestPayerAndKey: every request names the project that pays, and writes name the key.
func TestPayerAndKey(t *testing.T) {
	srv := &faultproxy.Recorder{Answer: serve}
	h := httptest.NewServer(srv)
	t.Cleanup(h.Close)
	t.Setenv("STORAGE_EMULATOR_HOST", h.Listener.Addr().String())
	s, err := gcs.Open(t.Context(), "gs://bucket?user_project=my-project&kms_key="+kmsKey, nil)
	require.NoError(t, err)
	_, err = s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	put := srv.Requests()
	require.Len(t, put, 1)
	require.Equal(t, kmsKey, put[0].URL.Query().Get("kmsKeyName"))
	_, err = s.Get(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, s.DeleteIfMatch(t.Context(), "a", "1700000000000042"))
	for range s.List(t.Context(), "a", "") {
	}
	all := append(put, srv.Requests()...)
	methods := map[string]bool{}
	for _, r := range all {
		methods[r.Method] = true
		require.Equal(t, "my-project", r.Header.Get("X-Goog-User-Project"), "%s %s", r.Method, r.URL)
		if strings.Contains(r.URL.Path, "/storage/v1/") {
			require.Equal(t, []string{"my-project"}, r.URL.Query()["userProject"], "%s %s", r.Method, r.URL)
		}
	}
	require.Subset(t, methods, map[string]bool{"POST": true, "GET": true, "DELETE": true})

	s, err = gcs.Open(t.Context(), "gs://bucket", nil)
	require.NoError(t, err)
	_, err = s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	put = srv.Requests()
	require.Empty(t, put[0].Header.Get("X-Goog-User-Project"))
	require.NotContains(t, put[0].URL.RawQuery, "userProject")
	require.NotContains(t, put[0].URL.RawQuery, "kmsKeyName")
}

func TestParametersRefused(t *testing.T) {
	for name, value := range map[string]string{
		"kms_key": "nstance", "user_project": "My Project", "endpoint": "storage.example", "key": "secret",
	} {
		_, err := gcs.Open(t.Context(), "gs://bucket?"+name+"="+url.QueryEscape(value), nil)
		require.ErrorIs(t, err, nstance.Invalid, name)
		require.ErrorContains(t, err, name)
	}
	_, err := gcs.Open(t.Context(), "gs://bucket?endpoint="+url.QueryEscape("https://user:pw@storage.example"), nil)
	require.ErrorIs(t, err, nstance.Invalid)
	require.NotContains(t, err.Error(), "pw")
}

// child has a test run itself in another process, whose environment it needs.
const child = "NSTANCE_TEST_GCS_URL"

// TestProxyAndAuthorities: a store behind a proxy that only it can pass, whose service has
// a certificate of another authority, at Google's names and at a private endpoint. The
// credentials go the same way.
func TestProxyAndAuthorities(t *testing.T) {
	if u := os.Getenv(child); u != "" {
		s, err := gcs.Open(t.Context(), u, nil)
		require.NoError(t, err)
		_, err = s.PutIfAbsent(t.Context(), "a", []byte("1"))
		require.NoError(t, err)
		o, err := s.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "content", string(o.Data))
		return
	}
	for u, host := range map[string]string{
		"gs://bucket": "storage.googleapis.com",
		"gs://bucket?endpoint=https://storage-nstance.p.googleapis.com": "storage-nstance.p.googleapis.com",
	} {
		t.Run(host, func(t *testing.T) {
			dir := t.TempDir()
			service, ca := privateService(t)
			proxy := &tunnel{to: service.Listener.Addr().String()}
			p := httptest.NewServer(proxy)
			t.Cleanup(p.Close)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "key.json"), adctest.AccountKey(t, "https://oauth2.googleapis.com/token"), 0o600))
			self, err := os.Executable()
			require.NoError(t, err)
			c := exec.CommandContext(t.Context(), self, "-test.run=^TestProxyAndAuthorities$", "-test.timeout=5m")
			c.Env = []string{
				child + "=" + u, "HTTPS_PROXY=" + p.URL, "SSL_CERT_FILE=" + filepath.Join(dir, "ca.pem"), "SSL_CERT_DIR=" + dir,
				"GOOGLE_APPLICATION_CREDENTIALS=" + filepath.Join(dir, "key.json"), "HOME=" + dir, "TMPDIR=" + dir,
			}
			out, err := c.CombinedOutput()
			require.NoError(t, err, "%s", out)
			proxy.mu.Lock()
			defer proxy.mu.Unlock()
			require.Contains(t, proxy.hosts, host+":443")
			require.Contains(t, proxy.hosts, "oauth2.googleapis.com:443")
		})
	}
}

// A tunnel is a proxy that connects to one address, whatever is asked of it.
type tunnel struct {
	to    string
	mu    sync.Mutex
	hosts []string
}

func (p *tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	p.mu.Lock()
	p.hosts = append(p.hosts, r.Host)
	p.mu.Unlock()
	to, err := new(net.Dialer).DialContext(r.Context(), "tcp", p.to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = to.Close() }()
	from, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = from.Close() }()
	fmt.Fprint(from, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
	_, _ = io.Copy(from, to)
}

// privateService serves the store and tokens under Google's names, with a certificate of
// its own authority.
func privateService(t *testing.T) (*httptest.Server, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"storage.googleapis.com", "oauth2.googleapis.com", "storage-nstance.p.googleapis.com"},
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"access_token": "t", "token_type": "Bearer", "expires_in": 3600}`)
			return
		}
		if r.Header.Get("Authorization") != "Bearer t" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		serve(w, r)
	}))
	h.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	h.StartTLS()
	t.Cleanup(h.Close)
	return h, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
