package admission

import (
	"maps"
	"slices"
	"time"
)

// warnedMemory is how long a recommendation to leave a pool matters for machines that are
// made there after it.
const warnedMemory = longestMemory

// Warned records that the cloud recommends to leave the pool of a shape. It counts as a
// reclaim there. An empty zone is not known.
func (q *Queue) Warned(shape Shape, zone string, now time.Time) {
	q.Reclaimed(shape, zone, now)
	warned := q.pools.warned
	maps.DeleteFunc(warned, func(_ pool, since time.Time) bool { return now.Sub(since) >= warnedMemory })
	for _, at := range []pool{shape.inZone(""), q.pools.poolOf(shape), q.pools.poolIn(shape, zone)} { // as of reclaims
		if warned[at].IsZero() {
			warned[at] = now.Truncate(time.Millisecond) // as instances say when they were created
		}
	}
}

// WarnedFor returns since when and until when the cloud's recommendation to leave the pool of
// a shape matters; zero: there is none.
func (q *Queue) WarnedFor(shape Shape, zone string, now time.Time) (since, until time.Time) {
	since = q.pools.warned[q.pools.poolIn(shape, zone)]
	if since.IsZero() || now.Sub(since) >= warnedMemory {
		return time.Time{}, time.Time{}
	}
	return since, since.Add(warnedMemory)
}

// OpenUnwarned reports whether a request permits a shape that is not avoided, of a pool that
// the cloud has not recommended to leave.
func (q *Queue) OpenUnwarned(r Request, now time.Time) bool {
	return slices.ContainsFunc(r.anyShape(r.Subnets), func(s Shape) bool {
		since, _ := q.WarnedFor(s, "", now)
		return since.IsZero() && !q.Avoided(s, now)
	})
}

// poolIn returns the pool of a shape in a zone; empty: as far as its zone is known.
func (p *poolMemory) poolIn(s Shape, zone string) pool {
	if zone == "" {
		return p.poolOf(s)
	}
	return s.inZone(zone)
}
