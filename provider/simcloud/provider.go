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
	var m nstance.Machine
	err := c.call(ctx, OpCreate, spec.ID, func() (err error) {
		m, err = c.create(spec)
		return err
	})
	return answer(&m, err)
}

// Get implements [nstance.Provider].
func (c *Cloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	var m nstance.Machine
	err := c.call(ctx, OpGet, id, func() error {
		found := c.machines[id]
		if found == nil || time.Now().Before(found.visible) {
			return nstance.Lost(c.usedIDs.of[id].cause, "no machine %s", id)
		}
		m = found.view
		return nil
	})
	return answer(&m, err)
}

// answer returns no machine after an error. The effect of the call may still be
// running then, so m is not read.
func answer(m *nstance.Machine, err error) (nstance.Machine, error) {
	if err != nil {
		return nstance.Machine{}, err
	}
	out := *m
	out.Addresses = slices.Clone(m.Addresses)
	return out, nil
}

// List implements [nstance.Provider].
func (c *Cloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		p := page{more: true}
		for p.more {
			after := p.last
			err := c.call(ctx, OpList, "", func() error {
				p = c.page(owner, after)
				return nil
			})
			if err != nil {
				yield(nstance.Machine{}, err)
				return
			}
			for _, m := range p.machines {
				if !yield(answer(&m, nil)) {
					return
				}
			}
		}
	}
}

// Delete implements [nstance.Provider]. Without a handle in m, the machine is
// found by its ID.
func (c *Cloud) Delete(ctx context.Context, m nstance.Machine) error {
	return c.call(ctx, OpDelete, m.ID, func() error { return c.delete(m) })
}

// create needs c.mu.
func (c *Cloud) create(s nstance.MachineSpec) (nstance.Machine, error) {
	a, err := checkSpec(s)
	if err != nil {
		return nstance.Machine{}, err
	}
	if c.o.Zones != nil && c.o.Zones[s.Subnet] == "" {
		return nstance.Machine{}, nstance.FieldError("subnet", "use one of Options.Zones", "no subnet %q", s.Subnet)
	}
	mark := provider.Fingerprint(s)
	if m := c.known(s); m != nil {
		if m.fingerprint != mark {
			return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s exists with other parameters", s.ID)
		}
		return m.view, nil
	}
	if used := c.usedIDs.of[s.ID]; c.usedIDs.has(s.ID, time.Now()) && !used.reusableBy(mark) && (!c.o.ByToken || used.token == s.Token) {
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s existed and was terminated", s.ID)
	}
	if err := c.checkImage(s.Image); err != nil {
		return nstance.Machine{}, err
	}
	if err := c.checkShape(s); err != nil {
		return nstance.Machine{}, err
	}
	if err := c.checkCapacity(c.poolOf(s)); err != nil {
		return nstance.Machine{}, err
	}
	return c.launch(s, mark, a).view, nil
}

// known returns the machine that a create with this spec repeats, or nil. It needs c.mu.
func (c *Cloud) known(s nstance.MachineSpec) *machine {
	if !c.o.ByToken {
		return c.machines[s.ID]
	}
	for _, m := range c.order {
		if !m.gone && m.view.ID == s.ID && m.spec.Token == s.Token {
			return m
		}
	}
	return nil
}

// delete needs c.mu.
func (c *Cloud) delete(want nstance.Machine) error {
	m, err := c.owned(want)
	if err == nil && m.view.Status != nstance.StatusDeleting {
		c.recordDeletedMember(m)
		c.endWithCause(m, nstance.LossRequested)
	}
	return err
}

// owned returns the machine that has the handle and the marks of want. Without a handle it
// is found by its ID. It needs c.mu.
func (c *Cloud) owned(want nstance.Machine) (*machine, error) {
	m := c.handles[want.ProviderID]
	if want.ProviderID == "" {
		m = c.machines[want.ID]
	}
	switch {
	case m == nil:
		return nil, nstance.Errorf(nstance.NotFound, "no machine %s %s", want.ProviderID, want.ID)
	case m.view.ID != want.ID || m.view.Owner != want.Owner:
		return nil, nstance.Errorf(nstance.Conflict, "machine %s is %s of %+v", want.ProviderID, m.view.ID, m.view.Owner)
	}
	return m, nil
}

// terminate ends a machine, which is gone once it has shut down. It needs c.mu.
func (c *Cloud) terminate(m *machine) {
	m.end(nstance.StatusDeleting)
	d := c.sample(c.o.Shutdown)
	if d == 0 {
		c.forget(m)
		return
	}
	c.after(d, &event{do: func() func() { c.forget(m); return nil }})
}

// A page is one answer of a list.
type page struct {
	machines []nstance.Machine
	last     uint64 // seq of the last machine
	more     bool
}

// page returns the owner's machines after seq. It needs c.mu.
func (c *Cloud) page(owner nstance.Owner, after uint64) page {
	var p page
	now := time.Now()
	from := sort.Search(len(c.order), func(i int) bool { return c.order[i].seq > after })
	for _, m := range c.order[from:] {
		if m.gone || now.Before(m.visible) || !owner.Owns(m.view.Owner) {
			continue
		}
		if len(p.machines) == c.o.PageSize {
			p.more = true
			break
		}
		p.machines = append(p.machines, m.view)
		p.last = m.seq
	}
	return p
}
