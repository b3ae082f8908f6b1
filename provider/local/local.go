// Package local is a cloud on one machine: each of its machines is a child
// process with a folder and a metadata service of its own. It is for the
// quickstart and for tests with real agents and no real cloud.
//
// NSTANCE_METADATA_URL is the URL of the machine's metadata service, which has its
// user data, and NSTANCE_PROVIDER the service's protocol. The machine's folder,
// NSTANCE_LOCAL_DIR, is its working directory. The machine must exit when file
// descriptor 3, a pipe, reaches its end: that happens in whatever way the parent
// ended, also by kill -9. A program that calls [Boot] does all this.
//
// Args of a spec, all optional:
//
//	boot_delay  how long the machine stays pending before its process starts
//	wake_delay  likewise when it is woken
//	env         more environment variables, an object of strings
//
// Image, instance type and subnet are labels without effect. The package needs a
// Unix.
//
// Machines end with the process of the cloud. If they are to outlive their server,
// another process runs the cloud and serves it with [Listen] and [Serve]; the
// server connects with [Dial].
//
// A [Cloud] is safe for concurrent use.
package local

import (
	"cmp"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/machines"
	"github.com/nstance-go/nstance/internal/validate"
)

// Options describe the cloud. Only Command is required.
type Options struct {
	// Command is what a machine runs: a program and its arguments.
	Command []string

	// Dir is an existing folder to keep the machines' folders in. Empty: the
	// system's temporary folder.
	Dir string

	// Protocol of the metadata services: aws (the default) or gcp.
	Protocol string

	// Env are further variables for every machine, as NAME=value. Of this
	// process' own environment machines see only PATH, HOME and TMPDIR: the
	// rest may hold secrets.
	Env []string

	// Grace is how long a machine being deleted has between SIGTERM and
	// SIGKILL; 1 second.
	Grace time.Duration

	// Stderr receives standard output and error of machines. One machine writes
	// at a time. Nil discards.
	Stderr io.Writer

	// Log receives machines that end by themselves. Nil discards.
	Log *slog.Logger
}

const (
	defaultGrace = time.Second

	// stoppedTime is how long a reclaimed machine is stopped before it is gone.
	stoppedTime = time.Second
)

// A Cloud runs machines. It is safe for concurrent use.
type Cloud struct {
	o    Options
	path string   // of the program, absolute
	root string   // holds the machines' folders; made by New
	env  []string // of every machine

	machines *machines.Set[*machine]
}

var _ nstance.Provider = (*Cloud)(nil)

// New returns a cloud without machines; close it when done. It fails with
// Invalid when an option is wrong: no such program, a folder that cannot be
// written to, an unknown protocol.
func New(o *Options) (*Cloud, error) {
	c := &Cloud{}
	if o != nil {
		c.o = *o
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			c.env = append(c.env, name+"="+v)
		}
	}
	c.env = append(c.env, c.o.Env...)
	dir := cmp.Or(c.o.Dir, os.TempDir())
	root, err := os.MkdirTemp(dir, "nstance-local-")
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, nstance.FieldError("dir", "name an existing folder that can be written to", "%v", err)
	}
	c.root = root
	c.machines = machines.New[*machine](machines.Options{
		Root: root, Prefix: "local", Zone: zone, Address: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Protocol: c.o.Protocol,
	})
	return c, nil
}

// check validates the options and fills in the defaults.
func (c *Cloud) check() error {
	if !supported {
		return nstance.FieldError("provider", "use Linux, macOS or another Unix", "machines cannot be child processes on this system")
	}
	if len(c.o.Command) == 0 {
		return nstance.FieldError("command", "name the program that a machine runs", "is empty")
	}
	path, err := exec.LookPath(c.o.Command[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nstance.FieldError("command", "name a program that exists and may be run", "%v", err)
	}
	c.path = path
	c.o.Protocol = cmp.Or(c.o.Protocol, imds.AWS)
	if !slices.Contains(protocols, c.o.Protocol) {
		return nstance.FieldError("protocol", "use aws, gcp or azure", "%q is not known", c.o.Protocol)
	}
	for _, v := range c.o.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return nstance.FieldError("env", "write NAME=value", "%.64q is no variable", v)
		}
	}
	if err := validate.Setting("grace", c.o.Grace, time.Hour); err != nil {
		return err
	}
	c.o.Grace = cmp.Or(c.o.Grace, defaultGrace)
	if c.o.Log == nil {
		c.o.Log = slog.New(slog.DiscardHandler)
	}
	if _, file := c.o.Stderr.(*os.File); c.o.Stderr != nil && !file { // the kernel orders writes to a file
		c.o.Stderr = &sharedWriter{w: c.o.Stderr}
	}
	return nil
}

// A sharedWriter lets several machines write to one writer.
type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// Close ends every machine as Delete does, all at once, waits until no process
// is left, and removes the folders that the cloud made. Calls after it are
// answered Unavailable. It may be called more than once.
func (c *Cloud) Close() error {
	c.machines.Close()
	c.machines.Wait()
	return os.RemoveAll(c.root)
}
