// Package program writes programs that tests then start.
package program

import (
	"os"
	"syscall"
)

// Write writes a program. No process is forked meanwhile: until its exec a child would have the
// file open for writing, and Linux starts no such file (ETXTBSY).
func Write(path string, text []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, text, 0o700) //nolint:gosec // a program
}
