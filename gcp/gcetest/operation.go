package gcetest

import (
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strings"
	"time"
)

// begin starts an operation on a machine. It needs c.mu.
func (c *Cloud) begin(q *call, m *machine, kind string) *operation {
	return c.beginAt(q, kind, m.path(), m.ID)
}

// beginAt needs c.mu.
func (c *Cloud) beginAt(q *call, kind, target, id string) *operation {
	base := "https://www.googleapis.com/compute/v1/"
	now := stamp(time.Now().Add(c.o.ClockOffset))
	number := c.newID()
	op := &operation{
		Kind: "compute#operation", ID: decimal(number), Name: "operation-" + decimal(number),
		Zone: base + "projects/" + c.o.Project + "/zones/" + q.zone, ClientOperationID: q.request, OperationType: kind,
		TargetLink: base + target, TargetID: id, Status: "RUNNING", User: "nstance@" + c.o.Project + ".iam.gserviceaccount.com",
		InsertTime: now, StartTime: now, zone: q.zone,
	}
	op.SelfLink = op.Zone + "/operations/" + op.Name
	c.remember(op)
	if q.request != "" {
		c.requests[kind+" "+q.request] = op
	}
	return op
}

// remember needs c.mu.
func (c *Cloud) remember(op *operation) {
	c.operations = append(c.operations, op)
	if len(c.operations) <= maxOperations {
		return
	}
	old := c.operations[0]
	c.operations = c.operations[1:]
	delete(c.requests, old.OperationType+" "+old.ClientOperationID)
}

// repeated returns the operation that a request with the same ID started. It
// needs c.mu.
func (c *Cloud) repeated(q *call, kind string) *operation {
	if q.request == "" {
		return nil
	}
	return c.requests[kind+" "+q.request]
}

// armed returns the failure armed for the next operation of a kind, if there is
// one. It needs c.mu.
func (c *Cloud) armed(kind string) *OperationError {
	armed := c.failures[kind]
	if len(armed) == 0 {
		return nil
	}
	c.failures[kind] = armed[1:]
	return &armed[0]
}

// finish ends an operation, which may be nil. It needs c.mu.
func (c *Cloud) finish(op *operation) {
	if op == nil || op.Status == "DONE" {
		return
	}
	op.Status, op.Progress, op.EndTime = "DONE", 100, stamp(time.Now().Add(c.o.ClockOffset))
}

// fail ends an operation, which may be nil, with an error. It needs c.mu.
func (c *Cloud) fail(op *operation, err *OperationError) {
	if op == nil || op.Status == "DONE" {
		return
	}
	c.finish(op)
	op.Error = &operationError{Errors: []OperationError{*err}}
	op.HTTPErrorStatusCode, op.HTTPErrorMessage = httpStatus(err.Code)
}

func httpStatus(code string) (int, string) {
	switch {
	case strings.Contains(code, "EXHAUSTED"):
		return http.StatusServiceUnavailable, "SERVICE UNAVAILABLE"
	case strings.Contains(code, "QUOTA"):
		return http.StatusForbidden, "FORBIDDEN"
	case code == "INTERNAL_ERROR":
		return http.StatusInternalServerError, "INTERNAL SERVER ERROR"
	case code == "RESOURCE_ALREADY_EXISTS":
		return http.StatusConflict, "CONFLICT"
	}
	return http.StatusBadRequest, "BAD REQUEST"
}

// systemEvent records what the cloud itself did to a machine, as the operations
// of the user system show it. It needs c.mu.
func (c *Cloud) systemEvent(m *machine, kind, message string) {
	op := c.begin(&call{zone: m.zone}, m, kind)
	op.Name, op.User, op.StatusMessage = "systemevent-"+op.ID, "system", message
	op.SelfLink = op.Zone + "/operations/" + op.Name
	c.finish(op)
}

func (c *Cloud) getOperation(q *call) (any, *apiError) {
	for _, op := range c.operations {
		if op.zone == q.zone && (op.Name == q.name || op.ID == q.name) {
			return op, nil
		}
	}
	return nil, notFound("projects/" + c.o.Project + "/zones/" + q.zone + "/operations/" + q.name)
}

// carryOut carries out an accepted insert: with capacity and addresses the machine
// starts; without, it is shown for a while, and the operation fails. It needs
// c.mu.
func (c *Cloud) carryOut(m *machine, op *operation) {
	failure := c.armed("insert")
	if failure == nil {
		failure = c.place(m)
	}
	if failure == nil {
		c.launch(m, op)
		return
	}
	c.set(m, "PROVISIONING")
	c.timers.After(c.o.Delays.Start, func() {
		c.forget(m)
		for _, d := range m.Disks {
			delete(c.disks, m.zone+"/"+lastPart(d.Source))
		}
		c.fail(op, failure)
	})
}

// place gives a machine addresses and capacity. It needs c.mu.
func (c *Cloud) place(m *machine) *OperationError {
	for i, s := range m.subnets {
		if failure := s.connect(m, m.NetworkInterfaces[i]); failure != nil {
			return failure
		}
	}
	if failure := c.seat(m); failure != nil {
		return failure
	}
	if !c.o.Capacity.Take(m.shape) {
		return stockout(m)
	}
	m.placed = true
	return nil
}

func stockout(m *machine) *OperationError {
	return &OperationError{"ZONE_RESOURCE_POOL_EXHAUSTED", "The zone 'projects/" + m.project + "/zones/" + m.zone + "' does not have enough resources available to fulfill the request.  Try a different zone, or try again later."}
}

// print returns a new fingerprint. It needs c.mu.
func (c *Cloud) print() string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, c.newID()))
}
