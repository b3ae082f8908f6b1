//go:build unix

package local

import (
	"fmt"
	"os"
	"syscall"

	"github.com/nstance-go/nstance"
)

const supported = true

// ownGroup starts a process in a group of its own, so that its children can be
// killed with it, and so that only the parent handles Ctrl-C at the terminal.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// The signals of a hibernated machine.
const (
	sigSuspend  = syscall.SIGSTOP
	sigContinue = syscall.SIGCONT
)

func parkModes() []nstance.ParkMode {
	return []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}
}

// send signals the group of process pid, or with SIGTERM the process alone.
func send(pid int, s syscall.Signal) {
	if s != syscall.SIGTERM {
		pid = -pid
	}
	_ = syscall.Kill(pid, s) // an error means that it has ended already
}

// killSelf ends this process and its group, if the group is its own.
func killSelf() {
	if syscall.Getpgrp() == os.Getpid() {
		_ = syscall.Kill(0, syscall.SIGKILL)
	}
	os.Exit(1)
}

// openTether returns the descriptor that provider/local left open. Children of this
// process do not inherit it.
func openTether() (*os.File, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(tetherFD, &stat); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", tetherFD, err)
	}
	if stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("descriptor %d is no pipe", tetherFD)
	}
	syscall.CloseOnExec(tetherFD)
	if err := syscall.SetNonblock(tetherFD, true); err != nil { // so that Close ends a read
		return nil, fmt.Errorf("descriptor %d: %w", tetherFD, err)
	}
	return os.NewFile(tetherFD, "nstance-local-tether"), nil
}
