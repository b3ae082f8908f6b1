package drain

import "github.com/nstance-go/nstance"

// retired remembers which generations are over, for the latest of them only:
// what it forgets could be started again by a call that was under way for
// thousands of drains, and would end at its deadline like any other.
type retired struct {
	limit int
	upTo  map[nstance.InstanceID]uint64 // this generation and all before it
	order []nstance.InstanceID          // a ring once it is full
	next  int
}

func (r *retired) add(id nstance.InstanceID, generation uint64) {
	if _, known := r.upTo[id]; !known {
		r.remember(id)
	}
	r.upTo[id] = generation
}

func (r *retired) remember(id nstance.InstanceID) {
	if len(r.order) < r.limit {
		r.order = append(r.order, id)
		return
	}
	delete(r.upTo, r.order[r.next])
	r.order[r.next] = id
	r.next = (r.next + 1) % r.limit
}
