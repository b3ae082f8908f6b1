package proxmox

import (
	"context"
	"errors"

	"github.com/nstance-go/nstance"
)

// ParkModes implements [nstance.Parker].
func (p *Provider) ParkModes() []nstance.ParkMode {
	return []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}
}

// shutdownTimeout is how long a guest has to power itself off, in seconds. It is
// stopped then.
const shutdownTimeout = "60"

// Park implements [nstance.Parker]. A hibernated machine's memory is written to
// its storage.
func (p *Provider) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	path, params := "/status/shutdown", map[string]string{"timeout": shutdownTimeout, "forceStop": "1"}
	switch mode {
	case nstance.ParkStopped:
	case nstance.ParkHibernated:
		path, params = "/status/suspend", map[string]string{"todisk": "1"}
	default:
		return nstance.FieldError("warm_pool.mode", "use stopped or hibernated", "%.64q is neither", mode)
	}
	return p.power(ctx, m, "stopped", func(ctx context.Context, f *found) error {
		return p.api.do(ctx, vmPath(f.node, f.VMID)+path, params)
	})
}

// Wake implements [nstance.Parker]. A hibernated machine goes on where it was.
func (p *Provider) Wake(ctx context.Context, m nstance.Machine) error {
	return p.power(ctx, m, "running", p.start)
}

// power changes what a machine does, in the background, unless it does so
// already. Its failure is the answer to the next call.
func (p *Provider) power(ctx context.Context, m nstance.Machine, want string, act func(context.Context, *found) error) error {
	unlock, err := p.lock(ctx, m.ID)
	if err != nil {
		return err
	}
	defer unlock()
	w := p.workOf(m.ID)
	busy := w != nil && w.active()
	f, err := p.claimed(ctx, m)
	switch {
	case err != nil:
		return err
	case busy && w.kind == workPower && w.want == want:
		return nil
	case busy:
		return nstance.Errorf(nstance.Unavailable, "machine %s is being changed: %s", m.ID, w.kind)
	}
	now, err := p.unmanaged(ctx, f)
	switch {
	case err != nil || now.Status == want:
		return err
	case w != nil && w.kind == workPower && w.want == want && w.err != nil:
		p.drop(w) // the next call tries again
		return w.err
	}
	if now.Lock == "suspending" {
		return &nstance.Error{Code: nstance.Conflict, Msg: "machine " + string(m.ID) + " is locked (suspending)",
			Remedy: "if no task works on it, unlock it with qm unlock " + itoa(f.VMID)}
	}
	power := newWork(workPower, f.marks, f.node)
	power.want = want
	p.begin(power, func(ctx context.Context, _ *work) error {
		err := act(ctx, f)
		if errors.Is(err, nstance.Ambiguous) {
			return nstance.Errorf(nstance.Unavailable, "it may have been done: %w", err) // the next call looks at the machine
		}
		return err
	})
	return nil
}

// claimed returns the machine that the caller means.
func (p *Provider) claimed(ctx context.Context, m nstance.Machine) (*found, error) {
	list, err := p.api.resources(ctx)
	if err != nil {
		return nil, err
	}
	f, err := p.find(ctx, list, m.ID)
	if err != nil {
		return nil, err
	}
	if f == nil {
		if err := p.absent(ctx, list); err != nil {
			return nil, err
		}
		return nil, nstance.Errorf(nstance.NotFound, "no machine %s", m.ID)
	}
	return f, claims(f.marks, m)
}

// TypeArchs implements [nstance.TypeLister] from shard.provider.options: the
// processors are those of the nodes, which the template has to suit.
func (p *Provider) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	if ctx.Err() != nil {
		return nil, nstance.Errorf(nstance.Unavailable, "nothing was asked: %w", ctx.Err())
	}
	out := map[string][]nstance.Arch{}
	for _, name := range names {
		if _, ok := p.o.InstanceTypes[name]; ok {
			out[name] = []nstance.Arch{nstance.AMD64, nstance.ARM64}
		}
	}
	return out, nil
}
