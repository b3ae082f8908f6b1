package qemu

import (
	"cmp"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider"
)

// reclaimedFor is how long a reclaimed machine is shown as stopped before it is
// gone.
const reclaimedFor = time.Second

// A machine is a folder, a metadata service and a QEMU process. One goroutine,
// live, owns it from when it is made until nothing of it is left.
type machine struct {
	c       *Cloud
	spec    nstance.MachineSpec
	shape   shape
	print   string // of spec
	dir     string
	console *console

	made    chan struct{} // closed when Create's part is over
	failure error         // why there is no machine; to be read once made is closed

	ctx      context.Context // ends when the machine is to be deleted
	stop     context.CancelFunc
	deadline chan time.Time   // when the machine is reclaimed; zero: not any more
	orders   chan order       // what Park and Wake ask for
	kills    chan chan<- bool // of Kill; gets whether there was a process
	metadata *imds.Server
	http     *http.Server
	address  string // where the metadata service listens

	process *process // of live only; nil while there is none

	view   nstance.Machine // guarded by the cloud's lock, as all below
	parked bool            // stopped by Park, or on its way
}

// An order is what Park or Wake asks for.
type order string

const (
	orderPark order = "park"
	orderWake order = "wake"
)

func newMachine(c *Cloud, spec nstance.MachineSpec, s shape, view nstance.Machine) *machine {
	service := &imds.Options{
		Protocol: c.o.Protocol, Spot: view.Market == nstance.Spot, InstanceID: view.ProviderID, Zone: view.Zone,
	}
	if len(spec.UserData) > 0 {
		service.UserData = spec.UserData
	}
	m := &machine{
		c: c, spec: spec, shape: s, view: view,
		print:    provider.Fingerprint(spec),
		dir:      filepath.Join(c.root, string(spec.ID)),
		made:     make(chan struct{}),
		deadline: make(chan time.Time, 1),
		orders:   make(chan order, 1),
		kills:    make(chan chan<- bool),
		metadata: imds.New(service),
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.console = newConsole(filepath.Join(m.dir, consoleFile), c.o.Console)
	return m
}

// snapshot needs the cloud's lock.
func (m *machine) snapshot() nstance.Machine {
	v := m.view
	v.Addresses = slices.Clone(v.Addresses)
	return v
}

// halt has the machine deleted. It needs the cloud's lock.
func (m *machine) halt() {
	if m.ctx.Err() == nil {
		m.view.Status, m.view.Cause = nstance.StatusDeleting, cmp.Or(m.view.Cause, nstance.LossRequested)
		m.stop()
	}
}

// setStatus changes status and cause, unless the machine is being deleted.
func (m *machine) setStatus(s nstance.MachineStatus, cause nstance.LossCause) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if m.ctx.Err() == nil {
		m.view.Status, m.view.Cause = s, cause
	}
}

// make gives the machine what it consists of and leaves it to live.
func (m *machine) make() {
	defer close(m.made)
	err := os.Mkdir(m.dir, 0o700)
	if err == nil {
		err = m.serve()
	}
	if err == nil {
		err = m.makeDisks(m.ctx)
	}
	if err != nil {
		m.failure = classify(err)
		m.vanish()
		return
	}
	go m.live()
}

// serve starts the metadata service.
func (m *machine) serve() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	m.http = &http.Server{
		Handler:           m.metadata,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // a machine that ends in the middle of a request is expected
	}
	m.address = l.Addr().String()
	m.c.wg.Go(func() { _ = m.http.Serve(l) }) // always ErrServerClosed: vanish closes it
	return nil
}

// live sees the machine through its life. The thread stays with it, and ends with
// it: the kernel ends a machine's process together with the thread that started
// it (PR_SET_PDEATHSIG, prctl(2)).
func (m *machine) live() {
	defer m.vanish()
	runtime.LockOSThread() // never unlocked
	m.boot(false)
	reclaim := time.NewTimer(0)
	reclaim.Stop()
	defer reclaim.Stop()
	for {
		select {
		case <-m.ctx.Done():
			m.powerOff()
			return
		case <-m.process.ended():
			m.exited()
		case what := <-m.orders:
			m.obey(what)
		case killed := <-m.kills:
			killed <- m.process.kill()
		case at := <-m.deadline:
			reclaim.Stop()
			if !at.IsZero() {
				reclaim.Reset(time.Until(at))
			}
		case <-reclaim.C:
			m.reclaim()
			return
		}
	}
}

// boot starts QEMU, and with restore resumes the machine where it hibernated.
func (m *machine) boot(restore bool) {
	err := m.start(restore)
	if err == nil {
		m.setStatus(nstance.StatusRunning, "")
		return
	}
	if m.ctx.Err() != nil {
		return // being deleted
	}
	m.process.kill()
	m.process.wait()
	m.process = nil
	cause := startCause(err)
	m.setStatus(nstance.StatusFailed, cause)
	m.c.log.Warn("machine cannot start", "instance_id", m.spec.ID, "cause", cause, "err", err)
}

// exited records that the machine ended by itself. It stays until deleted.
func (m *machine) exited() {
	status, cause := m.process.outcome()
	m.c.log.Warn("machine ended by itself", "instance_id", m.spec.ID, "status", status, "cause", cause,
		"reason", m.process.reason(), "err", m.process.err)
	m.process = nil
	m.setStatus(status, cause)
}

// powerOff has the machine power itself off, and ends it after Options.Grace.
func (m *machine) powerOff() {
	if m.process == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(m.c.o.Grace)+quitLimit)
	defer cancel()
	m.process.powerDown(ctx, time.Duration(m.c.o.Grace))
	m.process = nil
}

// reclaim ends the machine where it stands, and shows it as stopped for a
// moment.
func (m *machine) reclaim() {
	m.process.kill()
	m.process.wait()
	m.process = nil
	m.setStatus(nstance.StatusStopped, nstance.LossReclaimed)
	sleep.For(m.ctx, reclaimedFor)
}

// vanish removes what is left of the machine.
func (m *machine) vanish() {
	defer m.c.wg.Done()
	if m.http != nil {
		_ = m.http.Close()
	}
	m.console.close()
	if err := os.RemoveAll(m.dir); err != nil {
		m.c.log.Warn("folder of a machine stays behind", "instance_id", m.spec.ID, "err", err)
	}
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.halt()
	delete(m.c.machines, m.spec.ID)
	delete(m.c.handles, m.view.ProviderID)
}
