package place

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// countAge is how old the count of free addresses may become while creates
	// choose among subnets.
	countAge = 30 * time.Second

	// countMemory is how long an old count is better than none.
	countMemory = 10 * time.Minute
)

// An addressCount knows how many addresses are free in subnets, less those that
// were taken since the provider was asked.
type addressCount struct {
	free    map[string]int
	askedAt time.Time
	old     bool // it was older than countAge when it was used last
}

// order returns subnets with those first that have the most free addresses;
// equals, and those of which nothing is known, as they are configured. Full ones
// come last: an address may have been freed since.
func (c *addressCount) order(subnets []string, now time.Time) []string {
	if len(subnets) < 2 {
		return subnets
	}
	c.old = now.Sub(c.askedAt) > countAge
	if now.Sub(c.askedAt) > countMemory {
		return subnets
	}
	rank := func(s string) int {
		_, known := c.free[s]
		switch {
		case c.full(s, now):
			return 2
		case !known:
			return 1
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(subnets), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(c.free[b], c.free[a]))
	})
}

// full reports whether a subnet is known to have no free address.
func (c *addressCount) full(subnet string, now time.Time) bool {
	free, known := c.free[subnet]
	return known && free <= 0 && now.Sub(c.askedAt) <= countMemory
}

func (c *addressCount) change(subnet string, by int) {
	if _, known := c.free[subnet]; known {
		c.free[subnet] += by
	}
}

// SetAddresses replaces what is known of free addresses by an answer of the
// provider, which was asked then. Addresses that it may not have counted as taken
// are taken again with TakeAddress.
func (m *Map) SetAddresses(free map[string]int, askedAt time.Time) {
	m.addresses = addressCount{free: maps.Clone(free), askedAt: askedAt}
}

// AddressesOld reports whether the provider should be asked again: since the last
// answer a request chose among subnets by a count older than 30 s.
func (m *Map) AddressesOld() bool { return m.addresses.old }

// TakeAddress counts an address that a machine takes. Grants do that themselves.
func (m *Map) TakeAddress(subnet string) { m.addresses.change(subnet, -1) }

// ReturnAddress counts an address that a granted create does not take after all.
func (m *Map) ReturnAddress(subnet string) { m.addresses.change(subnet, 1) }
