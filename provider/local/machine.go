package local

import (
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/provider"
)

// A machine is a folder, a metadata service and a process. One goroutine, run,
// owns it from its creation until all of it has been removed.
type machine struct {
	c           *Cloud
	spec        nstance.MachineSpec
	args        args
	fingerprint string // of spec
	dir         string

	onExit    func()        // called when the process ended by itself; may be nil
	removed   chan struct{} // closed when all of it has been removed
	created   chan struct{} // closed when the creation has succeeded or failed
	createErr error         // set before created is closed

	stop     chan struct{}  // closed by requestStop
	deadline chan time.Time // of the reclaim; zero: withdrawn
	metadata *imds.Server
	http     *http.Server
	url      string

	view     nstance.Machine // guarded by the cloud's lock
	stopping bool            // guarded by the cloud's lock: stop is closed

	mu     sync.Mutex // guards pid: no signal is sent after the process was reaped
	pid    int        // of the process and its group; 0: no process
	exited chan processExit
	tether *os.File // write end of the child's descriptor 3
}

// A processExit is the end of a process, without an error for exit status zero.
type processExit struct{ err error }

func newMachine(c *Cloud, spec nstance.MachineSpec, a args, view nstance.Machine) *machine {
	service := &imds.Options{
		Protocol: c.o.Protocol, Spot: view.Market == nstance.Spot, InstanceID: view.ProviderID, Zone: view.Zone,
	}
	if len(spec.UserData) > 0 {
		service.UserData = spec.UserData
	}
	return &machine{
		c: c, spec: spec, args: a, view: view,
		fingerprint: provider.Fingerprint(spec),
		dir:         filepath.Join(c.root, string(spec.ID)),
		created:     make(chan struct{}),
		removed:     make(chan struct{}),
		stop:        make(chan struct{}),
		deadline:    make(chan time.Time, 1),
		exited:      make(chan processExit, 1),
		metadata:    imds.New(service),
	}
}

// snapshot returns a copy of the machine's view. The caller holds the cloud's lock.
func (m *machine) snapshot() nstance.Machine {
	v := m.view
	v.Addresses = slices.Clone(v.Addresses)
	return v
}

// requestStop requests the deletion. The caller holds the cloud's lock.
func (m *machine) requestStop() {
	if !m.stopping {
		m.stopping = true
		m.view.Status = nstance.StatusDeleting
		close(m.stop)
	}
}

// interrupt announces a reclaim. The caller holds the cloud's lock, also for
// withdraw.
func (m *machine) interrupt(action string, at time.Time) {
	if m.c.o.Protocol == imds.AWS {
		if whole := at.Truncate(time.Second); whole.Before(at) {
			at = whole.Add(time.Second)
		}
	}
	m.metadata.Reclaim(action, at)
	m.schedule(at)
}

func (m *machine) withdraw() {
	m.metadata.Withdraw()
	m.schedule(time.Time{})
}

// schedule replaces the deadline that run has not read yet, if any.
func (m *machine) schedule(at time.Time) {
	select {
	case <-m.deadline:
	default:
	}
	m.deadline <- at
}

// setStatus changes the status, unless the machine is being deleted.
func (m *machine) setStatus(s nstance.MachineStatus) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if !m.stopping {
		m.view.Status = s
	}
}

// create creates the machine's folder, metadata service and process, and starts
// run.
func (m *machine) create() {
	defer close(m.created)
	err := os.Mkdir(m.dir, 0o700)
	if err == nil {
		err = m.serve()
	}
	if err == nil && m.args.BootDelay == 0 {
		err = m.start()
	}
	if err != nil {
		m.createErr = classify(err)
		m.remove()
		return
	}
	go m.run()
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
		ErrorLog:          log.New(io.Discard, "", 0), // a child may exit during a request
	}
	m.url = "http://" + l.Addr().String()
	m.c.wg.Go(func() { _ = m.http.Serve(l) }) // always ErrServerClosed: remove closes it
	return nil
}

