package simcloud

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// Machines returns every machine of every owner as it is at this moment, oldest
// first, without latency, faults or lag.
func (c *Cloud) Machines() []nstance.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]nstance.Machine, 0, len(c.fleet.machines))
	for _, m := range c.fleet.order {
		if !m.gone {
			out = append(out, m.view)
		}
	}
	return out
}

// Spec returns what the machine was made from.
func (c *Cloud) Spec(id nstance.InstanceID) (nstance.MachineSpec, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.fleet.machines[id]; m != nil {
		return m.spec, true
	}
	return nstance.MachineSpec{}, false
}

// Reclaim announces that spot machine id is reclaimed, and deletes it when notice
// has passed; a notice of zero deletes it unannounced. Announcing again sets a new
// time. Fails with NotFound when there is no such machine, Conflict
// when it does not run any more, Invalid when it is not spot.
func (c *Cloud) Reclaim(id nstance.InstanceID, notice time.Duration) error {
	return c.fleet.withAlive(id, func(m *machine) error {
		if m.view.Market != nstance.Spot {
			return nstance.FieldError("id", "create it with market spot, or use Kill", "machine %s is not spot capacity", id)
		}
		c.fleet.reclaim(m, notice)
		return nil
	})
}

// ReclaimPool reclaims a share of the spot machines that p covers and that run or boot,
// all with the same notice, as Reclaim does: clouds take capacity back by type and zone.
// The share is rounded up, and which machines go is random. Those that were announced
// before stay as they were. It returns the IDs, oldest machine first. Fails with Invalid when
// fraction is not between 0 and 1.
func (c *Cloud) ReclaimPool(p Pool, fraction float64, notice time.Duration) ([]nstance.InstanceID, error) {
	if !(fraction >= 0 && fraction <= 1) {
		return nil, nstance.FieldError("fraction", "use 0 to 1", "%v is no share", fraction)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var covered []*machine
	for _, m := range c.fleet.order {
		if !m.gone && !m.view.Status.Dead() && !m.announced() && m.pool.Market == nstance.Spot && p.covers(m.pool) {
			covered = append(covered, m)
		}
	}
	n := int(math.Ceil(fraction * float64(len(covered))))
	c.random.Shuffle(len(covered), func(i, j int) { covered[i], covered[j] = covered[j], covered[i] })
	taken := covered[:n]
	slices.SortFunc(taken, func(a, b *machine) int { return cmp.Compare(a.seq, b.seq) })
	var ids []nstance.InstanceID
	for _, m := range taken {
		c.fleet.reclaim(m, notice)
		ids = append(ids, m.view.ID)
	}
	return ids, nil
}

// reclaim announces that m is reclaimed, and has it deleted. It needs the lock.
func (f *fleet) reclaim(m *machine, notice time.Duration) {
	if notice > 0 {
		m.announce(nstance.Notice{Deadline: f.o.Now().Add(notice).UTC()})
	}
	announced := len(m.notices)
	f.later(max(notice, 0), func() {
		if len(m.notices) == announced && !m.gone && !m.view.Status.Dead() { // not withdrawn or moved since
			f.endWithCause(m, nstance.LossReclaimed)
		}
	})
}

// Withdraw cancels the announced reclaim of id: the machine stays. Fails with
// NotFound when there is no such machine or no announced reclaim, Conflict when
// the machine is already being deleted.
func (c *Cloud) Withdraw(id nstance.InstanceID) error {
	return c.fleet.withAlive(id, func(m *machine) error {
		if !m.announced() {
			return nstance.Errorf(nstance.NotFound, "no reclaim is announced for machine %s", id)
		}
		m.announce(nstance.Notice{Deadline: m.notices[len(m.notices)-1].Deadline, Cancelled: true})
		return nil
	})
}

// Kill removes machine id at once, as when its host fails: no notice, no shutdown,
// and every later call fails with NotFound. Fails with NotFound
// when there is no such machine.
func (c *Cloud) Kill(id nstance.InstanceID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.fleet.machines[id]
	if m == nil {
		return nstance.Errorf(nstance.NotFound, "no machine %s", id)
	}
	m.end(nstance.StatusDeleting)
	c.fleet.forget(m)
	return nil
}

// Stop ends machine id with a status in which it does not run, such as
// StatusStopped or StatusFailed. Fails with NotFound when there is no such
// machine, Conflict when it did not run, Invalid for a status of one that does.
func (c *Cloud) Stop(id nstance.InstanceID, s nstance.MachineStatus) error {
	if !s.Dead() {
		return nstance.FieldError("status", "use stopping, stopped, deleting or failed", "%q is no status of a machine that does not run", s)
	}
	return c.fleet.withAlive(id, func(m *machine) error {
		m.end(s)
		return nil
	})
}

// withAlive calls fn, under the lock, with the machine if it runs or boots.
func (f *fleet) withAlive(id nstance.InstanceID, fn func(m *machine) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.machines[id]
	switch {
	case m == nil:
		return nstance.Errorf(nstance.NotFound, "no machine %s", id)
	case m.view.Status.Dead():
		return nstance.Errorf(nstance.Conflict, "machine %s is %s", id, m.view.Status)
	}
	return fn(m)
}

// announced reports whether a reclaim is announced and not withdrawn.
func (m *machine) announced() bool {
	return len(m.notices) > 0 && !m.notices[len(m.notices)-1].Cancelled
}

// announce appends n, completed, to the machine's notices. An announcement and
// its withdrawal share one event ID, and so does one that sets a new time.
func (m *machine) announce(n nstance.Notice) {
	n.Kind, n.Action, n.Source = nstance.Reclaim, "terminate", source
	n.EventID = fmt.Sprintf("%s/%s/%d", source, m.view.ProviderID, m.reclaims)
	if n.Cancelled {
		m.reclaims++
	}
	m.notices = append(m.notices, n)
	close(m.news)
	m.news = make(chan struct{})
}

// source names the notices' origin.
const source = "sim/spot"
