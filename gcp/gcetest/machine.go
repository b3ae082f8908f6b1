package gcetest

import (
	"net/netip"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// A machine is an instance with what the cloud keeps beside it.
type machine struct {
	instance
	project string
	zone    string
	visible time.Time // when answers begin to show it
	shape   testcloud.Shape
	placed  bool // it takes capacity of its shape
	leaving bool // a delete is under way
	guest   testcloud.Guest
	boots   int        // distinguishes guests of earlier starts
	subnets []*subnet  // of its network interfaces
	address netip.Addr // of the first one
	node    *NodeGroup // nil: on a shared host
	serial  []byte     // the last of what it printed
	printed int64      // how much it printed in all
}

// A disk exists by itself: it may outlive its machine.
type disk struct {
	DiskState
	zone string
	name string
}

// A DiskState is what there is of a disk, for audits.
type DiskState struct {
	Path       string
	Type       string // empty: the cloud's default
	SizeGB     int64  // 0: that of its source
	IOPS       int64  // 0: the cloud's default
	Throughput int64  // MiB a second; 0: the cloud's default
	Key        string // of Cloud KMS; empty: Google's own
	Snapshot   string // that it was created from
	Labels     map[string]string
}

func (m *machine) key() string { return m.zone + "/" + m.Name }

func (m *machine) path() string {
	return "projects/" + m.project + "/zones/" + m.zone + "/instances/" + m.Name
}

func (m *machine) spot() bool { return m.Scheduling.Preemptible }

// maxSerial is how much of a serial port's output is kept.
const maxSerial = 1 << 20

func (m *machine) print(text string) {
	m.printed += int64(len(text))
	m.serial = append(m.serial, text...)
	if n := len(m.serial) - maxSerial; n > 0 {
		m.serial = m.serial[n:]
	}
}

// find returns the machine that a call is about, by name or number. It needs
// c.mu.
func (c *Cloud) find(q *call) (*machine, *apiError) {
	if m := c.instances[q.zone+"/"+q.name]; m != nil && !time.Now().Before(m.visible) {
		return m, nil
	}
	if q.name != "" && strings.Trim(q.name, "0123456789") == "" {
		for _, m := range c.instances {
			if m.ID == q.name && m.zone == q.zone {
				return m, nil
			}
		}
	}
	return nil, notFound("projects/" + c.o.Project + "/zones/" + q.zone + "/instances/" + q.name)
}

func (c *Cloud) get(q *call) (any, *apiError) {
	m, err := c.find(q)
	if err != nil {
		return nil, err
	}
	return &m.instance, nil
}

// set needs c.mu.
func (c *Cloud) set(m *machine, status string) {
	m.Status = status
	switch now := stamp(time.Now()); status {
	case "RUNNING":
		m.LastStartTimestamp = now
	case "TERMINATED":
		m.LastStopTimestamp = now
	case "SUSPENDED":
		m.LastSuspendedTimestamp = now
	}
}

// launch takes a machine from PROVISIONING to RUNNING. op, which may be nil, is
// done then. It needs c.mu.
func (c *Cloud) launch(m *machine, op *operation) {
	c.set(m, "PROVISIONING")
	c.timers.After(c.o.Delays.Start/2, func() {
		if c.instances[m.key()] == m && m.Status == "PROVISIONING" {
			c.set(m, "STAGING")
		}
	})
	c.timers.After(c.o.Delays.Start, func() {
		if c.instances[m.key()] != m || m.Status != "STAGING" && m.Status != "PROVISIONING" {
			c.fail(op, &OperationError{"RESOURCE_ALREADY_EXISTS", "The resource '" + m.path() + "' was deleted while it was created."})
			return
		}
		c.set(m, "RUNNING")
		m.print("Booting " + m.Name + "\n")
		c.finish(op)
		c.boot(m)
	})
}

// boot starts what is inside a machine, without c.mu, which the caller has: a
// hypervisor may take its time.
func (c *Cloud) boot(m *machine) {
	m.boots++
	if c.o.Hypervisor == nil {
		return
	}
	boots := m.boots
	b := testcloud.Boot{
		Handle: m.path(), ID: nstance.InstanceID(m.Labels["nstance-instance-id"]), UserData: m.userData(),
		Spot: m.spot(), Type: m.shape.Type, Zone: m.zone, Address: m.address,
		Exited: func() { c.exited(m, boots) },
	}
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		guest, err := c.o.Hypervisor.Start(b)
		c.mu.Lock()
		current := !c.closed && c.instances[m.key()] == m && m.boots == boots && m.Status == "RUNNING"
		if err == nil && current {
			m.guest = guest
		}
		if err != nil {
			m.print(err.Error() + "\n")
		}
		c.mu.Unlock()
		if err == nil && !current {
			guest.Kill()
		}
	}()
}

func (m *machine) userData() []byte {
	if m.Metadata == nil {
		return nil
	}
	for _, key := range []string{"user-data", "startup-script"} {
		for _, item := range m.Metadata.Items {
			if item.Key == key {
				return []byte(item.Value)
			}
		}
	}
	return nil
}

// exited records that a machine powered itself off.
func (c *Cloud) exited(m *machine, boots int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.instances[m.key()] != m || m.boots != boots || m.Status != "RUNNING" {
		return
	}
	m.guest = nil
	c.systemEvent(m, "compute.instances.guestTerminate", "Instance terminated by guest OS shutdown.")
	c.halt(m, "STOPPING", "TERMINATED", nil)
}

// end kills what is inside a machine and gives its capacity back. It needs c.mu.
func (c *Cloud) end(m *machine) {
	m.boots++
	if guest := m.guest; guest != nil {
		m.guest = nil
		c.running.Go(guest.Kill)
	}
	if m.placed {
		m.placed = false
		c.o.Capacity.Release(m.shape)
	}
}

// halt takes a machine through one status to another. It needs c.mu.
func (c *Cloud) halt(m *machine, through, to string, op *operation) {
	c.set(m, through)
	c.end(m)
	c.timers.After(c.o.Delays.Stop, func() {
		if c.instances[m.key()] == m && m.Status == through {
			c.set(m, to)
		}
		c.finish(op)
	})
}

// remove deletes a machine and those of its disks that go with it. It needs
// c.mu.
func (c *Cloud) remove(m *machine, op *operation) {
	c.set(m, "STOPPING")
	c.end(m)
	c.timers.After(c.o.Delays.Delete, func() {
		c.forget(m)
		c.finish(op)
	})
}

// forget needs c.mu.
func (c *Cloud) forget(m *machine) {
	if c.instances[m.key()] != m {
		return
	}
	c.end(m)
	delete(c.instances, m.key())
	for _, s := range m.subnets {
		s.release(m.key())
	}
	for _, d := range m.Disks {
		if d.AutoDelete {
			delete(c.disks, m.zone+"/"+lastPart(d.Source))
		}
	}
	for _, g := range c.groups {
		g.drop(m.Name, m.zone)
	}
}

func lastPart(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
