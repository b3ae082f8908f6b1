package providertest

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

var parkPromises = []abilityPromise{
	{"a parked machine is stopped, and runs again when it is woken", checkParked},
	{"parking and waking again change nothing", checkParkedTwice},
	{"a parked machine can be deleted", checkParkedDelete},
	{"another mode than that of its spec is refused", checkParkMode},
	{"a machine of another owner is left alone", checkParkOwner},
	{"a machine that is gone is not found", checkParkGone},
	{"a context that has ended is no answer", checkParkCancelled},
}

// createParkable creates a machine that can be parked, and waits until it runs.
func (b *fixture) createParkable(mode nstance.ParkMode) nstance.Machine {
	b.Helper()
	s := b.spec()
	s.Park = mode
	b.create(s)
	b.waitKnown(s.ID)
	return b.waitStatus(s.ID, nstance.StatusRunning)
}

// waitStatus waits until the provider says that of a machine.
func (b *fixture) waitStatus(id nstance.InstanceID, want nstance.MachineStatus) (m nstance.Machine) {
	b.Helper()
	b.eventually("Get never answered with status "+string(want), func(ctx context.Context) (bool, error) {
		var err error
		m, err = b.Provider.Get(ctx, id)
		return err == nil && m.Status == want, err
	})
	return m
}

// park and wake repeat a call while the cloud is busy with the machine.
func (b *fixture) park(can provider.Abilities, m nstance.Machine, mode nstance.ParkMode) {
	b.Helper()
	b.accepted("Park was never accepted", func(ctx context.Context) error { return can.Parking.Park(ctx, m, mode) })
}

func (b *fixture) wake(can provider.Abilities, m nstance.Machine) {
	b.Helper()
	b.accepted("Wake was never accepted", func(ctx context.Context) error { return can.Parking.Wake(ctx, m) })
}

func (b *fixture) accepted(what string, call func(context.Context) error) {
	b.Helper()
	b.eventually(what, func(ctx context.Context) (bool, error) {
		err := call(ctx)
		if nstance.CodeOf(err) == nstance.Unavailable {
			return false, nil
		}
		return err == nil, err
	})
}

func checkParked(b *fixture, can provider.Abilities) {
	for _, mode := range b.Park {
		require.Contains(b, can.Parking.ParkModes(), mode)
		m := b.createParkable(mode)
		b.park(can, m, mode)
		parked := b.waitStatus(m.ID, nstance.StatusStopped)
		require.Equal(b, m.ProviderID, parked.ProviderID, "it is another machine")
		require.Equal(b, m.Owner, parked.Owner)
		b.wake(can, parked)
		woken := b.waitStatus(m.ID, nstance.StatusRunning)
		require.Equal(b, m.ProviderID, woken.ProviderID, "it is another machine")
	}
}

func checkParkedTwice(b *fixture, can provider.Abilities) {
	m := b.createParkable(b.Park[0])
	b.wake(can, m) // it runs
	b.park(can, m, b.Park[0])
	require.NoError(b, can.Parking.Park(b.Context(), m, b.Park[0]), "it is being parked")
	b.waitStatus(m.ID, nstance.StatusStopped)
	b.park(can, m, b.Park[0]) // it is parked
	b.waitStatus(m.ID, nstance.StatusStopped)
}

func checkParkedDelete(b *fixture, can provider.Abilities) {
	m := b.createParkable(b.Park[0])
	b.park(can, m, b.Park[0])
	b.deleteUntilNotFound(b.waitStatus(m.ID, nstance.StatusStopped))
}

func checkParkMode(b *fixture, can provider.Abilities) {
	m := b.createParkable(b.Park[0])
	b.requireCode(nstance.Invalid, can.Parking.Park(b.Context(), m, "frozen"))
	b.waitStatus(m.ID, nstance.StatusRunning)
}

func checkParkOwner(b *fixture, can provider.Abilities) {
	m := b.createParkable(b.Park[0])
	for name, owner := range otherOwners(m.Owner) {
		wrong := m
		wrong.Owner = owner
		err := can.Parking.Park(b.Context(), wrong, b.Park[0])
		require.Error(b, err, "other %s", name)
		b.requireCode(nstance.Conflict, err)
		b.requireCode(nstance.Conflict, can.Parking.Wake(b.Context(), wrong))
	}
	b.waitStatus(m.ID, nstance.StatusRunning)
}

func checkParkGone(b *fixture, can provider.Abilities) {
	m := b.createParkable(b.Park[0])
	b.deleteUntilNotFound(m)
	b.requireCode(nstance.NotFound, can.Parking.Park(b.Context(), m, b.Park[0]))
	b.requireCode(nstance.NotFound, can.Parking.Wake(b.Context(), m))
}

func checkParkCancelled(b *fixture, can provider.Abilities) {
	m := b.createParkable(b.Park[0])
	b.requireCode(nstance.Unavailable, can.Parking.Park(b.endedContext(), m, b.Park[0]))
	b.requireCode(nstance.Unavailable, can.Parking.Wake(b.endedContext(), m))
}
