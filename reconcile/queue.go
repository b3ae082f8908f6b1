package reconcile

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// A queue hands out group keys to workers: each key to one worker at a time,
// urgent keys first, each key once however often it was added meanwhile. It
// holds at most one entry for each group, so it needs no limit.
type queue struct {
	mu      sync.Mutex
	now     func() time.Time
	urgent  []nstance.GroupKey
	normal  []nstance.GroupKey
	items   map[nstance.GroupKey]*item
	delayed delays
	wake    chan struct{} // has room for one: somebody should look again
}

type item struct {
	queued  bool
	urgent  bool // meaningful while queued
	running bool
	again   bool // added while running
	hurry   bool // that again is urgent
	at      time.Time
	since   time.Time // when it was queued; meaningful while it is
}

func newQueue(now func() time.Time) *queue {
	return &queue{now: now, items: map[nstance.GroupKey]*item{}, wake: make(chan struct{}, 1)}
}

// add makes key due now. Urgent keys overtake the others.
func (q *queue) add(key nstance.GroupKey, urgent bool) {
	q.mu.Lock()
	q.addLocked(key, urgent)
	q.mu.Unlock()
	q.signal()
}

func (q *queue) addLocked(key nstance.GroupKey, urgent bool) {
	it := q.item(key)
	switch {
	case it.running:
		it.again, it.hurry = true, it.hurry || urgent
	case !it.queued:
		it.queued, it.urgent, it.since = true, urgent, q.now()
		q.push(key, urgent)
	case urgent && !it.urgent: // the stale entry in normal is skipped when it comes up
		it.urgent = true
		q.push(key, true)
	}
}

// addAt makes key due at the given time, unless it is due earlier already. From
// now on that is a matter of the monotonic clock: times from records, which only
// know the wall clock, cannot be compared with others once somebody has set it.
func (q *queue) addAt(key nstance.GroupKey, at time.Time) {
	if at.IsZero() {
		return
	}
	now := q.now()
	at = now.Add(at.Sub(now))
	q.mu.Lock()
	it := q.item(key)
	if it.at.IsZero() || at.Before(it.at) {
		it.at = at
		heap.Push(&q.delayed, delay{at, key})
	}
	q.mu.Unlock()
	q.signal()
}

// take blocks until a key is due and returns it, or false when ctx ends. The
// caller calls done with it.
func (q *queue) take(ctx context.Context) (nstance.GroupKey, bool) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		key, ok, wait := q.next()
		if ok {
			q.signal() // there may be more for another worker
			return key, true
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-timer.C:
		}
	}
	return nstance.GroupKey{}, false
}

func (q *queue) next() (key nstance.GroupKey, ok bool, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.ripen(now)
	for _, list := range []*[]nstance.GroupKey{&q.urgent, &q.normal} {
		for len(*list) > 0 {
			key, *list = (*list)[0], (*list)[1:]
			if it := q.items[key]; it.queued && !it.running {
				it.queued, it.running = false, true
				return key, true, 0
			}
		}
	}
	if len(q.delayed) > 0 {
		return key, false, max(q.delayed[0].at.Sub(now), 0)
	}
	return key, false, time.Hour
}

// ripen moves delayed keys that are due to the ordinary list.
func (q *queue) ripen(now time.Time) {
	for len(q.delayed) > 0 && !q.delayed[0].at.After(now) {
		d := heap.Pop(&q.delayed).(delay)
		if it := q.items[d.key]; it.at.Equal(d.at) {
			it.at = time.Time{}
			q.addLocked(d.key, false)
		}
	}
}

// done returns a key taken; it comes up again if it was added meanwhile.
func (q *queue) done(key nstance.GroupKey) {
	q.mu.Lock()
	it := q.item(key)
	it.running = false
	if it.again {
		hurry := it.hurry
		it.again, it.hurry = false, false
		q.addLocked(key, hurry)
	}
	q.mu.Unlock()
	q.signal()
}

// age is how long the key has waited that has waited longest.
func (q *queue) age() (age time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for _, it := range q.items {
		if it.queued {
			age = max(age, now.Sub(it.since))
		}
	}
	return age
}

func (q *queue) item(key nstance.GroupKey) *item {
	it := q.items[key]
	if it == nil {
		it = &item{}
		q.items[key] = it
	}
	return it
}

func (q *queue) push(key nstance.GroupKey, urgent bool) {
	if urgent {
		q.urgent = append(q.urgent, key)
	} else {
		q.normal = append(q.normal, key)
	}
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

type delay struct {
	at  time.Time
	key nstance.GroupKey
}

// delays is a heap of delays, earliest first. A key may stand in it more than
// once; only the entry that equals its item's time counts.
type delays []delay

func (d delays) Len() int           { return len(d) }
func (d delays) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d delays) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *delays) Push(x any)        { *d = append(*d, x.(delay)) }
func (d *delays) Pop() any {
	old := *d
	last := old[len(old)-1]
	*d = old[:len(old)-1]
	return last
}
