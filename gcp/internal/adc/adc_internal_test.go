package adc

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// TestAvailable: the metadata service is asked anew each time, and only a service of Google's
// counts.
func TestAvailable(t *testing.T) {
	var google atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if google.Load() && r.Header.Get("Metadata-Flavor") == "Google" {
			w.Header().Set("Metadata-Flavor", "Google")
		}
	}))
	t.Cleanup(srv.Close)
	env := map[string]string{"HOME": t.TempDir()}
	check := func() error {
		return available(t.Context(), srv.URL, func(name string) string { return env[name] })
	}
	err := check()
	require.ErrorIs(t, err, nstance.Denied)
	require.ErrorContains(t, err, "not Google's")
	require.ErrorContains(t, err, "GOOGLE_APPLICATION_CREDENTIALS")
	google.Store(true)
	require.NoError(t, check())
	srv.Close()
	require.ErrorIs(t, check(), nstance.Denied)

	for _, name := range []string{"GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST"} {
		env[name] = "x"
		require.NoError(t, check(), name)
		delete(env, name)
	}
	file := filepath.Join(env["HOME"], ".config", "gcloud", "application_default_credentials.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	require.NoError(t, check())
}
