package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"time"
)

// kvmDevice is what QEMU needs for KVM. That it exists proves nothing: on some
// hosts a small program runs and a kernel hangs without a word.
const kvmDevice = "/dev/kvm"

// probeLimit is how long a kernel may take to find no root file system.
const probeLimit = 10 * time.Second

var errHangs = errors.New("a kernel hangs under KVM")

// chooseAccel returns the accelerator to use.
func (c *Cloud) chooseAccel() string {
	if c.o.Accel != accelAuto {
		return c.o.Accel
	}
	if err := c.probeKVM(); err != nil {
		c.log.Info("machines are emulated, as KVM does not work here", "err", err)
		return accelTCG
	}
	return accelKVM
}

// probeKVM boots the kernel under KVM, without an initramfs: it panics as it
// finds no root, panic=-1 has it restart at once, and -no-reboot makes that the
// end of QEMU.
func (c *Cloud) probeKVM() error {
	f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_ = f.Close() // nothing was written
	kernel, err := c.probeKernel()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(c.ctx, probeLimit, errHangs)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.qemu, append(commonArgs(accelKVM, defaultCPU), "-m", "128", "-no-reboot",
		"-kernel", kernel, "-append", "panic=-1")...)
	if err := cmd.Run(); ctx.Err() != nil {
		return context.Cause(ctx)
	} else if err != nil {
		return err
	}
	return nil
}

// probeKernel returns the kernel of the options, or this host's own.
func (c *Cloud) probeKernel() (string, error) {
	if c.o.Kernel != "" {
		return c.o.Kernel, nil
	}
	release, err := kernelRelease()
	if err != nil {
		return "", err
	}
	return findFile("kernel", "/boot/vmlinuz-"+release)
}
