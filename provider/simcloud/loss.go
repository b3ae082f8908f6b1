package simcloud

import (
	"slices"

	"github.com/nstance-go/nstance"
)

// A startFailure is why the next machines of a pool do not start.
type startFailure struct {
	pool  Pool
	cause nstance.LossCause
	left  int
}

// FailStarts accepts the creates of the next n machines that p covers, and ends
// each for cause when it would begin to run, like clouds that allocate capacity
// only then. With n 0 machines of p start again.
func (c *capacity) FailStarts(p Pool, cause nstance.LossCause, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = slices.DeleteFunc(c.failing, func(f startFailure) bool { return f.pool == p })
	if n > 0 {
		c.failing = append(c.failing, startFailure{p, cause, n})
	}
}

// startFailure returns why a machine of p will not start, or "". It needs the lock.
func (c *capacity) startFailure(p Pool) nstance.LossCause {
	for i := range c.failing {
		if f := &c.failing[i]; f.left > 0 && f.pool.covers(p) {
			f.left--
			return f.cause
		}
	}
	return ""
}

// Terminate ends machine id for cause, whether it runs or still boots. One that is
// powered off from inside stays, stopped; any other is deleted. Get returns the
// cause, also when the machine is gone. Fails with NotFound when there is no such
// machine, Conflict when it does not run any more.
func (c *Cloud) Terminate(id nstance.InstanceID, cause nstance.LossCause) error {
	return c.fleet.withAlive(id, func(m *machine) error {
		c.fleet.endWithCause(m, cause)
		return nil
	})
}

// endWithCause needs the lock.
func (f *fleet) endWithCause(m *machine, cause nstance.LossCause) {
	if m.view.Cause == "" {
		m.view.Cause = cause
	}
	if cause == nstance.LossGuest {
		m.end(nstance.StatusStopped)
		return
	}
	f.terminate(m)
}
