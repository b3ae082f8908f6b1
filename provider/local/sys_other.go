//go:build !unix

package local

import (
	"errors"
	"os"
	"syscall"

	"github.com/nstance-go/nstance"
)

const supported = false

const sigSuspend, sigContinue = syscall.Signal(0), syscall.Signal(0)

func parkModes() []nstance.ParkMode  { return []nstance.ParkMode{nstance.ParkStopped} }
func ownGroup() *syscall.SysProcAttr { return nil }
func send(int, syscall.Signal)       {}
func awaitExit(int) bool             { return false }
func killSelf()                      { os.Exit(1) }
func openTether() (*os.File, error)  { return nil, errors.New("not on this system") }
