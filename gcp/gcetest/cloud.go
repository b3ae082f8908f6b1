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

// maxOperations is how many operations the cloud remembers; older ones that are
// done are forgotten.
const maxOperations = 20_000

// A Cloud serves the API. It is safe for concurrent use.
type Cloud struct {
	o       Options
	mux     *http.ServeMux
	account *account

	mu         sync.Mutex
	closed     bool
	sequence   uint64
	instances  map[string]*machine // by zone/name
	disks      map[string]*disk    // by zone/name
	operations []*operation        // oldest first
	requests   map[string]*operation
	failures   map[string][]OperationError // by operation type, for the next ones
	subnets    map[string]*subnet          // by region/name
	groups     map[string]*group           // by zone/name
	minute     time.Time
	mutations  int
	reads      int
	timers     *testcloud.Timers
	running    sync.WaitGroup
}

var (
	_ testcloud.Cloud = (*Cloud)(nil)
	_ http.Handler    = (*Cloud)(nil)
)

// New returns a cloud without machines; close it when done.
func New(o *Options) *Cloud {
	c := &Cloud{
		instances: map[string]*machine{}, disks: map[string]*disk{}, requests: map[string]*operation{},
		failures: map[string][]OperationError{}, subnets: map[string]*subnet{}, groups: map[string]*group{},
		sequence: 1 << 61,
	}
	c.timers = testcloud.NewTimers(&c.mu)
	if o != nil {
		c.o = *o
	}
	c.o.Project = cmp.Or(c.o.Project, "test-project")
	c.o.PageSize = cmp.Or(c.o.PageSize, maxPage)
	if c.o.Zones == nil {
		c.o.Zones = []string{"us-central1-a", "us-central1-b"}
	}
	if c.o.Capacity == nil {
		c.o.Capacity = &testcloud.Capacity{}
	}
	if c.o.Faults == nil {
		c.o.Faults = &testcloud.Faults{}
	}
	if c.o.Account != "" {
		c.account = newAccount(c.o.Account)
	}
	c.fillCatalog()
	c.routes()
	return c
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
	c.failures[kind] = append(c.failures[kind], errs...)
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
	for _, key := range slices.Sorted(maps.Keys(c.instances)) {
		m := c.instances[key]
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
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, d := range c.disks {
		out = append(out, d.Path)
	}
	slices.Sort(out)
	return out
}

// DiskStates returns all disks, by their paths, for audits.
func (c *Cloud) DiskStates() []DiskState {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []DiskState
	for _, d := range c.disks {
		out = append(out, d.DiskState)
	}
	slices.SortFunc(out, func(a, b DiskState) int { return cmp.Compare(a.Path, b.Path) })
	return out
}

// Print adds to what a machine has printed to its serial port.
func (c *Cloud) Print(handle, text string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.byHandle(handle)
	if err == nil {
		m.print(text)
	}
	return err
}

// byHandle needs c.mu.
func (c *Cloud) byHandle(handle string) (*machine, error) {
	for _, m := range c.instances {
		if m.path() == handle {
			return m, nil
		}
	}
	return nil, nstance.Errorf(nstance.NotFound, "no machine %s", handle)
}

// Reclaim implements [testcloud.Cloud]: the machine's metadata announces the
// preemption, and after the notice the termination action follows.
func (c *Cloud) Reclaim(handle string, notice time.Duration) error {
	c.mu.Lock()
	m, err := c.byHandle(handle)
	if err == nil && !m.spot() {
		err = nstance.Errorf(nstance.Invalid, "machine %s is not preemptible", handle)
	}
	if err != nil {
		c.mu.Unlock()
		return err
	}
	guest, deadline := m.guest, time.Now().Add(notice)
	c.mu.Unlock()
	if guest != nil {
		guest.Announce("preempted", deadline)
	}
	c.after(notice, func() { c.preempt(m) })
	return nil
}

// preempt needs c.mu.
func (c *Cloud) preempt(m *machine) {
	if c.instances[m.key()] != m || m.Status == "TERMINATED" {
		return
	}
	c.systemEvent(m, "compute.instances.preempted", "Instance was preempted.")
	if m.Scheduling.InstanceTerminationAction == "DELETE" {
		c.remove(m, nil)
		return
	}
	c.halt(m, "STOPPING", "TERMINATED", nil)
}

// Fail implements [testcloud.Cloud]: the machine's host breaks.
func (c *Cloud) Fail(handle string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.byHandle(handle)
	if err != nil {
		return err
	}
	c.systemEvent(m, "compute.instances.hostError", "Instance terminated by Compute Engine.")
	c.end(m)
	c.set(m, "TERMINATED")
	return nil
}

// Close implements [testcloud.Cloud].
func (c *Cloud) Close() error {
	c.mu.Lock()
	c.closed = true
	c.timers.Stop()
	for _, m := range c.instances {
		c.end(m)
	}
	c.mu.Unlock()
	c.timers.Wait()
	c.running.Wait()
	return nil
}

// after calls do with c.mu held, after d, unless the cloud is closed by then. A
// negative d is never.
func (c *Cloud) after(d time.Duration, do func()) {
	if d < 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers.After(d, do)
}

// newID needs c.mu.
func (c *Cloud) newID() uint64 {
	c.sequence += 7919
	return c.sequence
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
