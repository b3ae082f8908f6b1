//go:build unix

package dev

import "syscall"

// apart starts a process in a group of its own.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
