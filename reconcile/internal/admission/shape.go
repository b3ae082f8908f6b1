package admission

import "time"

// A Choice says why a create has its shape, and not an earlier one that is permitted.
type Choice string

// The choices. Of several reasons the one of the first shape that was passed over counts.
const (
	ChoiceListed    Choice = "listed"    // it is the first one
	ChoiceSpread    Choice = "spread"    // earlier ones have their share of the group
	ChoiceCrowded   Choice = "crowded"   // it has its share too: none with a smaller one has capacity
	ChoiceReclaimed Choice = "reclaimed" // the cloud has just reclaimed machines of an earlier one
	ChoiceAddresses Choice = "addresses" // the subnet of an earlier one has no free address
	ChoiceCapacity  Choice = "capacity"  // an earlier one is sold out
	ChoiceFallback  Choice = "fallback"  // on-demand, because spot is sold out
	ChoiceRepeated  Choice = "repeated"  // the provider throttled the same create before
	ChoiceAvoided   Choice = "avoided"   // the pool of an earlier one is avoided
)

// findShape returns where to create what is requested, and why there: the first shape
// that is not sold out. With a spread, shapes whose place has its share of the group come
// after the others. Those that were just reclaimed come after these, and subnets without
// a free address last.
func (q *Queue) findShape(r *Request, class Class, now time.Time) (Shape, Choice, *Wait) {
	subnets := q.addresses.order(r.Subnets, now)
	shapes, more := q.permitted(r, subnets, now)
	if len(shapes) == 0 {
		return Shape{}, "", q.avoidedWait(r, subnets, now)
	}
	first := shapes[0]
	crowd := q.pools.crowdOf(r.Spread)
	crowd.sort(shapes)
	i, passedOver, wait := q.firstFree(shapes, class, now)
	if wait != nil {
		wait.Until = earliest(wait.Until, more)
		q.addAvoided(wait, r, now)
		return Shape{}, "", wait
	}
	switch shape := shapes[i]; {
	case shape.Market != first.Market:
		return shape, ChoiceFallback, nil
	case q.prefersAvoided(r, subnets, now):
		return shape, ChoiceAvoided, nil
	case crowd.excess(shape) > 0:
		return shape, ChoiceCrowded, nil
	case passedOver != "":
		return shape, passedOver, nil
	case shape != first:
		return shape, ChoiceSpread, nil
	default:
		return shape, ChoiceListed, nil
	}
}

// firstFree returns the index of the first shape that may have capacity, and why the
// first one was passed over, if it was; or what to wait for.
func (q *Queue) firstFree(shapes []Shape, class Class, now time.Time) (int, Choice, *Wait) {
	wait := &Wait{Kind: WaitCapacity, Shape: shapes[0]}
	reclaimed, full := -1, -1
	var passedOver Choice // shapes[0]
	for i, shape := range shapes {
		s := q.capacity[shape]
		if s == nil {
			s = &shapeState{}
		}
		busy, until := s.busy(class, now)
		why := ChoiceCapacity
		switch {
		case s.soldOut(now) && now.Before(s.retryAt):
			wait.Until = earliest(wait.Until, s.retryAt)
		case busy && (s.soldOut(now) || class == Loss):
			wait.Until = earliest(wait.Until, until)
		case busy:
			return 0, "", &Wait{Kind: WaitAnswer, Shape: shape, Until: until}
		case q.addresses.full(shape.Subnet, now):
			full, why = firstOf(full, i), ChoiceAddresses
		case q.pools.reclaimed(shape, now):
			reclaimed, why = firstOf(reclaimed, i), ChoiceReclaimed
		default:
			return i, passedOver, nil
		}
		if i == 0 {
			passedOver = why
		}
	}
	for _, i := range []int{reclaimed, full} {
		switch {
		case i == 0:
			return i, "", nil
		case i > 0:
			return i, passedOver, nil
		}
	}
	return 0, "", wait
}

// firstOf returns i unless there was one before it.
func firstOf(before, i int) int {
	if before >= 0 {
		return before
	}
	return i
}
