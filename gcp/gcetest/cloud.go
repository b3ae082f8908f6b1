// Package gcetest is a test cloud that speaks the protocol of Google Compute Engine:
// its REST API in version v1, with operations, label filters, pages and bearer
// tokens. Its tests compare every request and answer with Google's discovery
// document and drive it with Google's own clients.
//
// It has the part of the API that a fleet of machines needs. Everything else
// it refuses: an unknown path, parameter or field is an error, as it is on the
// cloud, where a misspelt field is refused too. Clouds are safe for concurrent use.
package gcetest

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// Options describe the cloud. Zero fields mean the defaults named here.
type Options struct {
	Project string   // test-project
	Zones   []string // us-central1-a and us-central1-b

	Types   []MachineType // e2-small, e2-standard-2 and t2a-standard-1
	Images  []Image       // two images of the family debian-12, in project debian-cloud
	Subnets []Subnet      // default, 10.0.0.0/20, in each zone's region
	Groups  []Group       // no network endpoint groups and instance groups

	Snapshots    []Snapshot        // none
	Keys         []string          // paths of the keys of Cloud KMS that the cloud may use; none
	Policies     []PlacementPolicy // none
	Reservations []Reservation     // none
	NodeGroups   []NodeGroup       // none

	// PageSize bounds a page of a list below the cloud's own 500.
	PageSize int

	// ScanPages makes a page of a filtered list cover as many machines looked at,
	// not found: pages may then be empty while more follow, as on the cloud.
	ScanPages bool

	Delays     testcloud.Delays
	Capacity   *testcloud.Capacity  // nil: endless
	Faults     *testcloud.Faults    // by method: instances.insert; nil: none
	Hypervisor testcloud.Hypervisor // nil: machines are entries in a table

	// Permissions are the permissions of the caller, such as
	// compute.instances.create. Nil: every one.
	Permissions []string

	// ClockOffset is how far the cloud's clock is ahead of the caller's: what its
	// operations say of when they began and ended.
	ClockOffset time.Duration

	// Mutations and Reads bound the calls of a minute, per project; what is left
	// is forgotten at the next whole minute. 0: no bound.
	Mutations, Reads int

	// Token is a bearer token that is accepted. Account is the mail address of a
	// service account whose signed tokens are accepted; KeyFile returns its key.
	// When both are empty, no call needs a token.
	Token, Account string
}

// A Cloud serves the API. It is safe for concurrent use.
type Cloud struct {
	o  *Options
	mu sync.Mutex // guards the options that change and all parts, whose methods need it

	operations *operationLog
	fleet      *fleet
	gateway    *gateway
}

var (
	_ testcloud.Cloud = (*Cloud)(nil)
	_ http.Handler    = (*Cloud)(nil)
)

// New returns a cloud without machines; close it when done.
func New(o *Options) *Cloud {
	c := &Cloud{o: &Options{}}
	if o != nil {
		*c.o = *o
	}
	c.o.setDefaults()
	sequence, catalog := &sequence{1 << 61}, &catalog{c.o}
	c.operations = &operationLog{o: c.o, sequence: sequence, requests: map[string]*operation{}, failures: map[string][]OperationError{}}
	disks := &diskSet{o: c.o, catalog: catalog, all: map[string]DiskState{}}
	c.fleet = &fleet{o: c.o, mu: &c.mu, timers: testcloud.NewTimers(&c.mu), operations: c.operations, disks: disks, machines: map[string]*machine{}}
	network := newNetwork(c.o, sequence, c.operations, c.fleet)
	balancer := newBalancer(c.o, c.operations, c.fleet)
	c.fleet.forgotten = balancer.remove
	launcher := &launcher{
		o: c.o, sequence: sequence, operations: c.operations, catalog: catalog, disks: disks, network: network, fleet: c.fleet,
		placement: &placement{o: c.o, catalog: catalog, fleet: c.fleet},
	}
	power := &powerSwitch{o: c.o, operations: c.operations, fleet: c.fleet}
	c.gateway = newGateway(c, catalog, c.routes(catalog, launcher, power, network, balancer))
	return c
}

