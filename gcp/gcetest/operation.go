package gcetest

import (
	"net/http"
	"strings"
	"time"
)

// maxOperations is how many operations the cloud remembers; older ones that are
// done are forgotten.
const maxOperations = 20_000

// An operationLog is the operations of the project.
type operationLog struct {
	o        *Options
	sequence *sequence
	all      []*operation // oldest first
	requests map[string]*operation
	failures map[string][]OperationError // by operation type, for the next ones
}

// begin starts an operation on a machine.
func (l *operationLog) begin(q *call, m *machine, kind string) *operation {
	return l.beginAt(q, kind, m.path(), m.ID)
}

func (l *operationLog) beginAt(q *call, kind, target, id string) *operation {
	now := stamp(time.Now().Add(l.o.ClockOffset))
	number := l.sequence.next()
	op := &operation{
		Kind: "compute#operation", ID: decimal(number), Name: "operation-" + decimal(number),
		Zone: base + "projects/" + l.o.Project + "/zones/" + q.zone, ClientOperationID: q.request, OperationType: kind,
		TargetLink: base + target, TargetID: id, Status: "RUNNING", User: "nstance@" + l.o.Project + ".iam.gserviceaccount.com",
		InsertTime: now, StartTime: now, zone: q.zone,
	}
	op.SelfLink = op.Zone + "/operations/" + op.Name
	if q.request != "" {
		l.requests[kind+" "+q.request] = op
	}
	l.all = append(l.all, op)
	if len(l.all) > maxOperations {
		delete(l.requests, l.all[0].OperationType+" "+l.all[0].ClientOperationID)
		l.all = l.all[1:]
	}
	return op
}

// repeated returns the operation that a request with the same ID started.
func (l *operationLog) repeated(q *call, kind string) *operation {
	return l.requests[kind+" "+q.request]
}

// armed returns the failure armed for the next operation of a kind, if there is
// one.
func (l *operationLog) armed(kind string) *OperationError {
	armed := l.failures[kind]
	if len(armed) == 0 {
		return nil
	}
	l.failures[kind] = armed[1:]
	return &armed[0]
}

// finish ends an operation, which may be nil, with an error if there is one.
func (l *operationLog) finish(op *operation, failure *OperationError) {
	if op == nil || op.Status == "DONE" {
		return
	}
	op.Status, op.Progress, op.EndTime = "DONE", 100, stamp(time.Now().Add(l.o.ClockOffset))
	if failure != nil {
		op.Error = &operationError{Errors: []OperationError{*failure}}
		op.HTTPErrorStatusCode, op.HTTPErrorMessage = httpStatus(failure.Code)
	}
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
// of the user system show it.
func (l *operationLog) systemEvent(m *machine, kind, message string) {
	op := l.begin(&call{zone: m.zone}, m, kind)
	op.Name, op.User, op.StatusMessage = "systemevent-"+op.ID, "system", message
	op.SelfLink = op.Zone + "/operations/" + op.Name
	l.finish(op, nil)
}

func (l *operationLog) list(q *call) (any, *apiError) {
	var all []resource
	for _, op := range l.all {
		if op.zone == q.zone {
			all = append(all, op)
		}
	}
	return l.o.list(q, "compute#operationList", all)
}

func (l *operationLog) get(q *call) (any, *apiError) {
	for _, op := range l.all {
		if op.zone == q.zone && (op.Name == q.name || op.ID == q.name) {
			return op, nil
		}
	}
	return nil, notFound("projects/" + l.o.Project + "/zones/" + q.zone + "/operations/" + q.name)
}

func (op *operation) listName() string { return op.Name }

func (op *operation) field(path string) (string, bool) {
	fields := map[string]string{
		"name": op.Name, "id": op.ID, "status": op.Status, "operationType": op.OperationType, "targetLink": op.TargetLink,
		"targetId": op.TargetID, "clientOperationId": op.ClientOperationID, "user": op.User,
	}
	v, known := fields[path]
	return v, known
}
