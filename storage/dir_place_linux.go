package storage

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"
)

// Of linux/stat.h and linux/fcntl.h. The module golang.org/x/sys has them too, and is larger
// than all that a program with a reconciler fetches besides.
const (
	statxIno   = 0x100
	statxBtime = 0x800
	atFDCWD    = -0x64
)

// statxNumbers are the numbers of the system call statx, by architecture.
var statxNumbers = map[string]uintptr{"amd64": 332, "arm64": 291, "riscv64": 291, "loong64": 291, "386": 383, "arm": 397, "ppc64le": 383, "s390x": 379}

// statxTime is struct statx_timestamp.
type statxTime struct {
	sec  int64
	nsec uint32
	_    int32
}

// statx is struct statx.
type statx struct {
	mask, _        uint32
	_              uint64
	_, _, _        uint32 // links, user, group
	_, _           uint16 // mode
	ino, _, _, _   uint64
	_, birth, _, _ statxTime
	_              [128]byte
}

// placeOf identifies a file by its inode and its time of birth: they stay when it is moved, or
// its file system is mounted elsewhere, and no copy has both.
func placeOf(path string) string {
	name, err := syscall.BytePtrFromString(path)
	number, known := statxNumbers[runtime.GOARCH]
	if err != nil || !known {
		return ""
	}
	var st statx
	at := atFDCWD
	_, _, failed := syscall.Syscall6(number, uintptr(at), uintptr(unsafe.Pointer(name)), 0, statxIno|statxBtime, uintptr(unsafe.Pointer(&st)), 0) //nolint:gosec // as package syscall does
	if failed != 0 || st.mask&statxBtime == 0 {
		return ""
	}
	return fmt.Sprintf("inode %d of %d.%09d", st.ino, st.birth.sec, st.birth.nsec)
}
