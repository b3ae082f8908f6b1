package simcloud

import (
	"context"
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// Create implements [nstance.Provider].
func (c *Cloud) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	m, err := ask(ctx, &c.calls, OpCreate, spec.ID, func() (nstance.Machine, error) { return c.fleet.create(spec) })
	return copied(m), err
}

// Get implements [nstance.Provider].
func (c *Cloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := ask(ctx, &c.calls, OpGet, id, func() (nstance.Machine, error) { return c.fleet.get(id) })
	return copied(m), err
}

// copied returns a machine that the caller may change.
func copied(m nstance.Machine) nstance.Machine {
	m.Addresses = slices.Clone(m.Addresses)
	return m
}

// List implements [nstance.Provider].
func (c *Cloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		p := page{more: true}
		for p.more {
			after := p.last
			var err error
			if p, err = ask(ctx, &c.calls, OpList, "", func() (page, error) { return c.fleet.page(owner, after), nil }); err != nil {
				yield(nstance.Machine{}, err)
				return
			}
			for _, m := range p.machines {
				if !yield(copied(m), nil) {
					return
				}
			}
		}
	}
}

// Delete implements [nstance.Provider]. Without a handle in m, the machine is
// found by its ID.
func (c *Cloud) Delete(ctx context.Context, m nstance.Machine) error {
	return c.call(ctx, OpDelete, m.ID, func() error { return c.fleet.delete(m) })
}

// create needs the lock.
func (f *fleet) create(s nstance.MachineSpec) (nstance.Machine, error) {
	a, err := checkSpec(s)
	if err != nil {
		return nstance.Machine{}, err
	}
	if f.o.Zones != nil && f.o.Zones[s.Subnet] == "" {
		return nstance.Machine{}, nstance.FieldError("subnet", "use one of Options.Zones", "no subnet %q", s.Subnet)
	}
	mark := provider.Fingerprint(s)
	if m := f.known(s); m != nil {
		if m.fingerprint != mark {
			return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s exists with other parameters", s.ID)
		}
		return m.view, nil
	}
	if used := f.usedIDs.of[s.ID]; f.usedIDs.has(s.ID, time.Now()) && !used.reusableBy(mark) && (!f.o.ByToken || used.token == s.Token) {
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s existed and was terminated", s.ID)
	}
	if err := f.images.check(s.Image); err != nil {
		return nstance.Machine{}, err
	}
	if err := f.checkShape(s); err != nil {
		return nstance.Machine{}, err
	}
	if err := f.capacity.check(f.capacity.poolOf(s)); err != nil {
		return nstance.Machine{}, err
	}
	return f.launch(s, mark, a).view, nil
}

// get needs the lock.
func (f *fleet) get(id nstance.InstanceID) (nstance.Machine, error) {
	m := f.machines[id]
	if m == nil || time.Now().Before(m.visible) {
		return nstance.Machine{}, nstance.Lost(f.usedIDs.of[id].cause, "no machine %s", id)
	}
	return m.view, nil
}

// known returns the machine that a create with this spec repeats, or nil. It needs the lock.
func (f *fleet) known(s nstance.MachineSpec) *machine {
	if !f.o.ByToken {
		return f.machines[s.ID]
	}
	for _, m := range f.order {
		if !m.gone && m.view.ID == s.ID && m.spec.Token == s.Token {
			return m
		}
	}
	return nil
}

// delete needs the lock.
func (f *fleet) delete(want nstance.Machine) error {
	m, err := f.owned(want)
	if err == nil && m.view.Status != nstance.StatusDeleting {
		f.balancers.recordDeleted(m)
		f.endWithCause(m, nstance.LossRequested)
	}
	return err
}

// owned returns the machine that has the handle and the marks of want. Without a handle it
// is found by its ID. It needs the lock.
func (f *fleet) owned(want nstance.Machine) (*machine, error) {
	m := f.handles[want.ProviderID]
	if want.ProviderID == "" {
		m = f.machines[want.ID]
	}
	switch {
	case m == nil:
		return nil, nstance.Errorf(nstance.NotFound, "no machine %s %s", want.ProviderID, want.ID)
	case m.view.ID != want.ID || m.view.Owner != want.Owner:
		return nil, nstance.Errorf(nstance.Conflict, "machine %s is %s of %+v", want.ProviderID, m.view.ID, m.view.Owner)
	}
	return m, nil
}

// terminate ends a machine, which is gone once it has shut down. It needs the lock.
func (f *fleet) terminate(m *machine) {
	m.end(nstance.StatusDeleting)
	d := f.sample(f.o.Shutdown)
	if d == 0 {
		f.forget(m)
		return
	}
	f.later(d, func() { f.forget(m) })
}

// A page is one answer of a list.
type page struct {
	machines []nstance.Machine
	last     uint64 // seq of the last machine
	more     bool
}

// page returns the owner's machines after seq. It needs the lock.
func (f *fleet) page(owner nstance.Owner, after uint64) page {
	var p page
	now := time.Now()
	from := sort.Search(len(f.order), func(i int) bool { return f.order[i].seq > after })
	for _, m := range f.order[from:] {
		if m.gone || now.Before(m.visible) || !owner.Owns(m.view.Owner) {
			continue
		}
		if len(p.machines) == f.o.PageSize {
			p.more = true
			break
		}
		p.machines = append(p.machines, m.view)
		p.last = m.seq
	}
	return p
}