// start starts the process, in a group of its own.
func (m *machine) start() error {
	end, tether, err := os.Pipe()
	if err != nil {
		return err
	}
	defer end.Close()
	cmd := exec.Command(m.c.path, m.c.o.Command[1:]...)
	cmd.Args[0] = m.c.o.Command[0]
	cmd.Dir = m.dir
	cmd.Env = m.environment()
	cmd.Stdout, cmd.Stderr = m.c.o.Stderr, m.c.o.Stderr
	cmd.ExtraFiles = []*os.File{end}
	cmd.SysProcAttr = ownGroup()
	cmd.WaitDelay = m.c.o.Grace // for output held open by processes that left the group
	if err := cmd.Start(); err != nil {
		_ = tether.Close()
		return err
	}
	m.tether = tether
	m.setPID(cmd.Process.Pid)
	m.setStatus(nstance.StatusRunning)
	m.c.wg.Go(func() { m.exited <- processExit{m.reap(cmd)} })
	return nil
}

func (m *machine) environment() []string {
	env := append(slices.Clone(m.c.env),
		"PWD="+m.dir,
		EnvDir+"="+m.dir,
		EnvProvider+"="+m.c.o.Protocol,
		EnvMetadataURL+"="+m.url,
	)
	for _, name := range slices.Sorted(maps.Keys(m.args.Env)) {
		env = append(env, name+"="+m.args.Env[name])
	}
	return env
}

// reap waits for the process, kills the rest of its group, and returns its exit
// error. After the last process of a group has been reaped, the group's number may
// be reused, so the group is killed before that if the system permits it.
func (m *machine) reap(cmd *exec.Cmd) error {
	if awaitExit(cmd.Process.Pid) {
		m.signal(syscall.SIGKILL)
		m.setPID(0)
		return cmd.Wait()
	}
	err := cmd.Wait()
	m.signal(syscall.SIGKILL)
	m.setPID(0)
	return err
}

func (m *machine) setPID(pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pid = pid
}

// signal sends s to the machine's process: SIGKILL to all of its group. It
// reports whether there was one.
func (m *machine) signal(s syscall.Signal) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pid == 0 {
		return false
	}
	send(m.pid, s)
	return true
}

// run starts the process after the boot delay and handles its end, a reclaim and
// the deletion.
func (m *machine) run() {
	defer m.remove()
	boot := time.NewTimer(time.Duration(m.args.BootDelay))
	defer boot.Stop()
	if m.args.BootDelay == 0 {
		boot.Stop() // started already
	}
	reclaim := time.NewTimer(0)
	reclaim.Stop()
	defer reclaim.Stop()
	for {
		select {
		case <-m.stop:
			m.terminate()
			return
		case <-boot.C:
			if err := m.start(); err != nil {
				m.handleExit(err)
			}
		case exit := <-m.exited:
			m.handleExit(exit.err)
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

// handleExit handles a process that ended by itself. The machine stays until it is
// deleted.
func (m *machine) handleExit(err error) {
	status := nstance.StatusStopped
	if err != nil {
		status = nstance.StatusFailed
	}
	m.setStatus(status)
	m.c.o.Log.Warn("process of machine ended by itself", "instance_id", m.spec.ID, "status", status, "err", err)
	m.c.mu.Lock()
	destroyed := m.stopping
	m.c.mu.Unlock()
	if m.onExit != nil && !destroyed {
		m.onExit()
	}
}

// terminate sends SIGTERM, and SIGKILL after Options.Grace.
func (m *machine) terminate() {
	if !m.signal(syscall.SIGTERM) {
		return
	}
	grace := time.NewTimer(m.c.o.Grace)
	defer grace.Stop()
	select {
	case <-m.exited:
	case <-grace.C:
		_ = m.signal(syscall.SIGKILL)
		<-m.exited
	}
}

// reclaim kills the process; the machine is stopped for stoppedTime.
func (m *machine) reclaim() {
	if m.signal(syscall.SIGKILL) {
		<-m.exited
	}
	m.setStatus(nstance.StatusStopped)
	t := time.NewTimer(stoppedTime)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.stop:
	}
}

// remove removes the machine's service, folder and entries.
func (m *machine) remove() {
	defer m.c.wg.Done()
	defer close(m.removed)
	if m.tether != nil {
		_ = m.tether.Close()
	}
	if m.http != nil {
		_ = m.http.Close()
	}
	if err := os.RemoveAll(m.dir); err != nil {
		m.c.o.Log.Warn("folder of machine not removed", "instance_id", m.spec.ID, "err", err)
	}
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.requestStop()
	delete(m.c.machines, m.spec.ID)
	delete(m.c.handles, m.view.ProviderID)
}
