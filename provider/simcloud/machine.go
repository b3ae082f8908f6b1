package simcloud

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// A machine is one machine. Everything in it is guarded by the cloud's lock.
type machine struct {
	c             *Cloud
	seq           uint64
	view          nstance.Machine
	spec          nstance.MachineSpec
	fingerprint   string    // of spec
	pool          Pool      // whose capacity it uses
	visible       time.Time // Get and List show it from then on
	ran           bool      // began to run: OnStop is pending
	capacityFreed bool
	addressFreed  bool
	gone          bool // no call finds it any more
	notices       []nstance.Notice
	news          chan struct{} // closed and replaced when notices grows
	reclaims      int           // withdrawn so far

	failsWith nstance.LossCause // why it never starts; empty: it starts
}

// args are what a simcloud spec may carry in Args.
type args struct {
	BootDelay *provider.Duration `json:"boot_delay" doc:"how long this one takes to start" default:"options.boot"`
}

// launch makes the machine of a spec that has been checked. It needs c.mu.
func (c *Cloud) launch(s nstance.MachineSpec, mark string, a args) *machine {
	c.seq++
	m := &machine{
		c: c, seq: c.seq, spec: s, fingerprint: mark, pool: c.poolOf(s),
		visible: time.Now().Add(c.sample(c.o.Lag)),
		news:    make(chan struct{}),
	}
	m.view = nstance.Machine{
		ID: s.ID, ProviderID: fmt.Sprintf("sim-%08d", m.seq), Owner: s.Owner, Group: s.Group,
		CreatedAt: s.CreatedAt, Epoch: s.Epoch, Status: nstance.StatusPending,
		InstanceType: s.InstanceType, Zone: m.pool.Zone, Market: m.pool.Market,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(m.seq >> 16), byte(m.seq >> 8), byte(m.seq)})},
	}
	if m.pool.Market == nstance.Spot {
		m.view.ReclaimWarning = c.o.ReclaimWarning
	}
	c.machines[s.ID], c.handles[m.view.ProviderID] = m, m
	c.order = append(c.order, m)
	c.counts[m.pool]++
	c.taken[s.Subnet]++
	m.failsWith = c.startFailure(m.pool)
	boot := c.sample(c.o.Boot)
	if a.BootDelay != nil {
		boot = time.Duration(*a.BootDelay)
	}
	if boot == 0 && m.failsWith == "" {
		m.view.Status = nstance.StatusRunning
	}
	c.after(boot, &event{do: m.start})
	return m
}

// start is the event that a machine begins to run.
func (m *machine) start() func() {
	if m.view.Status.Dead() || m.gone {
		return nil
	}
	if m.failsWith != "" {
		m.c.endWithCause(m, m.failsWith)
		return nil
	}
	m.view.Status = nstance.StatusRunning
	m.ran = true
	if m.c.o.OnStart == nil {
		return nil
	}
	view, spec := m.view, m.spec
	return func() { m.c.o.OnStart(view, spec) }
}

// end stops a machine for good and sets its status. It needs the cloud's lock.
func (m *machine) end(s nstance.MachineStatus) {
	m.halt(s)
	m.freeCapacity()
	if !m.addressFreed {
		m.addressFreed = true
		m.c.taken[m.spec.Subnet]--
	}
}

// halt stops a machine and sets its status. It needs the cloud's lock.
func (m *machine) halt(s nstance.MachineStatus) {
	m.view.Status = s
	if m.ran && m.c.o.OnStop != nil {
		view := m.view
		m.c.after(0, &event{last: true, do: func() func() {
			return func() { m.c.o.OnStop(view) }
		}})
	}
	m.ran = false
}

// freeCapacity needs the cloud's lock.
func (m *machine) freeCapacity() {
	if !m.capacityFreed {
		m.capacityFreed = true
		m.c.counts[m.pool]--
	}
}

// forget removes the machine. It needs c.mu.
func (c *Cloud) forget(m *machine) {
	if m.gone {
		return
	}
	m.gone = true
	if c.machines[m.view.ID] == m {
		delete(c.machines, m.view.ID)
		for i := 0; c.o.ByToken && i < len(c.order); i++ {
			other := c.order[i]
			if !other.gone && other.view.ID == m.view.ID {
				c.machines[m.view.ID] = other
			}
		}
	}
	delete(c.handles, m.view.ProviderID)
	c.detach(m)
	c.usedIDs.add(m.view.ID, usedID{cause: m.view.Cause, fingerprint: m.fingerprint, token: m.spec.Token}, time.Now())
	if c.goneInOrder++; c.goneInOrder > len(c.order)/2 {
		c.compact()
	}
}

func (c *Cloud) compact() {
	kept := c.order[:0]
	for _, m := range c.order {
		if !m.gone {
			kept = append(kept, m)
		}
	}
	clear(c.order[len(kept):])
	c.order, c.goneInOrder = kept, 0
}
