package simcloud

import (
	"time"

	"github.com/nstance-go/nstance"
)

// A Pool is a kind of capacity. An empty field of a limit's pool means any. Of several
// limits that cover a machine, each must have capacity.
type Pool struct {
	InstanceType string
	Zone         string
	Market       nstance.MarketType
}

// capacity is how many machines there can be.
type capacity struct {
	*core
	counts  map[Pool]int
	limits  map[Pool]int
	failing []startFailure
}

// SetCapacity changes the limit of a pool, or adds it; a negative n removes it.
// Machines that exist stay.
func (c *capacity) SetCapacity(p Pool, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n < 0 {
		delete(c.limits, p)
		return
	}
	c.limits[p] = n
}

func (p Pool) covers(q Pool) bool {
	return (p.InstanceType == "" || p.InstanceType == q.InstanceType) &&
		(p.Zone == "" || p.Zone == q.Zone) && (p.Market == "" || p.Market == q.Market)
}

// check fails with Capacity or Quota when p has none for one more machine.
// It needs the lock.
func (c *capacity) check(p Pool) error {
	if c.o.Quota > 0 && c.count(Pool{}) >= c.o.Quota {
		return nstance.Errorf(nstance.Quota, "the account's %d machines are used up", c.o.Quota)
	}
	for limited, n := range c.limits {
		if limited.covers(p) && c.count(limited) >= n {
			return nstance.Errorf(nstance.Capacity, "no %s capacity for %q in zone %s", p.Market, p.InstanceType, p.Zone)
		}
	}
	return nil
}

func (c *capacity) count(p Pool) (n int) {
	for q, machines := range c.counts {
		if p.covers(q) {
			n += machines
		}
	}
	return n
}

const defaultZone = "sim-a"

func (c *capacity) poolOf(s nstance.MachineSpec) Pool {
	p := Pool{InstanceType: s.InstanceType, Zone: defaultZone, Market: s.Market}
	if p.Market == "" {
		p.Market = nstance.OnDemand
	}
	if other := c.o.Substitute[p.Market]; other != "" {
		p.Market = other
	}
	if c.o.Zones != nil {
		p.Zone = c.o.Zones[s.Subnet]
	}
	return p
}

// A Bucket admits Burst calls at once and PerSecond in the long run; the others
// fail with Throttled.
type Bucket struct {
	PerSecond float64
	Burst     int
}

type bucket struct {
	Bucket
	tokens float64
	at     time.Time
}

func (b *bucket) take(now time.Time) bool {
	if !b.at.IsZero() {
		b.tokens = min(float64(b.Burst), b.tokens+now.Sub(b.at).Seconds()*b.PerSecond)
	}
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// throttled needs the lock.
func (c *calls) throttled(op Op) bool {
	now := time.Now()
	for _, key := range []Op{OpAny, op} {
		if b := c.buckets[key]; b != nil && !b.take(now) {
			return true
		}
	}
	return false
}
