//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package storage

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes the file's lock, exclusive or shared, if it is free. The lock
// belongs to this open file, so it also excludes other goroutines, and ends when
// the file is closed or its process dies (flock(2)).
func tryLock(f *os.File, exclusive bool) (bool, error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, err
		}
	}
}

func isNotDir(err error) bool   { return errors.Is(err, unix.ENOTDIR) }
func isDir(err error) bool      { return errors.Is(err, unix.EISDIR) }
func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) }
func isFull(err error) bool     { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
