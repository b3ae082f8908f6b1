package qemu

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const supported = true

// diesWithThread has a process killed when the thread that started it ends, also
// when that is because the whole program was killed. The group of its own keeps
// a Ctrl-C at the terminal away.
func diesWithThread() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// connectedPair returns the two ends of a connection: one for this process, one
// for a child.
func connectedPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	own, child := os.NewFile(uintptr(fds[0]), "monitor"), os.NewFile(uintptr(fds[1]), "monitor")
	conn, err := net.FileConn(own) // a duplicate
	_ = own.Close()
	if err != nil {
		_ = child.Close()
		return nil, nil, err
	}
	return conn, child, nil
}

func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}
