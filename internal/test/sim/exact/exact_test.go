package exact_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/sim/exact"
)

// TestWrite: every change fits the Go version of the tests, and a file of the module can
// be replaced as well.
func TestWrite(t *testing.T) {
	path, err := exact.Write(t.TempDir(), "../../../..", map[string]string{"doc.go": "/elsewhere/doc.go"})
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var overlay struct{ Replace map[string]string }
	require.NoError(t, json.Unmarshal(data, &overlay))
	require.Contains(t, overlay.Replace, mustAbs(t, "../../../../doc.go"))
	for from, to := range overlay.Replace {
		require.FileExists(t, from)
		if to != "/elsewhere/doc.go" {
			require.FileExists(t, to)
		}
	}
}

// TestWriteRefuses: a file with other content is not built.
func TestWriteRefuses(t *testing.T) {
	_, err := exact.Write(t.TempDir(), t.TempDir(), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func mustAbs(t *testing.T, path string) string {
	abs, err := filepath.Abs(path)
	require.NoError(t, err)
	return abs
}
