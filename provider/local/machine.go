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

// A machine is a folder, a metadata service and a process. One goroutine, live,
// owns it from when it is made until nothing of it is left.
type machine struct {
	c     *Cloud
	spec  nstance.MachineSpec
	args  args
	print string // of spec
	dir   string

	onExit  func()        // is called when it ended by itself; nil: nothing
	gone    chan struct{} // closed when nothing of it is left
	made    chan struct{} // closed when Create's part is over
	failure error         // why there is no machine; to be read once made is closed

	stop     chan struct{}  // closed by halt
	deadline chan time.Time // when the machine will be taken; zero: not any more
	metadata *imds.Server
	http     *http.Server
	url      string

	view    nstance.Machine // guarded by the cloud's lock
	stopped bool            // likewise: stop is closed

	mu     sync.Mutex  // guards pid, which a signal must not outlive
	pid    int         // of the process, also its group; 0 while there is none
	exited chan ending // gets the process' end, once
	cord   *os.File    // writing end of the child's descriptor 3
}

// An ending is how a process ended; without an error, well.
type ending struct{ err error }

func newMachine(c *Cloud, spec nstance.MachineSpec, a args, view nstance.Machine) *machine {
	service := &imds.Options{
		Protocol: c.o.Protocol, Spot: view.Market == nstance.Spot, InstanceID: view.ProviderID, Zone: view.Zone,
	}
	if len(spec.UserData) > 0 {
		service.UserData = spec.UserData
	}
	return &machine{
		c: c, spec: spec, args: a, view: view,
		print:    provider.Fingerprint(spec),
		dir:      filepath.Join(c.root, string(spec.ID)),
		made:     make(chan struct{}),
		gone:     make(chan struct{}),
		stop:     make(chan struct{}),
		deadline: make(chan time.Time, 1),
		exited:   make(chan ending, 1),
		metadata: imds.New(service),
	}
}

// snapshot needs the cloud's lock.
func (m *machine) snapshot() nstance.Machine {
	v := m.view
	v.Addresses = slices.Clone(v.Addresses)
	return v
}

// halt has the machine deleted. It needs the cloud's lock.
func (m *machine) halt() {
	if !m.stopped {
		m.stopped = true
		m.view.Status = nstance.StatusDeleting
		close(m.stop)
	}
}

// interrupt and withdraw need the cloud's lock.
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

// schedule replaces the deadline that live has not read yet, if any.
func (m *machine) schedule(at time.Time) {
	select {
	case <-m.deadline:
	default:
	}
	m.deadline <- at
}

// set changes the status, unless the machine is being deleted.
func (m *machine) set(s nstance.MachineStatus) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if !m.stopped {
		m.view.Status = s
	}
}

// make gives the machine what it consists of and leaves it to live.
func (m *machine) make() {
	defer close(m.made)
	err := os.Mkdir(m.dir, 0o700)
	if err == nil {
		err = m.serve()
	}
	if err == nil && m.args.BootDelay == 0 {
		err = m.start()
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
		ErrorLog:          log.New(io.Discard, "", 0), // a child that dies in the middle of a request is no news
	}
	m.url = "http://" + l.Addr().String()
	m.c.wg.Go(func() { _ = m.http.Serve(l) }) // always ErrServerClosed: vanish closes it
	return nil
}

// start starts the process, in a group of its own.
func (m *machine) start() error {
	end, cord, err := os.Pipe()
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
	cmd.WaitDelay = m.c.o.Grace // for output held open by what left the group
	if err := cmd.Start(); err != nil {
		_ = cord.Close()
		return err
	}
	m.cord = cord
	m.setPID(cmd.Process.Pid)
	m.set(nstance.StatusRunning)
	m.c.wg.Go(func() { m.exited <- ending{m.reap(cmd)} })
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

// reap waits for the process, kills what it leaves behind in its group, and
// returns how it ended. The group's number is free for others as soon as its
// last process has been waited for, so where the system permits it the group is
// killed before that.
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

// live sees the machine through its life.
func (m *machine) live() {
	defer m.vanish()
	boot := time.NewTimer(time.Duration(m.args.BootDelay))
	defer boot.Stop()
	if m.args.BootDelay == 0 {
		boot.Stop() // started already
	}
	take := time.NewTimer(0)
	take.Stop()
	defer take.Stop()
	for {
		select {
		case <-m.stop:
			m.terminate()
			return
		case <-boot.C:
			if err := m.start(); err != nil {
				m.ended(err)
			}
		case end := <-m.exited:
			m.ended(end.err)
		case at := <-m.deadline:
			take.Stop()
			if !at.IsZero() {
				take.Reset(time.Until(at))
			}
		case <-take.C:
			m.take()
			return
		}
	}
}

// ended takes note that the machine ended by itself. It stays until deleted.
func (m *machine) ended(err error) {
	status := nstance.StatusStopped
	if err != nil {
		status = nstance.StatusFailed
	}
	m.set(status)
	m.c.o.Log.Warn("machine ended by itself", "instance_id", m.spec.ID, "status", status, "err", err)
	m.c.mu.Lock()
	destroyed := m.stopped
	m.c.mu.Unlock()
	if m.onExit != nil && !destroyed {
		m.onExit()
	}
}

// terminate ends the process as politely as Options.Grace permits.
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

// take takes the machine back: its process ends where it stands, and for a
// moment the machine is shown as stopped.
func (m *machine) take() {
	if m.signal(syscall.SIGKILL) {
		<-m.exited
	}
	m.set(nstance.StatusStopped)
	t := time.NewTimer(linger)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.stop:
	}
}

// vanish removes what is left of the machine.
func (m *machine) vanish() {
	defer m.c.wg.Done()
	defer close(m.gone)
	if m.cord != nil {
		_ = m.cord.Close()
	}
	if m.http != nil {
		_ = m.http.Close()
	}
	if err := os.RemoveAll(m.dir); err != nil {
		m.c.o.Log.Warn("folder of a machine stays behind", "instance_id", m.spec.ID, "err", err)
	}
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.halt()
	delete(m.c.machines, m.spec.ID)
	delete(m.c.handles, m.view.ProviderID)
}
