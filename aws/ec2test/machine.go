package ec2test

import (
	"net/netip"
	"slices"
	"sync"
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

func (m *machine) instanceID(o *Options) nstance.InstanceID {
	if o.IDTag == "" {
		return ""
	}
	return nstance.InstanceID(m.tags[o.IDTag])
}

// A fleet is the machines of the account.
type fleet struct {
	o        *Options
	mu       *sync.Mutex
	timers   *testcloud.Timers
	network  *network
	spot     *spotMarket
	ended    func(*machine) // is called when a machine is terminated
	machines map[string]*machine
	closed   bool
	running  sync.WaitGroup // of what starts and ends guests
}

// close ends all guests and timers. It needs f.mu.
func (f *fleet) close() {
	f.closed = true
	f.timers.Stop()
	for _, m := range f.machines {
		f.killGuest(m)
	}
}

// visible reports whether answers contain the machine.
func (f *fleet) visible(m *machine, now time.Time) bool {
	d := f.o.Delays.Visible
	return d >= 0 && now.Sub(m.created) >= d
}

// enter puts a machine into a state, and into the next one after d unless
// something else happens to it before. It needs f.mu.
func (f *fleet) enter(m *machine, s state, d time.Duration, next func()) {
	m.state, m.postedConsole = s, slices.Clone(m.console)
	m.step++
	step := m.step
	f.timers.After(d, func() {
		if m.step == step && next != nil {
			next()
		}
	})
}

// begin starts a machine that has just been made or is started again. It needs
// f.mu.
func (f *fleet) begin(m *machine, failure *StateReason) {
	m.reason, m.transition = nil, ""
	f.enter(m, pending, f.o.Delays.Start, func() {
		if failure != nil {
			f.fail(m, *failure)
			return
		}
		f.enter(m, running, -1, nil)
		f.boot(m)
	})
}

// boot starts the guest of a machine. It needs f.mu.
func (f *fleet) boot(m *machine) {
	if f.o.Hypervisor == nil || f.closed {
		return
	}
	step := m.step
	b := testcloud.Boot{
		Handle: m.id, ID: m.instanceID(f.o), UserData: m.userData, Spot: m.spot != nil, Type: m.kind.Name, Zone: m.zone, Address: m.address(),
		Exited: func() { f.guestExited(m, step) },
	}
	f.running.Go(func() {
		guest, err := f.o.Hypervisor.Start(b)
		f.mu.Lock()
		defer f.mu.Unlock()
		current := m.step == step && !f.closed
		switch {
		case err != nil && current:
			m.console = []byte(err.Error())
			f.terminate(m, internalError)
		case err == nil && current:
			m.guest = guest
		case err == nil:
			f.running.Go(guest.Kill)
		}
	})
}

// guestExited is what a machine does that has powered itself off.
func (f *fleet) guestExited(m *machine, step int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.step != step || f.closed {
		return
	}
	m.guest = nil
	if m.launch.InstanceInitiatedShutdownBehavior == "terminate" || m.spot != nil && m.spot.behavior == "terminate" {
		f.terminate(m, guestShutdown)
		return
	}
	f.stop(m, guestShutdown)
}

// killGuest ends what runs in a machine. It needs f.mu.
func (f *fleet) killGuest(m *machine) {
	if m.guest != nil {
		f.running.Go(m.guest.Kill)
		m.guest = nil
	}
}

// stop brings a running machine to a stop. It needs f.mu.
func (f *fleet) stop(m *machine, why StateReason) {
	f.killGuest(m)
	m.explain(why)
	f.enter(m, stopping, f.o.Delays.Stop, func() {
		f.release(m)
		f.enter(m, stopped, -1, nil)
	})
}

// terminate ends a machine for good. It needs f.mu.
func (f *fleet) terminate(m *machine, why StateReason) {
	if m.state == shuttingDown || m.state == terminated {
		return
	}
	f.killGuest(m)
	m.explain(why)
	if m.spot != nil {
		m.spot.close("instance-terminated-by-user", "Spot Instance terminated due to user-initiated termination.")
	}
	f.enter(m, shuttingDown, f.o.Delays.Delete, func() { f.setTerminated(m) })
}

// reclaim terminates a spot machine when its notice is over. It needs f.mu.
func (f *fleet) reclaim(m *machine, notice time.Duration) {
	m.spot.setStatus("marked-for-termination", "Your Spot Instance is marked for termination.")
	f.timers.After(notice, func() {
		if m.state != terminated && m.state != shuttingDown {
			m.spot.close("instance-terminated-by-price", "Your instance was terminated because there is no available Spot capacity.")
			f.terminate(m, spotTermination)
		}
	})
}

// fail ends a machine at once. It needs f.mu.
func (f *fleet) fail(m *machine, why StateReason) {
	f.terminate(m, why)
	f.setTerminated(m)
}

func (m *machine) explain(why StateReason) {
	m.reason = &why
	if why == userShutdown || why == userHibernate {
		m.transition = "User initiated (" + time.Now().UTC().Format("2006-01-02 15:04:05") + " GMT)"
	}
}

// setTerminated frees what the machine had and keeps it in answers for a while.
// It needs f.mu.
func (f *fleet) setTerminated(m *machine) {
	if m.state == terminated {
		return
	}
	f.release(m)
	f.ended(m)
	f.network.deleteInterfaces(m)
	m.ended = time.Now()
	f.enter(m, terminated, f.o.Delays.Linger, func() {
		delete(f.machines, m.id)
		if m.spot != nil {
			delete(f.spot.requests, m.spot.id)
		}
	})
}

func (f *fleet) release(m *machine) {
	if m.holdsCapacity {
		m.holdsCapacity = false
		f.o.Capacity.Release(m.shape())
	}
}
