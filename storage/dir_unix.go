//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package storage

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the file's lock, exclusive or shared, if it is free. The lock
// belongs to this open file, so it also excludes other goroutines, and ends when
// the file is closed or its process dies (flock(2)).
func tryLock(f *os.File, exclusive bool) (bool, error) {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, err
		}
	}
}

// keepOwner gives what root has made to the owner of the folder that it is in: a server that
// runs as another user must be able to read what an administrator writes.
func keepOwner(f *os.File, folder string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return f.Chown(int(owner.Uid), int(owner.Gid))
}

func isNotDir(err error) bool   { return errors.Is(err, syscall.ENOTDIR) }
func isDir(err error) bool      { return errors.Is(err, syscall.EISDIR) }
func isReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }
func isFull(err error) bool     { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
