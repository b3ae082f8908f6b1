//go:build !unix

package local

import (
	"errors"
	"os"
	"syscall"
)

const supported = false

func ownGroup() *syscall.SysProcAttr { return nil }
func send(int, syscall.Signal)       {}
func awaitExit(int) bool             { return false }
func killSelf()                      { os.Exit(1) }
func openTether() (*os.File, error)  { return nil, errors.New("not on this system") }
