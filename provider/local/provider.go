package local

import (
	"context"
	"iter"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/machines"
	"github.com/nstance-go/nstance/provider"
)

// maxUserData bounds user data: 1 MiB.
const maxUserData = 1 << 20

// zone is the zone of every machine.
const zone = "local"

// args are the Args of a spec.
type args struct {
	BootDelay provider.Duration `json:"boot_delay" doc:"how long it is pending before its process starts" default:"0s"`
	WakeDelay provider.Duration `json:"wake_delay" doc:"how long it is pending when it is woken, before its process starts or goes on" default:"0s"`
	Env       map[string]string `json:"env" doc:"more environment variables"`
}

// Create implements [nstance.Provider]: it returns once the process runs, or,
// with a boot delay, at once.
func (c *Cloud) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	return c.launch(ctx, spec, Launch{})
}

func (c *Cloud) launch(ctx context.Context, spec nstance.MachineSpec, o Launch) (nstance.Machine, error) {
	a, err := checkSpec(spec)
	if err != nil {
		return nstance.Machine{}, err
	}
	return c.machines.Create(ctx, spec, machines.Name{Handle: o.Handle, Zone: o.Zone}, func(p *machines.Part) *machine {
		m := newMachine(c, p, a)
		m.parkMode, m.onExit = spec.Park, o.Exited
		return m
	})
}

// Get implements [nstance.Provider].
func (c *Cloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	return c.machines.Get(ctx, id)
}

// List implements [nstance.Provider].
func (c *Cloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return c.machines.List(ctx, owner)
}

// Delete implements [nstance.Provider]: SIGTERM, after Options.Grace SIGKILL,
// then NotFound. Without a handle in want, the machine is looked up by its ID.
func (c *Cloud) Delete(ctx context.Context, want nstance.Machine) error {
	return c.machines.Delete(ctx, want)
}

// Interrupt announces in its metadata service that spot machine id will be
// reclaimed, and reclaims it after that time: its process is killed, it is stopped
// for a second and then gone. action is the action that aws announces: terminate
// (also for ""), stop or hibernate; for aws the time is rounded up to the next full
// second. Another call sets a new time. Fails with NotFound when there is no such
// machine, Conflict when it does not run any more, Invalid when it is not spot.
func (c *Cloud) Interrupt(id nstance.InstanceID, action string, after time.Duration) error {
	return c.machines.Interrupt(id, action, after)
}

// Withdraw withdraws an announced interruption of id: the machine stays. It does
// nothing when none is announced, and fails as Interrupt does.
func (c *Cloud) Withdraw(id nstance.InstanceID) error { return c.machines.Withdraw(id) }

// Kill kills the process of machine id and all that it started, at once and
// without notice. The machine stays behind as failed. Fails with NotFound when
// there is no such machine, Conflict when no process of it runs.
func (c *Cloud) Kill(id nstance.InstanceID) error {
	c.machines.Lock()
	m, err := c.machines.Living(id)
	c.machines.Unlock()
	if err != nil {
		return err
	}
	if !m.signal(syscall.SIGKILL) {
		return nstance.Errorf(nstance.Conflict, "machine %s has no process", id)
	}
	return nil
}
