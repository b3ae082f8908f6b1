// Package testcloud holds what the test clouds (aws/ec2test, gcp/gcetest,
// azure/armtest, proxmox/pvetest) share. A test cloud is a
// server that speaks one cloud's real protocol over a real socket, for the
// tests of that cloud's provider and for single-machine mode. It keeps the
// cloud's own rules: it refuses what the cloud refuses, in the cloud's words,
// and is independent of the provider that is tested against it.
//
// Each is checked by something that others wrote from the cloud's own model;
// docs/testing.md names it. Test clouds are safe for concurrent use.
package testcloud

import (
	"net/netip"
	"time"

	"github.com/nstance-go/nstance"
)

// A Cloud is what tests and scenarios do to a test cloud, whichever it is,
// beside calling its API. Implementations are safe for concurrent use.
type Cloud interface {
	// Machines returns every machine that is not gone, whatever its marks.
	Machines() []Machine

	// Reclaim takes the spot machine with that handle back after the notice
	// that the cloud gives, as the cloud does it. Fails with NotFound when there
	// is no such machine, Invalid when it is not spot capacity.
	Reclaim(handle string, notice time.Duration) error

	// Fail ends the machine with that handle at once, as a broken host does.
	Fail(handle string) error

	// Close ends all machines and what the cloud runs itself.
	Close() error
}

// A Machine is a test cloud's own view of one machine, for audits.
type Machine struct {
	ID     nstance.InstanceID // by its marks; empty: it has none
	Handle string             // as the cloud names it
	Zone   string
	Type   string
	Spot   bool
	Status nstance.MachineStatus
}

// A Hypervisor runs what is inside a test cloud's machines. Without one they are
// entries in a table. Start may be called concurrently.
type Hypervisor interface {
	// Start starts a machine, now or when it is started again.
	Start(Boot) (Guest, error)
}

// A Boot is what a machine is started with.
type Boot struct {
	Handle   string             // as the cloud names it
	ID       nstance.InstanceID // by its marks; empty: it has none
	UserData []byte             // decoded
	Spot     bool
	Type     string
	Zone     string
	Address  netip.Addr

	// Exited is called once, unless Kill came first, when the machine has
	// powered itself off.
	Exited func()
}

// A Guest is a machine that has been started, safe for concurrent use. It announces through its metadata
// service, in the protocol of its cloud.
type Guest interface {
	// Announce publishes that the machine will be taken at that time, or at
	// another one than before.
	Announce(action string, at time.Time)

	// Withdraw takes the announcement back.
	Withdraw()

	// Kill ends the machine at once and returns when it has ended.
	Kill()
}

// Delays are how long a cloud takes for what it does by itself. Zero means at
// once; a negative one never ends.
type Delays struct {
	Visible time.Duration // until a new machine is in answers
	Start   time.Duration // from pending to running
	Stop    time.Duration // from stopping to stopped
	Delete  time.Duration // from deleting to gone
	Linger  time.Duration // how long what is gone is still shown as such, where the cloud does that
}
