// Package qemu makes real virtual machines on this machine: each is a QEMU
// process with a folder, a metadata service and a console of its own. It serves
// development and tests that need real kernels and real machines, and small
// installations on one host.
//
// A machine boots a kernel with an initramfs, or a disk image. The image stays as
// it is: each machine writes to an overlay of its own, and finds its user data on
// a second disk as cloud-init reads it (data source NoCloud). In both cases
// http://169.254.169.254 is the machine's metadata service, which speaks the
// protocol of AWS or of Google Cloud, user data and spot notices included.
//
// The network is QEMU's user mode network 169.254.169.0/24: DHCP, the host's
// loopback interface at 169.254.169.2 ([HostAddress]), and the outside through
// the host. Machines do not reach each other. The server's addresses that
// machines are told must therefore be [HostAddress] with the ports on which the
// server listens.
//
// Machines end with the process that has the cloud, however it ends. Where they
// are to outlive their server, another process has the cloud and serves it with
// [local.Serve]; option endpoint names its socket. The package needs Linux and
// QEMU for x86-64.
//
// A [Cloud] is safe for concurrent use.
package qemu

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/machines"
)

// The addresses that a machine sees.
const (
	HostAddress = "169.254.169.2" // the host's loopback interface
	network     = "169.254.169.0/24"
	metadata    = "169.254.169.254"
)

// zone is where every machine is.
const zone = "local"

// A Cloud runs machines. It is safe for concurrent use.
type Cloud struct {
	o      Options
	log    *slog.Logger
	root   string // holds the machines' folders; made by New
	qemu   string // path of the program
	relay  []string
	accel  func() string // the accelerator; the first call may take probeLimit
	copies *copier       // of what machines print
	ctx    context.Context
	cancel context.CancelFunc

	machines *machines.Set[*machine]
}

var (
	_ nstance.Provider      = (*Cloud)(nil)
	_ nstance.Parker        = (*Cloud)(nil)
	_ nstance.ConsoleReader = (*Cloud)(nil)
	_ nstance.TypeLister    = (*Cloud)(nil)
)

// New returns a cloud without machines; close it when done. A nil log discards.
// It fails with Invalid when an option is wrong or a program is missing.
func New(o *Options, log *slog.Logger) (*Cloud, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Cloud{log: log}
	if o != nil {
		c.o = *o
	}
	if err := c.o.check(); err != nil {
		return nil, err
	}
	c.o = c.o.withDefaults()
	if err := c.findPrograms(); err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp(c.o.Dir, "nstance-qemu-")
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, optionError("dir", "name an existing folder that can be written to", "%v", err)
	}
	c.root = root
	c.machines = machines.New[*machine](machines.Options{
		Root: root, Prefix: "qemu", Zone: zone, Protocol: c.o.Protocol, MaxMachines: c.o.MaxMachines,
		Address: netip.AddrFrom4([4]byte{169, 254, 169, 15}), // the first that QEMU's DHCP server leases
	})
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.accel = sync.OnceValue(c.chooseAccel)
	c.copies = newCopier(c.o.Console)
	return c, nil
}

// Close ends every machine as Delete does, all at once, waits until no process
// is left, and removes the folders that the cloud made. Calls after it are
// answered Unavailable. It may be called more than once.
func (c *Cloud) Close() error {
	c.machines.Close()
	c.cancel()
	c.machines.Wait()
	c.copies.close()
	return os.RemoveAll(c.root)
}

// isExit reports whether err only says that a process did not end well.
func isExit(err error) bool {
	type coder interface{ ExitCode() int }
	var e coder
	return errors.As(err, &e)
}
