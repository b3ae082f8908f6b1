package plan

import (
	"cmp"
	"slices"

	"github.com/nstance-go/nstance"
)

// fromCrowdedPlace orders members so that those go first that leave the places of a
// group's spread even.
func (c *Census) fromCrowdedPlace(a, b *Member) int {
	if a.Place == "" {
		return 0
	}
	return cmp.Compare(c.seat(b), c.seat(a))
}

// seat returns the number of a counted member in its place. The highest number goes
// first: so each member comes from the place that is the most crowded by then. Within a
// place those go first that the group misses least.
func (c *Census) seat(m *Member) int {
	if c.seats == nil {
		c.seats = c.assignSeats()
	}
	return c.seats[m.ID]
}

func (c *Census) assignSeats() map[nstance.InstanceID]int {
	places := map[string][]*Member{}
	for i := range c.Members {
		if m := &c.Members[i]; c.counts(m) {
			places[m.Place] = append(places[m.Place], m)
		}
	}
	seats := make(map[nstance.InstanceID]int, c.n.counted)
	for _, members := range places {
		slices.SortFunc(members, func(a, b *Member) int {
			return cmp.Or(c.byWorth(b, a), c.byProgress(b, a))
		})
		for i, m := range members {
			seats[m.ID] = i + 1
		}
	}
	return seats
}
