package program

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRequestRate: without a rate client-go sends five requests a second, and 1,000 machines
// take a quarter of an hour.
func TestRequestRate(t *testing.T) {
	config := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(config, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"a",
		"clusters":[{"name":"a","cluster":{"server":"http://127.0.0.1:1"}}],"contexts":[{"name":"a","context":{"cluster":"a"}}]}`), 0o600))
	var o options
	require.NoError(t, o.flags().Parse([]string{"--kubeconfig", config, "--own-namespace=x", "--metrics-bind-address=0", "--health-addr=0", "--webhook-port=0"}))
	p, err := newProgram(&o, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.InDelta(t, 100, p.config.QPS, 0)
	require.Equal(t, 200, p.config.Burst)
}
