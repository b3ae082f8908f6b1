package qemu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	// hibernateLimit is how long writing a machine's memory to its folder may
	// take.
	hibernateLimit = 2 * time.Minute

	// migrationPoll is the time between two looks at a migration.
	migrationPoll = 20 * time.Millisecond
)

// ParkModes implements [nstance.Parker].
func (c *Cloud) ParkModes() []nstance.ParkMode { return parkModes() }

func parkModes() []nstance.ParkMode {
	return []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}
}

// Park implements [nstance.Parker]. A stopped machine has Options.Grace to power
// itself off, and boots from the same disk when it is woken; one without an
// image boots anew. Why a machine could not hibernate is the answer to the next call.
func (c *Cloud) Park(ctx context.Context, want nstance.Machine, mode nstance.ParkMode) error {
	c.machines.Lock()
	defer c.machines.Unlock()
	m, err := c.machines.Find(ctx, want)
	if err != nil {
		return err
	}
	switch {
	case m.spec.Park == "" || m.spec.Park != mode:
		return nstance.FieldError("warm_pool.mode", "park it as it was created to be", "machine %s was created to be parked %q, not %q", want.ID, m.spec.Park, mode)
	case m.parked && m.ctx.Err() == nil:
		return nil
	case m.View.Status != nstance.StatusRunning || len(m.orders) > 0:
		return nstance.Errorf(nstance.Conflict, "machine %s is %s", want.ID, m.View.Status)
	case m.refused != nil: // the next call tries again
		err, m.refused = m.refused, nil
		return err
	}
	m.parked, m.View.Status = true, nstance.StatusStopping
	m.orders <- orderPark
	return nil
}

// Wake implements [nstance.Parker].
func (c *Cloud) Wake(ctx context.Context, want nstance.Machine) error {
	c.machines.Lock()
	defer c.machines.Unlock()
	m, err := c.machines.Find(ctx, want)
	if err != nil {
		return err
	}
	switch {
	case m.View.Status == nstance.StatusRunning || m.View.Status == nstance.StatusPending:
		return nil
	case !m.parked || m.View.Status != nstance.StatusStopped || len(m.orders) > 0:
		return nstance.Errorf(nstance.Conflict, "machine %s is %s", want.ID, m.View.Status)
	}
	m.parked, m.View.Status, m.View.Cause, m.View.CauseText = false, nstance.StatusPending, "", ""
	m.orders <- orderWake
	return nil
}

// obey parks or wakes the machine.
func (m *machine) obey(what order) {
	if what == orderWake {
		_, err := os.Stat(filepath.Join(m.Dir, memoryFile))
		m.boot(err == nil)
		return
	}
	if m.process == nil {
		return // it ended by itself, as its status says
	}
	if m.spec.Park == nstance.ParkHibernated {
		m.hibernate()
		return
	}
	m.process.powerDown(m.ctx, time.Duration(m.c.o.Grace))
	m.process = nil
	m.setStatus(nstance.StatusStopped, nstance.LossRequested)
}

// hibernate writes the machine's memory to its folder and ends QEMU. Where that
// fails, the machine runs on: what was written is removed first, as a machine
// must never run beside its own image.
func (m *machine) hibernate() {
	ctx, cancel := context.WithTimeout(m.ctx, hibernateLimit)
	defer cancel()
	saved, err := m.process.save(ctx)
	if saved {
		m.process.quit(ctx)
		m.process = nil
		m.setStatus(nstance.StatusStopped, nstance.LossRequested)
		return
	}
	if m.ctx.Err() != nil {
		return // being deleted
	}
	m.c.log.Warn("machine cannot hibernate and runs on", "instance_id", m.spec.ID, "err", err)
	refused := nstance.Errorf(nstance.Unavailable, "machine %s cannot hibernate and runs on: %w", m.spec.ID, err)
	err = errors.Join(removeMemory(m.Dir), m.process.monitor.Execute(m.ctx, "cont", nil, nil))
	m.c.machines.Lock()
	defer m.c.machines.Unlock()
	if m.parked, m.refused = false, refused; m.ctx.Err() == nil && err == nil {
		m.View.Status = nstance.StatusRunning
	}
}

// save stops the guest and writes its memory to a file. It reports whether the
// file is complete: from then on this process must not go on.
func (p *process) save(ctx context.Context) (bool, error) {
	if err := p.monitor.Execute(ctx, "stop", nil, nil); err != nil {
		return false, err
	}
	// file: as a target is refused before QEMU 8.2.
	if err := p.monitor.Execute(ctx, "migrate", map[string]string{"uri": "exec:cat > " + memoryFile}, nil); err != nil {
		return false, err
	}
	for {
		var progress struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err := p.monitor.Execute(ctx, "query-migrate", nil, &progress); err != nil {
			return false, err
		}
		switch progress.Status {
		case "completed":
			return true, nil
		case "failed", "cancelled":
			return false, nstance.Errorf(nstance.Internal, "the memory cannot be written: %s %s", progress.Status, progress.Error)
		}
		if !sleep.For(ctx, migrationPoll) {
			return false, context.Cause(ctx)
		}
	}
}

// resume waits until the memory has been read, and has the guest go on. The file
// is removed before: it must not be used again.
func (p *process) resume(ctx context.Context, dir string) error {
	for {
		var state struct {
			Status string `json:"status"`
		}
		if err := p.monitor.Execute(ctx, "query-status", nil, &state); err != nil {
			return err
		}
		if state.Status != "inmigrate" {
			break
		}
		if !sleep.For(ctx, migrationPoll) {
			return context.Cause(ctx)
		}
	}
	if err := removeMemory(dir); err != nil {
		return err
	}
	return p.monitor.Execute(ctx, "cont", nil, nil)
}

func removeMemory(dir string) error {
	err := os.Remove(filepath.Join(dir, memoryFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
