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
	fleet         *fleet
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

// A fleet is the machines of the account.
type fleet struct {
	*core
	capacity    *capacity
	subnets     *subnets
	images      *images
	balancers   *balancers
	machines    map[nstance.InstanceID]*machine // with ByToken the latest
	handles     map[string]*machine
	order       []*machine // by seq; may hold machines that are gone
	goneInOrder int        // machines in order that are gone
	usedIDs     idHistory
}

// launch makes the machine of a spec that has been checked. It needs the lock.
func (f *fleet) launch(s nstance.MachineSpec, mark string, a args) *machine {
	f.seq++
	m := &machine{
		fleet: f, seq: f.seq, spec: s, fingerprint: mark, pool: f.capacity.poolOf(s),
		visible: time.Now().Add(f.sample(f.o.Lag)),
		news:    make(chan struct{}),
	}
	m.view = nstance.Machine{
		ID: s.ID, ProviderID: fmt.Sprintf("sim-%08d", m.seq), Owner: s.Owner, Group: s.Group,
		CreatedAt: s.CreatedAt, Epoch: s.Epoch, Status: nstance.StatusPending,
		InstanceType: s.InstanceType, Zone: m.pool.Zone, Market: m.pool.Market,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(m.seq >> 16), byte(m.seq >> 8), byte(m.seq)})},
	}
	if m.pool.Market == nstance.Spot {
		m.view.ReclaimWarning = f.o.ReclaimWarning
	}
	f.machines[s.ID], f.handles[m.view.ProviderID] = m, m
	f.order = append(f.order, m)
	f.capacity.counts[m.pool]++
	f.subnets.taken[s.Subnet]++
	m.failsWith = f.capacity.startFailure(m.pool)
	boot := f.sample(f.o.Boot)
	if a.BootDelay != nil {
		boot = time.Duration(*a.BootDelay)
	}
	if boot == 0 && m.failsWith == "" {
		m.view.Status = nstance.StatusRunning
	}
	f.after(boot, &event{do: m.start})
	return m
}

// start is the event that a machine begins to run.
func (m *machine) start() func() {
	if m.view.Status.Dead() || m.gone {
		return nil
	}
	if m.failsWith != "" {
		m.fleet.endWithCause(m, m.failsWith)
		return nil
	}
	m.view.Status = nstance.StatusRunning
	m.ran = true
	if m.fleet.o.OnStart == nil {
		return nil
	}
	view, spec := m.view, m.spec
	return func() { m.fleet.o.OnStart(view, spec) }
}

// end stops a machine for good and sets its status. It needs the cloud's lock.
func (m *machine) end(s nstance.MachineStatus) {
	m.halt(s)
	m.freeCapacity()
	if !m.addressFreed {
		m.addressFreed = true
		m.fleet.subnets.taken[m.spec.Subnet]--
	}
}

// halt stops a machine and sets its status. It needs the cloud's lock.
func (m *machine) halt(s nstance.MachineStatus) {
	m.view.Status = s
	if m.ran && m.fleet.o.OnStop != nil {
		view := m.view
		m.fleet.after(0, &event{last: true, do: func() func() {
			return func() { m.fleet.o.OnStop(view) }
		}})
	}
	m.ran = false
}

// freeCapacity needs the cloud's lock.
func (m *machine) freeCapacity() {
	if !m.capacityFreed {
		m.capacityFreed = true
		m.fleet.capacity.counts[m.pool]--
	}
}

// forget removes the machine. It needs the lock.
func (f *fleet) forget(m *machine) {
	if m.gone {
		return
	}
	m.gone = true
	if f.machines[m.view.ID] == m {
		delete(f.machines, m.view.ID)
		for i := 0; f.o.ByToken && i < len(f.order); i++ {
			other := f.order[i]
			if !other.gone && other.view.ID == m.view.ID {
				f.machines[m.view.ID] = other
			}
		}
	}
	delete(f.handles, m.view.ProviderID)
	f.balancers.detach(m)
	f.usedIDs.add(m.view.ID, usedID{cause: m.view.Cause, fingerprint: m.fingerprint, token: m.spec.Token}, time.Now())
	if f.goneInOrder++; f.goneInOrder > len(f.order)/2 {
		f.compact()
	}
}

func (f *fleet) compact() {
	kept := f.order[:0]
	for _, m := range f.order {
		if !m.gone {
			kept = append(kept, m)
		}
	}
	clear(f.order[len(kept):])
	f.order, f.goneInOrder = kept, 0
}
