// Package program writes programs that tests then start.
package program

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Write writes a program. No process is forked meanwhile: until its exec a child would have the
// file open for writing, and Linux starts no such file (ETXTBSY).
func Write(t testing.TB, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, text, 0o700)) //nolint:gosec // a program
}
