package local

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
)

var _ nstance.Parker = (*Cloud)(nil)

// ParkModes implements [nstance.Parker].
func (c *Cloud) ParkModes() []nstance.ParkMode { return parkModes() }

// Park implements [nstance.Parker]. A stopped machine has no process: it ends as in a
// deletion. Its folder and metadata service stay. All processes in the group of a
// hibernated machine get SIGSTOP. If the process of the cloud is killed, the kernel
// sends them SIGHUP and SIGCONT, since their group is orphaned then (POSIX, _exit),
// unless they are adopted by a process of the same session.
func (c *Cloud) Park(ctx context.Context, want nstance.Machine, mode nstance.ParkMode) error {
	c.machines.Lock()
	defer c.machines.Unlock()
	m, err := c.machines.Find(ctx, want)
	if err != nil {
		return err
	}
	switch status := m.View.Status; {
	case m.parkMode == "" || m.parkMode != mode:
		return nstance.FieldError("warm_pool.mode", "create the machine with this mode", "machine %s was created for %q, not for %q", want.ID, m.parkMode, mode)
	case status == nstance.StatusStopping, status == nstance.StatusStopped && m.parked:
		return nil
	case status != nstance.StatusRunning:
		return nstance.Errorf(nstance.Conflict, "machine %s is %s and cannot be parked", want.ID, status)
	}
	m.View.Status = nstance.StatusStopping
	m.orders <- orderPark
	return nil
}

// Wake implements [nstance.Parker]. After the machine's wake delay, a stopped machine
// runs its command again in its folder, and a hibernated one goes on.
func (c *Cloud) Wake(ctx context.Context, want nstance.Machine) error {
	c.machines.Lock()
	defer c.machines.Unlock()
	m, err := c.machines.Find(ctx, want)
	if err != nil {
		return err
	}
	switch status := m.View.Status; {
	case status == nstance.StatusPending || status == nstance.StatusRunning:
		return nil
	case status != nstance.StatusStopped || !m.parked:
		return nstance.Errorf(nstance.Conflict, "machine %s is %s and cannot be woken", want.ID, status)
	}
	m.View.Status, m.parked = nstance.StatusPending, false
	m.wokenAt, m.wakeTook = time.Now(), 0
	m.orders <- orderWake
	return nil
}

// WakeTime returns how long machine id took to wake the last time, from the call of
// Wake until its process ran. Fails with NotFound when there is no such machine, and
// with Conflict when it was never woken or does not run yet.
func (c *Cloud) WakeTime(id nstance.InstanceID) (time.Duration, error) {
	c.machines.Lock()
	defer c.machines.Unlock()
	m, ok := c.machines.ByID(id)
	switch {
	case !ok:
		return 0, nstance.Errorf(nstance.NotFound, "no machine %s", id)
	case m.wakeTook == 0:
		return 0, nstance.Errorf(nstance.Conflict, "machine %s has not been woken", id)
	}
	return m.wakeTook, nil
}

// park stops or hibernates the machine. One whose process ended before its turn came
// is stopped as asked; there is nothing to hibernate.
func (m *machine) park() {
	switch {
	case m.parkMode != nstance.ParkHibernated:
		m.terminate()
		m.closeTether()
	case m.alive:
		m.suspended = true
		m.signal(sigSuspend)
	default:
		return
	}
	m.c.machines.Lock()
	defer m.c.machines.Unlock()
	if !m.stopping {
		m.View.Status, m.parked = nstance.StatusStopped, true
	}
}
