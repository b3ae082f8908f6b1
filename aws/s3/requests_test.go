package s3_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/s3"
	"github.com/nstance-go/nstance/storage"
)

// guarded returns the handler of a service that refuses requests as a bucket's policy does:
// those without the headers, by method. "" fits any value.
func guarded(t *testing.T, wanted map[string]http.Header) http.Handler {
	t.Helper()
	target, err := url.Parse(service(t))
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range wanted[r.Method] {
			if r.Header.Get(name) != values[0] {
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
				return
			}
		}
		if !intact(r) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "<Error><Code>BadDigest</Code><Message>The checksum you specified did not match</Message></Error>")
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// intact compares a body with the checksums in its header.
func intact(r *http.Request) bool {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	sum, crc := sha256.Sum256(body), crc32.New(crc32.MakeTable(crc32.Castagnoli))
	_, _ = crc.Write(body)
	for name, want := range map[string][]byte{"X-Amz-Checksum-Sha256": sum[:], "X-Amz-Checksum-Crc32c": crc.Sum(nil)} {
		if got := r.Header.Get(name); got != "" && got != base64.StdEncoding.EncodeToString(want) {
			return false
		}
	}
	return true
}

func guardedURL(t *testing.T, wanted map[string]http.Header) string {
	t.Helper()
	srv := httptest.NewServer(guarded(t, wanted))
	t.Cleanup(srv.Close)
	return srv.URL
}

// useStore makes every kind of call.
func useStore(t *testing.T, s storage.Store) error {
	t.Helper()
	v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
	if err != nil {
		return err
	}
	if v, err = s.PutIfMatch(t.Context(), "a", []byte("2"), v); err != nil {
		return err
	}
	if _, err = s.Get(t.Context(), "a"); err != nil {
		return err
	}
	for _, err := range s.List(t.Context(), "", "") {
		if err != nil {
			return err
		}
	}
	return s.DeleteIfMatch(t.Context(), "a", v)
}

// TestRequests: a bucket whose policy wants a header on every write, or on every call, can be
// used with the parameter, and not without.
func TestRequests(t *testing.T) {
	const key = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
	payer := http.Header{"X-Amz-Request-Payer": {"requester"}}
	sum := sha256.Sum256([]byte("1"))
	for params, wanted := range map[string]map[string]http.Header{
		"&sse=AES256": {"PUT": {"X-Amz-Server-Side-Encryption": {"AES256"}}},
		"&sse=aws:kms&bucket_key=true&kms_key=" + url.QueryEscape(key): {"PUT": {
			"X-Amz-Server-Side-Encryption": {"aws:kms"}, "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": {key},
			"X-Amz-Server-Side-Encryption-Bucket-Key-Enabled": {"true"},
		}},
		"&sse=aws:kms:dsse":        {"PUT": {"X-Amz-Server-Side-Encryption": {"aws:kms:dsse"}}},
		"&request_payer=requester": {"PUT": payer, "GET": payer, "HEAD": payer, "DELETE": payer},
	} {
		t.Run(params, func(t *testing.T) {
			endpoint := guardedURL(t, wanted)
			require.NoError(t, useStore(t, open(t, endpoint, params)))
			require.ErrorIs(t, useStore(t, open(t, endpoint, "")), nstance.Denied)
		})
	}
	endpoint := guardedURL(t, map[string]http.Header{"PUT": {"X-Amz-Checksum-Sha256": {base64.StdEncoding.EncodeToString(sum[:])}, "Content-Md5": {""}}})
	_, err := open(t, endpoint, "&checksum=sha256").PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	_, err = open(t, endpoint, "").PutIfAbsent(t.Context(), "b", []byte("1"))
	require.ErrorIs(t, err, nstance.Denied)
	endpoint = guardedURL(t, map[string]http.Header{"PUT": {"X-Amz-Checksum-Crc32c": {"kPWZ4w=="}}}) // of "1"
	_, err = open(t, endpoint, "&checksum=crc32c").PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
}

func TestRequestsRefused(t *testing.T) {
	for param, u := range map[string]string{
		"sse": "sse=kms", "kms_key": "kms_key=alias/x&sse=AES256", "bucket_key": "bucket_key=true&sse=aws:kms:dsse",
		"checksum": "checksum=crc64", "request_payer": "request_payer=owner", `"bucket_key"`: "bucket_key=on",
	} {
		_, err := s3.Open(t.Context(), "s3://b?region=eu-west-1&"+u, nil)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "storage.url: ")
		require.ErrorContains(t, err, param)
	}
}

// TestOwnAuthority: AWS_CA_BUNDLE names the authorities of a store's certificate, for each
// pool of connections.
func TestOwnAuthority(t *testing.T) {
	srv := httptest.NewTLSServer(guarded(t, nil))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600))
	require.Error(t, useStore(t, open(t, srv.URL, "")))
	t.Setenv("AWS_CA_BUNDLE", file)
	s := open(t, srv.URL, "")
	require.NoError(t, useStore(t, s))
	require.NoError(t, useStore(t, storage.Separate(s)))
}

// TestThroughProxy: a store that only a proxy reaches can be used. Go reads HTTP_PROXY once
// in a process, so that this is another one.
func TestThroughProxy(t *testing.T) {
	if os.Getenv("HTTP_PROXY") == "http://"+os.Getenv("NSTANCE_TEST_PROXY") {
		require.NoError(t, useStore(t, open(t, "http://store.invalid", "")))
		return
	}
	var passed atomic.Int64
	store := guarded(t, nil)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host != "store.invalid" {
			http.Error(w, "not through a proxy", http.StatusBadGateway)
			return
		}
		passed.Add(1)
		store.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	host := proxy.Listener.Addr().String()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestThroughProxy$", "-test.count=1")
	c.Env = append(os.Environ(), "HTTP_PROXY=http://"+host, "NSTANCE_TEST_PROXY="+host, "NO_PROXY=", "no_proxy=")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.GreaterOrEqual(t, passed.Load(), int64(5))
}
