package gcetest

import (
	"net/http"
	"slices"
	"strconv"
)

func (c *Cloud) delete(q *call) (any, *apiError) {
	if op := c.repeated(q, "delete"); op != nil {
		return op, nil
	}
	m, err := c.find(q)
	if err != nil {
		return nil, err
	}
	if m.DeletionProtection {
		return nil, refuse(http.StatusBadRequest, "invalid", "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion.'.")
	}
	if m.leaving {
		return nil, refuse(http.StatusForbidden, "rateLimitExceeded", "Operation rate exceeded for resource '%s'. Too frequent operations from the source resource.", m.path())
	}
	op := c.begin(q, m, "delete")
	if failure := c.armed("delete"); failure != nil {
		c.fail(op, failure)
		return op, nil
	}
	m.leaving = true
	graceful := m.Scheduling.GracefulShutdown
	if m.Status == "RUNNING" && graceful != nil && graceful.Enabled && q.query.Get("noGracefulShutdown") != "true" {
		c.set(m, "PENDING_STOP")
		c.timers.After(graceful.MaxDuration.value(), func() {
			if c.instances[m.key()] == m {
				c.remove(m, op)
			}
		})
		return op, nil
	}
	c.remove(m, op)
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

func (c *Cloud) stop(q *call) (any, *apiError)    { return c.change(q, changes["stop"]) }
func (c *Cloud) start(q *call) (any, *apiError)   { return c.change(q, changes["start"]) }
func (c *Cloud) suspend(q *call) (any, *apiError) { return c.change(q, changes["suspend"]) }
func (c *Cloud) resume(q *call) (any, *apiError)  { return c.change(q, changes["resume"]) }

func (c *Cloud) change(q *call, want change) (any, *apiError) {
	if op := c.repeated(q, want.kind); op != nil {
		return op, nil
	}
	m, err := c.find(q)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Status == want.done:
		op := c.begin(q, m, want.kind)
		c.finish(op)
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
	op := c.begin(q, m, want.kind)
	failure := c.armed(want.kind)
	if want.to != "" {
		if failure != nil {
			c.fail(op, failure)
		} else {
			c.halt(m, want.through, want.to, op)
		}
		return op, nil
	}
	if failure == nil && !c.o.Capacity.Take(m.shape) {
		failure = stockout(m)
	}
	if failure != nil {
		c.fail(op, failure)
		return op, nil
	}
	m.placed = true
	c.launch(m, op)
	return op, nil
}

// serial answers with the part of a machine's output that is still kept.
func (c *Cloud) serial(q *call) (any, *apiError) {
	m, refused := c.find(q)
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
