package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/web"
)

func serve(t *testing.T, status web.Status, leading *atomic.Bool) func(method, path string) (*http.Response, string) {
	t.Helper()
	srv := httptest.NewServer(web.Handler(&web.Options{Status: func(context.Context) web.Status { return status }, Leading: leading.Load}))
	t.Cleanup(srv.Close)
	return func(method, path string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, nil)
		require.NoError(t, err)
		resp, err := srv.Client().Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp, string(body)
	}
}

func TestHandler(t *testing.T) {
	var leading atomic.Bool
	want := web.Status{
		Version: "1", Cluster: "c1", Shard: "s1", Leader: true, Groups: []web.Group{{Tenant: "t", Group: "g", Size: 3}},
		Instances: []web.Instance{{ID: "i", Note: "<script>"}}, Attention: []web.Attention{{Kind: "clock", Count: 1}},
	}
	call := serve(t, want, &leading)

	t.Run("every answer is guarded", func(t *testing.T) {
		for _, path := range []string{"/", "/status.css", "/status.js", "/status.json", "/stream", "/healthz", "/readyz", "/nowhere"} {
			resp, _ := call(http.MethodHead, path)
			require.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'", path)
			require.NotContains(t, resp.Header.Get("Content-Security-Policy"), "unsafe", path)
			require.Contains(t, resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'", path)
			require.Equal(t, "nosniff", resp.Header.Get("X-Content-Type-Options"), path)
			require.Equal(t, "no-store", resp.Header.Get("Cache-Control"), path)
		}
	})
	t.Run("the page", func(t *testing.T) {
		resp, body := call(http.MethodGet, "/")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, "text/html; charset=utf-8", resp.Header.Get("Content-Type"))
		require.NotRegexp(t, `(src|href)="(https?:)?//`, body, "nothing is loaded from elsewhere")
		for path, kind := range map[string]string{"/status.css": "text/css; charset=utf-8", "/status.js": "text/javascript; charset=utf-8"} {
			resp, part := call(http.MethodGet, path)
			require.Equal(t, http.StatusOK, resp.StatusCode, path)
			require.Equal(t, kind, resp.Header.Get("Content-Type"))
			require.Contains(t, body, `"`+path[1:]+`"`)
			require.NotRegexp(t, `innerHTML|outerHTML|insertAdjacentHTML|document\.write`, part, "names come from people: they are text, never markup")
		}
	})
	t.Run("what it shows", func(t *testing.T) {
		resp, body := call(http.MethodGet, "/status.json")
		require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
		var got web.Status
		require.NoError(t, json.Unmarshal([]byte(body), &got))
		require.Equal(t, want, got)
		require.NotContains(t, body, "<script>")
	})
	t.Run("read only", func(t *testing.T) {
		for _, path := range []string{"/", "/status.css", "/status.js", "/status.json", "/stream", "/healthz", "/readyz"} {
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
				resp, _ := call(method, path)
				require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode, "%s %s", method, path)
				require.Equal(t, "GET, HEAD", resp.Header.Get("Allow"))
			}
			resp, body := call(http.MethodHead, path)
			require.NotEqual(t, http.StatusMethodNotAllowed, resp.StatusCode)
			require.Empty(t, body)
		}
	})
	t.Run("nothing else", func(t *testing.T) {
		resp, _ := call(http.MethodGet, "/status.html")
		require.Equal(t, http.StatusNotFound, resp.StatusCode)
	})
	t.Run("alive whether or not it leads, ready only if it does", func(t *testing.T) {
		for path, codes := range map[string][2]int{"/healthz": {200, 200}, "/readyz": {503, 200}} {
			for i, leads := range []bool{false, true} {
				leading.Store(leads)
				resp, _ := call(http.MethodGet, path)
				require.Equal(t, codes[i], resp.StatusCode, "%s, leading: %v", path, leads)
			}
		}
	})
	t.Run("what cannot be shown is an error, not half a page", func(t *testing.T) {
		call := serve(t, web.Status{Instances: []web.Instance{{CPU: math.NaN()}}}, &leading)
		for _, path := range []string{"/status.json", "/stream"} {
			resp, body := call(http.MethodGet, path)
			require.Equal(t, http.StatusInternalServerError, resp.StatusCode, path)
			require.Contains(t, body, "NaN")
		}
	})
}

func ExampleHandler() {
	handler := web.Handler(&web.Options{
		Status: func(context.Context) web.Status { return web.Status{Shard: "s1"} }, Leading: func() bool { return false }, Ending: make(chan struct{}),
	})
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	fmt.Print(w.Code, " ", w.Body)
	// Output: 503 {"status":"not leading"}
}
