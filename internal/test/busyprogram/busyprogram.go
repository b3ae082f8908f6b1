// Package busyprogram makes programs that cannot be started for a reason that passes.
package busyprogram

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// New returns the path of a shell that Linux does not start while it is being written
// (ETXTBSY), and what ends that.
func New(t testing.TB) (path string, done func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "program")
	shell, err := os.ReadFile("/bin/sh")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, shell, 0o700)) //nolint:gosec // a program
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return path, func() { require.NoError(t, f.Close()) }
}
