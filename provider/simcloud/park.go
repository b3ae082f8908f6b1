package simcloud

import (
	"context"

	"github.com/nstance-go/nstance"
)

var _ nstance.Parker = (*Cloud)(nil)

func parkModes() []nstance.ParkMode {
	return []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}
}

// ParkModes implements [nstance.Parker].
func (*Cloud) ParkModes() []nstance.ParkMode { return parkModes() }

// Park implements [nstance.Parker]. A parked machine keeps its address and no capacity.
func (c *Cloud) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	return c.call(ctx, OpPark, m.ID, func() error { return c.fleet.park(m, mode) })
}

// Wake implements [nstance.Parker]. A machine that fails to start, as [Cloud.FailStarts]
// says, is accepted and ends.
func (c *Cloud) Wake(ctx context.Context, m nstance.Machine) error {
	return c.call(ctx, OpWake, m.ID, func() error { return c.fleet.wakeUp(m) })
}

// park needs the lock.
func (f *fleet) park(want nstance.Machine, mode nstance.ParkMode) error {
	m, err := f.owned(want)
	if err != nil {
		return err
	}
	switch status := m.view.Status; {
	case m.spec.Park != mode || mode == "":
		return nstance.FieldError("warm_pool.mode", "create the machine with this mode", "machine %s was created for %q, not for %q", want.ID, m.spec.Park, mode)
	case status == nstance.StatusStopping || status == nstance.StatusStopped:
		return nil
	case status != nstance.StatusRunning:
		return nstance.Errorf(nstance.Conflict, "machine %s is %s and cannot be stopped", want.ID, status)
	}
	m.halt(nstance.StatusStopping)
	m.freeCapacity()
	f.later(f.sample(f.o.Park), func() {
		if !m.gone && m.view.Status == nstance.StatusStopping {
			m.view.Status = nstance.StatusStopped
		}
	})
	return nil
}

// wakeUp needs the lock.
func (f *fleet) wakeUp(want nstance.Machine) error {
	m, err := f.owned(want)
	if err != nil {
		return err
	}
	switch m.view.Status {
	case nstance.StatusPending, nstance.StatusRunning:
		return nil
	case nstance.StatusStopped:
	case nstance.StatusUnknown, nstance.StatusStopping, nstance.StatusDeleting, nstance.StatusFailed:
		return nstance.Errorf(nstance.Conflict, "machine %s is %s and cannot be started", want.ID, m.view.Status)
	}
	if err := f.capacity.check(m.pool); err != nil {
		return err
	}
	m.capacityFreed = false
	f.capacity.counts[m.pool]++
	m.view.Status, m.failsWith = nstance.StatusPending, f.capacity.startFailure(m.pool)
	f.after(f.sample(f.o.Wake), &event{do: m.start})
	return nil
}
