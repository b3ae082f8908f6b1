package gcetest

import (
	"net/http"
	"slices"
)

// A powerSwitch stops, starts and deletes machines.
type powerSwitch struct {
	o          *Options
	operations *operationLog
	fleet      *fleet
}

func (p *powerSwitch) delete(q *call) (any, *apiError) {
	if op := p.operations.repeated(q, "delete"); op != nil {
		return op, nil
	}
	m, err := p.fleet.find(q)
	if err != nil {
		return nil, err
	}
	if m.DeletionProtection {
		return nil, refuse(http.StatusBadRequest, "invalid", "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion.'.")
	}
	if m.leaving {
		return nil, refuse(http.StatusForbidden, "rateLimitExceeded", "Operation rate exceeded for resource '%s'. Too frequent operations from the source resource.", m.path())
	}
	op := p.operations.begin(q, m, "delete")
	if failure := p.operations.armed("delete"); failure != nil {
		p.operations.finish(op, failure)
		return op, nil
	}
	m.leaving = true
	graceful := m.Scheduling.GracefulShutdown
	if m.Status == "RUNNING" && graceful != nil && graceful.Enabled && q.query.Get("noGracefulShutdown") != "true" {
		m.set("PENDING_STOP")
		p.fleet.timers.After(graceful.MaxDuration.value(), func() {
			if p.fleet.machines[m.key()] == m {
				p.fleet.remove(m, op)
			}
		})
		return op, nil
	}
	p.fleet.remove(m, op)
	return op, nil
}

// A change is what stop, start, suspend and resume do.
type change struct {
	kind        string
	from        string // the status it works from
	done        string // the status in which there is nothing to do
	through, to string
}

var changes = map[string]change{
	"stop":    {"stop", "RUNNING", "TERMINATED", "STOPPING", "TERMINATED"},
	"suspend": {"suspend", "RUNNING", "", "SUSPENDING", "SUSPENDED"},
	"start":   {"start", "TERMINATED", "RUNNING", "", ""},
	"resume":  {"resume", "SUSPENDED", "", "", ""},
}

// handler returns what answers calls for a change.
func (p *powerSwitch) handler(kind string) func(*call) (any, *apiError) {
	return func(q *call) (any, *apiError) { return p.change(q, changes[kind]) }
}

func (p *powerSwitch) change(q *call, want change) (any, *apiError) {
	if op := p.operations.repeated(q, want.kind); op != nil {
		return op, nil
	}
	m, err := p.fleet.find(q)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Status == want.done:
		op := p.operations.begin(q, m, want.kind)
		p.operations.finish(op, nil)
		return op, nil
	case m.Status == "STOPPING" || m.Status == "SUSPENDING":
		return nil, refuse(http.StatusBadRequest, "resourceNotReady", "The resource '%s' is not ready", m.path())
	case m.Status != want.from:
		return nil, refuse(http.StatusBadRequest, "unsupportedOperation", "Instance '%s' is in state %s. Operation %s is not supported in this state.", m.Name, m.Status, want.kind)
	case want.kind == "suspend" && len(m.GuestAccelerators) > 0:
		return nil, refuse(http.StatusBadRequest, "unsupportedOperation", "Instances with guest accelerators cannot be suspended.")
	case want.to != "" && q.query.Get("discardLocalSsd") == "" && slices.ContainsFunc(m.Disks, (*attachedDisk).scratch):
		return nil, refuse(http.StatusBadRequest, "invalid", "VM has a Local SSD attached but an undefined value for `discard-local-ssd`.")
	}
	op := p.operations.begin(q, m, want.kind)
	failure := p.operations.armed(want.kind)
	if failure == nil && want.to == "" && !p.o.Capacity.Take(m.shape) {
		failure = stockout(m)
	}
	switch {
	case failure != nil:
		p.operations.finish(op, failure)
	case want.to != "":
		p.fleet.halt(m, want.through, want.to, op)
	default:
		m.placed = true
		p.fleet.launch(m, op)
	}
	return op, nil
}
