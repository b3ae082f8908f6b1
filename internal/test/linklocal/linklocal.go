// Package linklocal is for tests of what asks link-local addresses for credentials.
package linklocal

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// child is set in the process that makes the call.
const child = "NSTANCE_TEST_LINK_LOCAL"

// CheckDirect makes a call in another process, in which the environment names a proxy. It
// requires that no request for a host reaches the proxy. env is more of the environment. The
// calling test must do nothing else.
func CheckDirect(t *testing.T, host string, call func(context.Context), env ...string) {
	t.Helper()
	if os.Getenv(child) != "" {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // no service is there
		defer cancel()
		call(ctx)
		return
	}
	var mu sync.Mutex
	var hosts []string
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		hosts = append(hosts, r.Host)
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(p.Close)
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	c := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.timeout=5m")
	c.Env = append(env, child+"=1", "HTTP_PROXY="+p.URL, "HTTPS_PROXY="+p.URL, "HOME="+dir, "TMPDIR="+dir, "PATH=")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	mu.Lock()
	defer mu.Unlock()
	require.NotContains(t, hosts, host)
}
