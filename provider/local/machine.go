package local

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/machines"
)

// A machine is a folder, a metadata service and a process. One goroutine, run,
// owns it from its creation until all of it has been removed.
type machine struct {
	*machines.Part
	c        *Cloud
	args     args
	parkMode nstance.ParkMode // empty: it cannot be parked

	onExit   func()        // called when the process ended by itself; may be nil
	removed  chan struct{} // closed when all of it has been removed
	stop     chan struct{} // closed by Stop
	stopping bool          // guarded by the set's lock: stop is closed
	orders   chan order    // sent by Park and Wake; has room for the one that the status permits
	parked   bool          // guarded by the set's lock: a stopped machine can be woken
	wokenAt  time.Time     // guarded by the set's lock: when Wake was called; zero: never
	wakeTook time.Duration // guarded by the set's lock: from then until it ran; 0: it has not run yet

	alive     bool // of run: the process runs or is suspended
	suspended bool // of run: the process has got sigSuspend

	mu     sync.Mutex // guards pid: no signal is sent after the process was reaped
	pid    int        // of the process and its group; 0: no process
	exited chan processExit
	tether *os.File // write end of the child's descriptor 3
}

// An order is what Park or Wake asks for.
type order string

const (
	orderPark order = "park"
	orderWake order = "wake"
)

// A processExit is the end of a process, without an error for exit status zero.
type processExit struct{ err error }

func newMachine(c *Cloud, p *machines.Part, a args) *machine {
	return &machine{
		Part: p, c: c, args: a, orders: make(chan order, 1),
		removed: make(chan struct{}), stop: make(chan struct{}), exited: make(chan processExit, 1),
	}
}

// Stop requests the deletion. The caller holds the set's lock.
func (m *machine) Stop() {
	if !m.stopping {
		m.stopping = true
		m.View.Status = nstance.StatusDeleting
		close(m.stop)
	}
}

// setStatus changes the status, unless the machine is being deleted.
func (m *machine) setStatus(s nstance.MachineStatus) {
	m.c.machines.Lock()
	defer m.c.machines.Unlock()
	if !m.stopping {
		m.View.Status = s
	}
}

// Create creates the machine's folder, metadata service and process, and starts
// run.
func (m *machine) Create() error {
	err := m.Begin()
	if err == nil && m.args.BootDelay == 0 {
		err = m.start()
	}
	if err != nil {
		m.remove()
		return machines.ClassifyCreate(err)
	}
	go m.run()
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
	cmd.Dir = m.Dir
	cmd.Env = m.environment()
	cmd.Stdout, cmd.Stderr = m.c.o.Stderr, m.c.o.Stderr
	cmd.ExtraFiles = []*os.File{end}
	cmd.SysProcAttr = ownGroup()
	cmd.WaitDelay = m.c.o.Grace // for output held open by processes that left the group
	if err := cmd.Start(); err != nil {
		_ = tether.Close()
		return err
	}
	m.tether, m.alive = tether, true
	m.setPID(cmd.Process.Pid)
	m.setStatus(nstance.StatusRunning)
	m.c.machines.Go(func() { m.exited <- processExit{m.reap(cmd)} })
	return nil
}

func (m *machine) environment() []string {
	env := append(slices.Clone(m.c.env),
		"PWD="+m.Dir,
		EnvDir+"="+m.Dir,
		EnvProvider+"="+m.c.o.Protocol,
		EnvMetadataURL+"=http://"+m.Address,
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

// signal sends s to the machine's process, and to all of its group unless s is
// SIGTERM. It reports whether there was one.
func (m *machine) signal(s syscall.Signal) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pid == 0 {
		return false
	}
	send(m.pid, s)
	return true
}

// run starts the process after the boot delay and handles its end, parking, a
// reclaim and the deletion.
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
			m.boot()
		case what := <-m.orders:
			if what == orderWake {
				boot.Reset(time.Duration(m.args.WakeDelay))
			} else {
				m.park()
			}
		case exit := <-m.exited:
			m.alive, m.suspended = false, false
			m.handleExit(exit.err)
		case at := <-m.Reclaims:
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

// boot starts a pending machine, or continues it where it was suspended.
func (m *machine) boot() {
	m.c.machines.Lock()
	pending := m.View.Status == nstance.StatusPending
	m.c.machines.Unlock()
	switch {
	case !pending: // it has ended
	case m.suspended:
		m.suspended = false
		m.signal(sigContinue)
		m.setStatus(nstance.StatusRunning)
		m.recordWake()
	default:
		if err := m.start(); err != nil {
			m.handleExit(err)
			return
		}
		m.recordWake()
	}
}

// recordWake records how long waking took, if the machine was woken.
func (m *machine) recordWake() {
	m.c.machines.Lock()
	defer m.c.machines.Unlock()
	if !m.wokenAt.IsZero() {
		m.wakeTook = time.Since(m.wokenAt)
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
	m.c.o.Log.Warn("process of machine ended by itself", "instance_id", m.View.ID, "status", status, "err", err)
	m.c.machines.Lock()
	destroyed := m.stopping
	m.c.machines.Unlock()
	if m.onExit != nil && !destroyed {
		m.onExit()
	}
}

// terminate sends SIGTERM, and SIGKILL after Options.Grace, at once to a suspended
// process. It returns when the process has ended.
func (m *machine) terminate() {
	if !m.alive {
		return
	}
	wait := m.c.o.Grace
	if m.suspended {
		wait = 0
	}
	m.signal(syscall.SIGTERM)
	grace := time.NewTimer(wait)
	defer grace.Stop()
	select {
	case <-m.exited:
	case <-grace.C:
		m.signal(syscall.SIGKILL)
		<-m.exited
	}
	m.alive, m.suspended = false, false
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
	defer close(m.removed)
	m.closeTether()
	if err := m.c.machines.Remove(m); err != nil {
		m.c.o.Log.Warn("folder of machine not removed", "instance_id", m.View.ID, "err", err)
	}
}

func (m *machine) closeTether() {
	if m.tether != nil {
		_ = m.tether.Close()
		m.tether = nil
	}
}
