package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// maxUserData bounds user data: 1 MiB.
const maxUserData = 1 << 20

// zone is the zone of every machine.
const zone = "local"

// args are the Args of a spec.
type args struct {
	BootDelay provider.Duration `json:"boot_delay" doc:"how long it is pending before its process starts" default:"0s"`
	Env       map[string]string `json:"env" doc:"more environment variables"`
}

// Create implements [nstance.Provider]: it returns once the process runs, or,
// with a boot delay, at once.
func (c *Cloud) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	return c.launch(ctx, spec, Launch{})
}

func (c *Cloud) launch(ctx context.Context, spec nstance.MachineSpec, o Launch) (nstance.Machine, error) {
	m, fresh, err := c.findOrAdd(ctx, spec, o)
	if err != nil {
		return nstance.Machine{}, err
	}
	if fresh {
		m.create()
	}
	select {
	case <-m.created:
	case <-ctx.Done():
		return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "machine %s is being created: %w", spec.ID, ctx.Err())
	}
	if m.createErr != nil {
		return nstance.Machine{}, m.createErr
	}
	return c.view(m), nil
}

// findOrAdd returns the machine of spec, or adds a fresh one that the caller has to
// create.
func (c *Cloud) findOrAdd(ctx context.Context, spec nstance.MachineSpec, o Launch) (m *machine, fresh bool, err error) {
	a, err := checkSpec(spec)
	if err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.available(ctx); err != nil {
		return nil, false, err
	}
	if m := c.machines[spec.ID]; m != nil {
		if m.fingerprint != provider.Fingerprint(spec) {
			return nil, false, nstance.Errorf(nstance.Conflict, "machine %s exists with other parameters", spec.ID)
		}
		return m, false, nil
	}
	c.seq++
	handle := cmp.Or(o.Handle, fmt.Sprintf("local-%d", c.seq))
	m = newMachine(c, spec, a, nstance.Machine{
		ID: spec.ID, ProviderID: handle, Owner: spec.Owner, Group: spec.Group,
		CreatedAt: spec.CreatedAt, Epoch: spec.Epoch, Status: nstance.StatusPending,
		InstanceType: spec.InstanceType, Zone: cmp.Or(o.Zone, zone), Market: cmp.Or(spec.Market, nstance.OnDemand),
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})},
	})
	m.onExit = o.Exited
	c.machines[spec.ID], c.handles[m.view.ProviderID] = m, m
	c.wg.Add(1) // until the machine has been removed: see run
	return m, true, nil
}

// available fails when the cloud is closed or ctx has ended. The caller holds c.mu.
func (c *Cloud) available(ctx context.Context) error {
	if ctx.Err() != nil {
		return nstance.Errorf(nstance.Unavailable, "nothing was done: %w", ctx.Err())
	}
	if c.closed {
		return nstance.Errorf(nstance.Unavailable, "the local cloud is closed")
	}
	return nil
}

// view returns a copy of m's view.
func (c *Cloud) view(m *machine) nstance.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	return m.snapshot()
}

// Get implements [nstance.Provider].
func (c *Cloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.available(ctx); err != nil {
		return nstance.Machine{}, err
	}
	m := c.machines[id]
	if m == nil {
		return nstance.Machine{}, nstance.Errorf(nstance.NotFound, "no machine %.64s", id)
	}
	return m.snapshot(), nil
}

// List implements [nstance.Provider].
func (c *Cloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return provider.ListOf(ctx, func() ([]nstance.Machine, error) { return c.owned(ctx, owner) })
}

func (c *Cloud) owned(ctx context.Context, owner nstance.Owner) ([]nstance.Machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.available(ctx); err != nil {
		return nil, err
	}
	var out []nstance.Machine
	for _, m := range c.machines {
		if owner.Owns(m.view.Owner) {
			out = append(out, m.snapshot())
		}
	}
	return out, nil
}

// Delete implements [nstance.Provider]: SIGTERM, after Options.Grace SIGKILL,
// then NotFound. Without a handle in want, the machine is looked up by its ID.
func (c *Cloud) Delete(ctx context.Context, want nstance.Machine) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.available(ctx); err != nil {
		return err
	}
	m := c.handles[want.ProviderID]
	if want.ProviderID == "" {
		m = c.machines[want.ID]
	}
	switch {
	case m == nil:
		return nstance.Errorf(nstance.NotFound, "no machine %s %s", want.ProviderID, want.ID)
	case m.view.ID != want.ID || m.view.Owner != want.Owner:
		return nstance.Errorf(nstance.Conflict, "machine %s is %s of %+v", want.ProviderID, m.view.ID, m.view.Owner)
	}
	m.requestStop()
	return nil
}

// Interrupt announces in its metadata service that spot machine id will be
// reclaimed, and reclaims it after that time: its process is killed, it is stopped
// for a second and then gone. action is the action that aws announces: terminate
// (also for ""), stop or hibernate; for aws the time is rounded up to the next full
// second. Another call sets a new time. Fails with NotFound when there is no such
// machine, Conflict when it does not run any more, Invalid when it is not spot.
func (c *Cloud) Interrupt(id nstance.InstanceID, action string, after time.Duration) error {
	action = cmp.Or(action, "terminate")
	if !slices.Contains([]string{"terminate", "stop", "hibernate"}, action) {
		return nstance.FieldError("action", "use terminate, stop or hibernate", "%.64q is not known", action)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.living(id)
	if err != nil {
		return err
	}
	if m.view.Market != nstance.Spot {
		return nstance.FieldError("id", "create it with market spot", "machine %s is not spot capacity", id)
	}
	m.interrupt(action, time.Now().Add(max(after, 0)))
	return nil
}

// Withdraw withdraws an announced interruption of id: the machine stays. It does
// nothing when none is announced, and fails as Interrupt does.
func (c *Cloud) Withdraw(id nstance.InstanceID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.living(id)
	if err != nil {
		return err
	}
	m.withdraw()
	return nil
}

// Kill kills the process of machine id and all that it started, at once and
// without notice. The machine stays behind as failed. Fails with NotFound when
// there is no such machine, Conflict when no process of it runs.
func (c *Cloud) Kill(id nstance.InstanceID) error {
	c.mu.Lock()
	m, err := c.living(id)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if !m.signal(syscall.SIGKILL) {
		return nstance.Errorf(nstance.Conflict, "machine %s has no process", id)
	}
	return nil
}

// living returns the machine unless it has ended or is ending. The caller holds
// c.mu.
func (c *Cloud) living(id nstance.InstanceID) (*machine, error) {
	m := c.machines[id]
	switch {
	case m == nil:
		return nil, nstance.Errorf(nstance.NotFound, "no machine %.64s", id)
	case m.view.Status.Dead():
		return nil, nstance.Errorf(nstance.Conflict, "machine %s is %s", id, m.view.Status)
	}
	return m, nil
}

// classify classifies an error of creating a machine.
func classify(err error) error {
	for _, full := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC} {
		if errors.Is(err, full) {
			return nstance.Errorf(nstance.Quota, "this host has no resources for another machine: %w", err)
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nstance.Errorf(nstance.Invalid, "the machine cannot be created: %w", err)
	}
	return nstance.Errorf(nstance.Internal, "the machine cannot be created: %w", err)
}
