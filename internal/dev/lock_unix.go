//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package dev

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock reports whether f was free to lock. The lock ends with the process, and
// children do not inherit it (flock(2)).
func lock(f *os.File) bool {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
