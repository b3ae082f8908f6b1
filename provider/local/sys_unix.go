//go:build unix

package local

import (
	"fmt"
	"os"
	"syscall"
)

const supported = true

// ownGroup starts a process in a group of its own, so that all it starts can be
// ended with it, and so that a Ctrl-C at the terminal is the parent's to handle.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// send signals the process pid; SIGKILL goes to its whole group.
func send(pid int, s syscall.Signal) {
	if s == syscall.SIGKILL {
		pid = -pid
	}
	_ = syscall.Kill(pid, s) // an error says that it is gone already
}

// die ends this process and its group, if the group is its own.
func die() {
	if syscall.Getpgrp() == os.Getpid() {
		_ = syscall.Kill(0, syscall.SIGKILL)
	}
	os.Exit(1)
}

// openCord returns the descriptor that provider/local left open. Processes that
// this one starts do not inherit it.
func openCord() (*os.File, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(cordFD, &stat); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", cordFD, err)
	}
	if stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("descriptor %d is no pipe", cordFD)
	}
	syscall.CloseOnExec(cordFD)
	if err := syscall.SetNonblock(cordFD, true); err != nil { // so that Close ends a read
		return nil, fmt.Errorf("descriptor %d: %w", cordFD, err)
	}
	return os.NewFile(cordFD, "nstance-local-cord"), nil
}
