//go:build !linux

package kube

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