func (o *Options) setDefaults() {
	o.Project = cmp.Or(o.Project, "test-project")
	o.PageSize = cmp.Or(o.PageSize, maxPage)
	if o.Zones == nil {
		o.Zones = []string{"us-central1-a", "us-central1-b"}
	}
	if o.Capacity == nil {
		o.Capacity = &testcloud.Capacity{}
	}
	if o.Faults == nil {
		o.Faults = &testcloud.Faults{}
	}
	o.fillCatalog()
	o.fillPlacement()
}

// Permit changes the caller's permissions; nil: every one.
func (c *Cloud) Permit(permissions []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.o.Permissions = permissions
}

// FailOperation has the next operations of a type, such as insert, be accepted
// and then fail with these errors, one each.
func (c *Cloud) FailOperation(kind string, errs ...OperationError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.operations.failures[kind] = append(c.operations.failures[kind], errs...)
}

// SetDelays changes how long the cloud takes for what is asked of it from now on.
func (c *Cloud) SetDelays(d testcloud.Delays) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.o.Delays = d
}

// Machines implements [testcloud.Cloud]. The handle is the machine's path.
func (c *Cloud) Machines() []testcloud.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []testcloud.Machine
	for _, key := range slices.Sorted(maps.Keys(c.fleet.machines)) {
		m := c.fleet.machines[key]
		out = append(out, testcloud.Machine{
			ID: nstance.InstanceID(m.Labels["nstance-instance-id"]), Handle: m.path(), Zone: m.zone,
			Type: lastPart(m.MachineType), Spot: m.spot(), Status: auditStatus[m.Status],
		})
	}
	return out
}

var auditStatus = map[string]nstance.MachineStatus{
	"PROVISIONING": nstance.StatusPending, "STAGING": nstance.StatusPending, "RUNNING": nstance.StatusRunning,
	"STOPPING": nstance.StatusStopping, "SUSPENDING": nstance.StatusStopping, "PENDING_STOP": nstance.StatusRunning,
	"TERMINATED": nstance.StatusStopped, "SUSPENDED": nstance.StatusStopped,
}

// Disks returns the paths of all disks, for audits.
func (c *Cloud) Disks() []string {
	var out []string
	for _, d := range c.DiskStates() {
		out = append(out, d.Path)
	}
	return out
}

// DiskStates returns all disks, by their paths, for audits.
func (c *Cloud) DiskStates() []DiskState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.fleet.disks.all), func(a, b DiskState) int { return cmp.Compare(a.Path, b.Path) })
}

// Print adds to what a machine has printed to its serial port.
func (c *Cloud) Print(handle, text string) error {
	return c.withMachine(handle, func(m *machine) error {
		m.print(text)
		return nil
	})
}

// withMachine calls fn with the machine of that handle, under the lock.
func (c *Cloud) withMachine(handle string, fn func(*machine) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.fleet.machines {
		if m.path() == handle {
			return fn(m)
		}
	}
	return nstance.Errorf(nstance.NotFound, "no machine %s", handle)
}

// Reclaim implements [testcloud.Cloud]: the machine's metadata announces the
// preemption, and after the notice the termination action follows.
func (c *Cloud) Reclaim(handle string, notice time.Duration) error {
	return c.withMachine(handle, func(m *machine) error {
		if !m.spot() {
			return nstance.Errorf(nstance.Invalid, "machine %s is not preemptible", handle)
		}
		if m.guest != nil {
			m.guest.Announce("preempted", time.Now().Add(notice))
		}
		c.fleet.timers.After(notice, func() { c.fleet.preempt(m) })
		return nil
	})
}

// Fail implements [testcloud.Cloud]: the machine's host breaks.
func (c *Cloud) Fail(handle string) error {
	return c.withMachine(handle, func(m *machine) error {
		c.operations.systemEvent(m, "compute.instances.hostError", "Instance terminated by Compute Engine.")
		c.fleet.end(m)
		m.set("TERMINATED")
		return nil
	})
}

// Close implements [testcloud.Cloud].
func (c *Cloud) Close() error {
	c.mu.Lock()
	c.fleet.close()
	c.mu.Unlock()
	c.fleet.timers.Wait()
	c.fleet.running.Wait()
	return nil
}

// A sequence gives numbers, each once.
type sequence struct{ last uint64 }

func (s *sequence) next() uint64 {
	s.last += 7919
	return s.last
}

// print returns a new fingerprint.
func (s *sequence) print() string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, s.next()))
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
