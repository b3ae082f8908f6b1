//go:build !linux

package qemu

import (
	"errors"
	"net"
	"os"
	"syscall"
)

const supported = false

func diesWithThread() *syscall.SysProcAttr { return nil }

func connectedPair() (net.Conn, *os.File, error) { return nil, nil, errors.ErrUnsupported }

func kernelRelease() (string, error) { return "", errors.ErrUnsupported }
