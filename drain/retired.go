package drain

import "github.com/nstance-go/nstance"

// retired remembers the ended generations of the latest drains. An ended drain
// that it has forgotten could be started again only by a Start that was under way
// during thousands of other drains. Such a drain would end at its deadline.
type retired struct {
	limit      int
	upTo       map[nstance.InstanceID]uint64 // the last ended generation
	ring       []nstance.InstanceID
	nextInRing int
}

func (r *retired) add(id nstance.InstanceID, generation uint64) {
	if _, known := r.upTo[id]; !known {
		r.remember(id)
	}
	r.upTo[id] = generation
}

func (r *retired) remember(id nstance.InstanceID) {
	if len(r.ring) < r.limit {
		r.ring = append(r.ring, id)
		return
	}
	delete(r.upTo, r.ring[r.nextInRing])
	r.ring[r.nextInRing] = id
	r.nextInRing = (r.nextInRing + 1) % r.limit
}
