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

	// restoreLimit is how long reading it may take. A disk may read more slowly
	// than it has written.
	restoreLimit = 2 * hibernateLimit

	// cancelLimit is how long QEMU has to end a migration that is given up.
	cancelLimit = 30 * time.Second

	// migrationPoll is the time between two looks at a migration.
	migrationPoll = 20 * time.Millisecond

	// migrationRate is what QEMU may write, in bytes a second: more than any disk
	// takes, in place of QEMU's 128 MiB (migration/options.c).
	migrationRate = 1 << 40
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
// fails, the machine runs on.
func (m *machine) hibernate() {
	failed := m.process.save(m.ctx)
	switch {
	case failed == nil:
		m.process.quit(m.ctx)
		m.process = nil
		m.setStatus(nstance.StatusStopped, nstance.LossRequested)
		return
	case m.ctx.Err() != nil:
		return // being deleted
	}
	m.c.log.Warn("machine cannot hibernate", "instance_id", m.spec.ID, "err", failed)
	stuck := m.process.cancelSave(m.ctx)
	if stuck == nil {
		stuck = m.process.runOn(m.ctx, m.Dir)
	}
	m.hibernated(failed, stuck)
}

// hibernated records that the machine could not hibernate, and why it does not run
// on either, if so.
func (m *machine) hibernated(failed, stuck error) {
	m.c.machines.Lock()
	defer m.c.machines.Unlock()
	if m.parked = false; m.ctx.Err() != nil {
		return
	}
	if stuck == nil {
		m.refused = nstance.Errorf(nstance.Unavailable, "machine %s cannot hibernate and runs on: %w", m.spec.ID, failed)
		m.View.Status = nstance.StatusRunning
		return
	}
	m.c.log.Warn("machine neither hibernates nor runs on", "instance_id", m.spec.ID, "err", stuck)
	m.View.Status, m.View.CauseText = nstance.StatusUnknown, "neither hibernates nor runs on: "+stuck.Error()
}

// save stops the guest and writes its memory to a file. Nil means that the file is
// complete: from then on this process must not go on.
func (p *process) save(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hibernateLimit)
	defer cancel()
	for _, c := range []struct {
		name string
		args any
	}{
		{"stop", nil},
		{"migrate-set-parameters", map[string]int64{"max-bandwidth": migrationRate}},
		{"migrate", map[string]string{"uri": "exec:cat > " + memoryFile}}, // file: as a target is refused before QEMU 8.2
	} {
		if err := p.monitor.Execute(ctx, c.name, c.args, nil); err != nil {
			return err
		}
	}
	end, err := p.migrationEnd(ctx)
	if err == nil && end.Status != completed {
		err = nstance.Errorf(nstance.Internal, "the memory cannot be written: %s %s", end.Status, end.Error)
	}
	return err
}

// cancelSave ends the migration that save may have begun, also one that completes
// just now: the guest may go on after either. With an error the migration may go on,
// and stop the guest later.
func (p *process) cancelSave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cancelLimit)
	defer cancel()
	if err := p.monitor.Execute(ctx, "migrate_cancel", nil, nil); err != nil {
		return err
	}
	_, err := p.migrationEnd(ctx)
	return err
}

// completed is the status of a migration that has succeeded.
const completed = "completed"

// A migration is what QEMU says of the latest one.
type migration struct {
	Status string `json:"status"` // empty: there was none
	Error  string `json:"error-desc"`
}

// migrationEnd waits until the latest migration has ended.
func (p *process) migrationEnd(ctx context.Context) (migration, error) {
	for {
		var now migration
		if err := p.monitor.Execute(ctx, "query-migrate", nil, &now); err != nil {
			return migration{}, err
		}
		switch now.Status {
		case completed, "failed", "cancelled", "":
			return now, nil
		}
		if !sleep.For(ctx, migrationPoll) {
			return migration{}, context.Cause(ctx)
		}
	}
}

// runOn has the guest go on that save has stopped. What was written is removed first:
// a machine must never run beside its own image.
func (p *process) runOn(ctx context.Context, dir string) error {
	if err := removeMemory(dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, monitorLimit)
	defer cancel()
	return p.monitor.Execute(ctx, "cont", nil, nil)
}

// resume waits until the memory has been read, and has the guest go on. The file
// is removed before: it must not be used again.
func (p *process) resume(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, restoreLimit)
	defer cancel()
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
	return p.runOn(ctx, dir)
}

func removeMemory(dir string) error {
	err := os.Remove(filepath.Join(dir, memoryFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
