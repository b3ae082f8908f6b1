package qemu

import (
	"cmp"
	"context"
	"path/filepath"
	"runtime"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/machines"
	"github.com/nstance-go/nstance/internal/sleep"
)

// reclaimedFor is how long a reclaimed machine is shown as stopped before it is
// gone.
const reclaimedFor = time.Second

// A machine is a folder, a metadata service and a QEMU process. One goroutine,
// live, owns it from when it is made until nothing of it is left.
type machine struct {
	*machines.Part
	c       *Cloud
	spec    nstance.MachineSpec
	shape   shape
	console *console

	ctx    context.Context // ends when the machine is to be deleted
	stop   context.CancelFunc
	orders chan order       // what Park and Wake ask for
	kills  chan chan<- bool // of Kill; gets whether there was a process

	process *process // of live only; nil while there is none
	parked  bool     // guarded by the set's lock: stopped by Park, or on its way
	refused error    // likewise: why it could not hibernate; the answer to the next Park
}

// An order is what Park or Wake asks for.
type order string

const (
	orderPark order = "park"
	orderWake order = "wake"
)

func newMachine(c *Cloud, p *machines.Part, spec nstance.MachineSpec, s shape) *machine {
	m := &machine{Part: p, c: c, spec: spec, shape: s, orders: make(chan order, 1), kills: make(chan chan<- bool)}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.console = newConsole(filepath.Join(m.Dir, consoleFile), c.copies)
	return m
}

// Stop requests the deletion. The caller holds the set's lock.
func (m *machine) Stop() {
	if m.ctx.Err() == nil {
		m.View.Status, m.View.Cause = nstance.StatusDeleting, cmp.Or(m.View.Cause, nstance.LossRequested)
		m.stop()
	}
}

// setStatus changes status and cause, unless the machine is being deleted.
func (m *machine) setStatus(s nstance.MachineStatus, cause nstance.LossCause) {
	m.c.machines.Lock()
	defer m.c.machines.Unlock()
	if m.ctx.Err() == nil {
		m.View.Status, m.View.Cause, m.View.CauseText = s, cause, ""
	}
}

// fail records that the machine cannot start.
func (m *machine) fail(err error) {
	cause := startCause(err)
	m.c.log.Warn("machine cannot start", "instance_id", m.spec.ID, "cause", cause, "err", err)
	m.c.machines.Lock()
	defer m.c.machines.Unlock()
	if m.ctx.Err() == nil {
		m.View.Status, m.View.Cause, m.View.CauseText = nstance.StatusFailed, cause, err.Error()
	}
}

// Create creates the machine's folder, metadata service and disks, and starts live.
func (m *machine) Create() error {
	err := m.Begin()
	if err == nil {
		err = m.makeDisks(m.ctx)
	}
	if err != nil {
		m.vanish()
		return classify(err)
	}
	go m.live()
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
	m.fail(err)
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
	m.console.close()
	if err := m.c.machines.Remove(m); err != nil {
		m.c.log.Warn("folder of a machine stays behind", "instance_id", m.spec.ID, "err", err)
	}
}
