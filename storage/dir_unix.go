//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// treeOf returns how to reach the files at path: root has those of another user through an
// othersTree, from the first folder of the path on that is another user's.
func treeOf(path string) tree {
	if os.Geteuid() != 0 {
		return ownTree{}
	}
	for at, rest := string(filepath.Separator), strings.Split(path, string(filepath.Separator)); ; {
		for _, info := range []func(string) (os.FileInfo, error){os.Lstat, os.Stat} {
			found, err := info(at)
			if err != nil {
				return ownTree{} // nothing is there yet
			}
			if uid, gid := ownerOf(found); uid != 0 {
				return othersTree{base: at, uid: uid, gid: gid}
			}
		}
		if len(rest) == 0 {
			return ownTree{}
		}
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
}

// ownerOf returns the user and the group of a file.
func ownerOf(info os.FileInfo) (uid, gid int) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0
	}
	return int(st.Uid), int(st.Gid)
}

func isNotDir(err error) bool   { return errors.Is(err, syscall.ENOTDIR) }
func isDir(err error) bool      { return errors.Is(err, syscall.EISDIR) }
func isReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }
func isFull(err error) bool     { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
