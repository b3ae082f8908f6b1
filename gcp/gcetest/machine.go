package gcetest

import (
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// A machine is an instance with what the cloud keeps beside it.
type machine struct {
	instance
	project string
	zone    string
	visible time.Time    // when answers begin to show it
	arch    nstance.Arch // of its type; empty: not reported
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

func (m *machine) listName() string { return m.Name }

func (m *machine) field(path string) (string, bool) {
	if key, ok := strings.CutPrefix(path, "labels."); ok {
		return m.Labels[key], true
	}
	switch path {
	case "name":
		return m.Name, true
	case "id":
		return m.ID, true
	case "status":
		return m.Status, true
	case "zone":
		return m.Zone, true
	case "machineType":
		return m.MachineType, true
	case "scheduling.preemptible":
		return strconv.FormatBool(m.Scheduling.Preemptible), true
	}
	return "", false
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

// A fleet is the machines of the project.
type fleet struct {
	o          *Options
	mu         *sync.Mutex
	timers     *testcloud.Timers
	operations *operationLog
	disks      *diskSet
	forgotten  func(*machine)      // is called when a machine is gone
	machines   map[string]*machine // by zone/name
	closed     bool
	running    sync.WaitGroup // of what starts and ends guests
}

// close ends all guests and timers.
func (f *fleet) close() {
	f.closed = true
	f.timers.Stop()
	for _, m := range f.machines {
		f.end(m)
	}
}

// find returns the machine that a call is about, by name or number.
func (f *fleet) find(q *call) (*machine, *apiError) {
	if m := f.machines[q.zone+"/"+q.name]; m != nil && !time.Now().Before(m.visible) {
		return m, nil
	}
	if q.name != "" && strings.Trim(q.name, "0123456789") == "" {
		for _, m := range f.machines {
			if m.ID == q.name && m.zone == q.zone {
				return m, nil
			}
		}
	}
	return nil, notFound("projects/" + f.o.Project + "/zones/" + q.zone + "/instances/" + q.name)
}

func (f *fleet) list(q *call) (any, *apiError) {
	now := time.Now()
	var all []resource
	for _, m := range f.machines {
		if m.zone == q.zone && !now.Before(m.visible) {
			all = append(all, m)
		}
	}
	return f.o.list(q, "compute#instanceList", all)
}

func (f *fleet) get(q *call) (any, *apiError) {
	m, err := f.find(q)
	if err != nil {
		return nil, err
	}
	return &m.instance, nil
}

func (m *machine) set(status string) {
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
// done then.
func (f *fleet) launch(m *machine, op *operation) {
	m.set("PROVISIONING")
	f.timers.After(f.o.Delays.Start/2, func() {
		if f.machines[m.key()] == m && m.Status == "PROVISIONING" {
			m.set("STAGING")
		}
	})
	f.timers.After(f.o.Delays.Start, func() {
		if f.machines[m.key()] != m || m.Status != "STAGING" && m.Status != "PROVISIONING" {
			f.operations.finish(op, &OperationError{"RESOURCE_ALREADY_EXISTS", "The resource '" + m.path() + "' was deleted while it was created."})
			return
		}
		m.set("RUNNING")
		m.print("Booting " + m.Name + "\n")
		f.operations.finish(op, nil)
		f.boot(m)
	})
}

// boot starts what is inside a machine.
func (f *fleet) boot(m *machine) {
	m.boots++
	if f.o.Hypervisor == nil {
		return
	}
	boots := m.boots
	b := testcloud.Boot{
		Handle: m.path(), ID: nstance.InstanceID(m.Labels["nstance-instance-id"]), UserData: m.userData(),
		Spot: m.spot(), Type: m.shape.Type, Zone: m.zone, Address: m.address,
		Exited: func() { f.exited(m, boots) },
	}
	f.running.Go(func() {
		guest, err := f.o.Hypervisor.Start(b)
		f.mu.Lock()
		defer f.mu.Unlock()
		current := !f.closed && f.machines[m.key()] == m && m.boots == boots && m.Status == "RUNNING"
		switch {
		case err != nil:
			m.print(err.Error() + "\n")
		case current:
			m.guest = guest
		default:
			f.running.Go(guest.Kill)
		}
	})
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
func (f *fleet) exited(m *machine, boots int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.machines[m.key()] != m || m.boots != boots || m.Status != "RUNNING" {
		return
	}
	m.guest = nil
	f.operations.systemEvent(m, "compute.instances.guestTerminate", "Instance terminated by guest OS shutdown.")
	f.halt(m, "STOPPING", "TERMINATED", nil)
}

// end kills what is inside a machine and gives its capacity back.
func (f *fleet) end(m *machine) {
	m.boots++
	if guest := m.guest; guest != nil {
		m.guest = nil
		f.running.Go(guest.Kill)
	}
	if m.placed {
		m.placed = false
		f.o.Capacity.Release(m.shape)
	}
}

// halt takes a machine through one status to another.
func (f *fleet) halt(m *machine, through, to string, op *operation) {
	m.set(through)
	f.end(m)
	f.timers.After(f.o.Delays.Stop, func() {
		if f.machines[m.key()] == m && m.Status == through {
			m.set(to)
		}
		f.operations.finish(op, nil)
	})
}

// remove deletes a machine and those of its disks that go with it.
func (f *fleet) remove(m *machine, op *operation) {
	m.set("STOPPING")
	f.end(m)
	f.timers.After(f.o.Delays.Delete, func() {
		f.forget(m)
		f.operations.finish(op, nil)
	})
}

func (f *fleet) forget(m *machine) {
	if f.machines[m.key()] != m {
		return
	}
	f.end(m)
	delete(f.machines, m.key())
	for _, s := range m.subnets {
		s.release(m.key())
	}
	f.disks.remove(m, false)
	f.forgotten(m)
}

// preempt takes a spot machine back.
func (f *fleet) preempt(m *machine) {
	if f.machines[m.key()] != m || m.Status == "TERMINATED" {
		return
	}
	f.operations.systemEvent(m, "compute.instances.preempted", "Instance was preempted.")
	if m.Scheduling.InstanceTerminationAction == "DELETE" {
		f.remove(m, nil)
		return
	}
	f.halt(m, "STOPPING", "TERMINATED", nil)
}

// serial answers with the part of a machine's output that is still kept.
func (f *fleet) serial(q *call) (any, *apiError) {
	m, refused := f.find(q)
	if refused != nil {
		return nil, refused
	}
	var start int64
	if s := q.query.Get("start"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, invalidField("start", s, "Must be a number.")
		}
		start = n
	}
	first := m.printed - int64(len(m.serial))
	if start < 0 {
		start += m.printed
	}
	start = min(max(start, first), m.printed)
	return map[string]any{
		"kind": "compute#serialPortOutput", "contents": string(m.serial[start-first:]), "start": strconv.FormatInt(start, 10),
		"next": strconv.FormatInt(m.printed, 10), "selfLink": m.SelfLink + "/serialPort",
	}, nil
}

func lastPart(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
