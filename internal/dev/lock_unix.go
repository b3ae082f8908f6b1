//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package dev

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock reports whether f was free to lock. The lock is the open file's (flock(2)): it is
// free once unlock was called, or once no process has that file open any more.
func lock(f *os.File) bool {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// unlock frees f at once. Closing it would not: a child that is just being started
// by any part of this program has it open until it executes its own program.
func unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // of an open file; there is nothing to do about it
}
