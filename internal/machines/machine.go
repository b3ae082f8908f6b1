package machines

import (
	"errors"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
)

// A Part is what the machines of all such providers have: a folder, a metadata service
// and a view. A provider's machine embeds one.
type Part struct {
	View     nstance.Machine // as the provider returns it; guarded by the set's lock
	Dir      string          // folder of the machine
	Metadata *imds.Server
	Address  string         // of the metadata service, set by Begin: host:port
	Reclaims chan time.Time // when the machine is reclaimed; zero: withdrawn

	fingerprint string // of its spec
	http        *http.Server
	running     *sync.WaitGroup // of the set
	created     chan struct{}   // closed when the creation has succeeded or failed
	createErr   error           // set before created is closed
}

// Base returns the part itself.
func (p *Part) Base() *Part { return p }

// Begin makes the machine's folder and starts its metadata service.
func (p *Part) Begin() error {
	if err := os.Mkdir(p.Dir, 0o700); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.Address = l.Addr().String()
	p.http = &http.Server{
		Handler:           p.Metadata,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // a machine may end during a request
	}
	p.running.Go(func() { _ = p.http.Serve(l) }) // always ErrServerClosed: Set.Remove closes it
	return nil
}

// schedule replaces a time that was not read yet, if any. The caller holds the set's
// lock.
func (p *Part) schedule(at time.Time) {
	select {
	case <-p.Reclaims:
	default:
	}
	p.Reclaims <- at
}

// snapshot returns a copy of the view. The caller holds the set's lock.
func (p *Part) snapshot() nstance.Machine {
	v := p.View
	v.Addresses = slices.Clone(v.Addresses)
	return v
}

// ClassifyCreate classifies an error of creating a machine on this host.
func ClassifyCreate(err error) error {
	for _, full := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC} {
		if errors.Is(err, full) {
			return nstance.Errorf(nstance.Quota, "this host has no resources for another machine: %w", err)
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nstance.Errorf(nstance.Invalid, "the machine cannot be created: %w", err)
	}
	return nstance.Errorf(nstance.Internal, "the machine cannot be created: %w", err)
}
