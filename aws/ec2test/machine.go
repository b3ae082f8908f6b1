package ec2test

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// A state is an instance state, by EC2's code.
type state int

const (
	pending      state = 0
	running      state = 16
	shuttingDown state = 32
	terminated   state = 48
	stopping     state = 64
	stopped      state = 80
)

var stateNames = map[state]string{
	pending: "pending", running: "running", shuttingDown: "shutting-down", terminated: "terminated", stopping: "stopping", stopped: "stopped",
}

func (s state) String() string { return stateNames[s] }

func (s state) status() nstance.MachineStatus {
	return map[state]nstance.MachineStatus{
		pending: nstance.StatusPending, running: nstance.StatusRunning, shuttingDown: nstance.StatusDeleting,
		terminated: nstance.StatusDeleting, stopping: nstance.StatusStopping, stopped: nstance.StatusStopped,
	}[s]
}

// A StateReason is why a machine changed its state (type StateReason of the
// API reference).
type StateReason struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

// Reasons that the cloud gives by itself.
var (
	spotTermination = StateReason{"Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination"}
	internalError   = StateReason{"Server.InternalError", "Server.InternalError: Internal error on launch"}
	guestShutdown   = StateReason{"Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown"}
	userShutdown    = StateReason{"Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown"}
	userHibernate   = StateReason{"Client.UserInitiatedHibernate", "Client.UserInitiatedHibernate: User initiated hibernate"}
)

// A machine is one instance. Everything in it is guarded by the cloud's lock.
type machine struct {
	id, reservation string
	launchIndex     int
	launch          *runInput // the request
	kind            InstanceType
	image           Image
	zone            string
	volume          string
	volumeTags      map[string]string
	interfaces      []*netInterface
	spot            *spotRequest
	tags            map[string]string
	userData        []byte
	created         time.Time
	launched        time.Time
	ended           time.Time
	state           state
	reason          *StateReason
	transition      string
	holdsCapacity   bool

	capacityReservation string // empty: none

	step          int // counts changes of state, so that a timer knows its own
	guest         testcloud.Guest
	console       []byte // what it has printed
	postedConsole []byte // what is shown of that
}

func (m *machine) subnet() Subnet {
	if len(m.interfaces) == 0 {
		return Subnet{}
	}
	return m.interfaces[0].subnet
}

func (m *machine) address() netip.Addr {
	if len(m.interfaces) == 0 {
		return netip.Addr{}
	}
	return m.interfaces[0].addresses[0]
}

func (m *machine) shape() testcloud.Shape {
	return testcloud.Shape{Type: m.kind.Name, Zone: m.zone, Spot: m.spot != nil}
}

// visible reports whether answers contain the machine.
func (c *Cloud) visible(m *machine, now time.Time) bool {
	d := c.o.Delays.Visible
	return d >= 0 && now.Sub(m.created) >= d
}

// enter puts a machine into a state, and into the next one after d unless
// something else happens to it before. It needs c.mu.
func (c *Cloud) enter(m *machine, s state, d time.Duration, next func()) {
	m.state, m.postedConsole = s, slices.Clone(m.console)
	m.step++
	step := m.step
	c.timers.After(d, func() {
		if m.step == step && next != nil {
			next()
		}
	})
}

// begin starts a machine that has just been made or is started again. It needs
// c.mu.
func (c *Cloud) begin(m *machine, failure *StateReason) {
	m.reason, m.transition = nil, ""
	c.enter(m, pending, c.o.Delays.Start, func() {
		if failure != nil {
			c.terminate(m, *failure)
			c.setTerminated(m)
			return
		}
		c.enter(m, running, -1, nil)
		c.boot(m)
	})
}

// boot starts the guest of a machine. It needs c.mu.
func (c *Cloud) boot(m *machine) {
	if c.o.Hypervisor == nil || c.closed {
		return
	}
	step := m.step
	b := testcloud.Boot{
		Handle: m.id, ID: c.instanceID(m), UserData: m.userData, Spot: m.spot != nil, Type: m.kind.Name, Zone: m.zone, Address: m.address(),
		Exited: func() { c.guestExited(m, step) },
	}
	c.running.Go(func() {
		guest, err := c.o.Hypervisor.Start(b)
		c.mu.Lock()
		defer c.mu.Unlock()
		current := m.step == step && !c.closed
		switch {
		case err != nil && current:
			m.console = []byte(err.Error())
			c.terminate(m, internalError)
		case err == nil && current:
			m.guest = guest
		case err == nil:
			c.running.Go(guest.Kill)
		}
	})
}

// guestExited is what a machine does that has powered itself off.
func (c *Cloud) guestExited(m *machine, step int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.step != step || c.closed {
		return
	}
	m.guest = nil
	if m.launch.InstanceInitiatedShutdownBehavior == "terminate" || m.spot != nil && m.spot.behavior == "terminate" {
		c.terminate(m, guestShutdown)
		return
	}
	c.stop(m, guestShutdown)
}

// killGuest ends what runs in a machine. It needs c.mu.
func (c *Cloud) killGuest(m *machine) {
	if m.guest != nil {
		c.running.Go(m.guest.Kill)
		m.guest = nil
	}
}

// stop brings a running machine to a stop. It needs c.mu.
func (c *Cloud) stop(m *machine, why StateReason) {
	c.killGuest(m)
	m.explain(why)
	c.enter(m, stopping, c.o.Delays.Stop, func() {
		c.release(m)
		c.enter(m, stopped, -1, nil)
	})
}

// terminate ends a machine for good. It needs c.mu.
func (c *Cloud) terminate(m *machine, why StateReason) {
	if m.state == shuttingDown || m.state == terminated {
		return
	}
	c.killGuest(m)
	m.explain(why)
	if m.spot != nil {
		m.spot.close("instance-terminated-by-user", "Spot Instance terminated due to user-initiated termination.")
	}
	c.enter(m, shuttingDown, c.o.Delays.Delete, func() { c.setTerminated(m) })
}

func (m *machine) explain(why StateReason) {
	m.reason = &why
	if why == userShutdown || why == userHibernate {
		m.transition = "User initiated (" + time.Now().UTC().Format("2006-01-02 15:04:05") + " GMT)"
	}
}

// setTerminated frees what the machine had and keeps it in answers for a while.
// It needs c.mu.
func (c *Cloud) setTerminated(m *machine) {
	if m.state == terminated {
		return
	}
	c.release(m)
	c.removeTargets(m)
	for _, i := range m.interfaces {
		c.deleteInterface(i)
	}
	m.interfaces = nil
	m.ended = time.Now()
	c.enter(m, terminated, c.o.Delays.Linger, func() {
		delete(c.machines, m.id)
		if m.spot != nil {
			delete(c.spotRequests, m.spot.id)
		}
	})
}

func (c *Cloud) release(m *machine) {
	if m.holdsCapacity {
		m.holdsCapacity = false
		c.o.Capacity.Release(m.shape())
	}
}
