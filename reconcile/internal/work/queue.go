// Package work says what the loop does next: a [Queue] hands out the groups to plan, a
// [Lane] runs their steps, and a [Budget] bounds the time of long plans.
package work

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// A Queue hands out keys of groups to be planned: urgent ones first, and each once
// however often it was added. It holds at most one entry for each group, so it
// needs no limit. One goroutine takes from it: plans exclude each other anyway.
type Queue struct {
	mu      sync.Mutex
	now     func() time.Time
	urgent  []nstance.GroupKey
	normal  []nstance.GroupKey
	items   map[nstance.GroupKey]*queueItem
	delayed delays
	wake    chan struct{} // has room for one: there is something new
}

type queueItem struct {
	queued   bool
	urgent   bool // while queued
	queuedAt time.Time
	delayed  time.Time // zero: it is not
}

// NewQueue returns an empty queue. Now is the wall clock.
func NewQueue(now func() time.Time) *Queue {
	return &Queue{now: now, items: map[nstance.GroupKey]*queueItem{}, wake: make(chan struct{}, 1)}
}

// Add makes key due now. Urgent keys overtake the others.
func (q *Queue) Add(key nstance.GroupKey, urgent bool) {
	q.mu.Lock()
	q.addLocked(key, urgent)
	q.mu.Unlock()
	q.signal()
}

func (q *Queue) addLocked(key nstance.GroupKey, urgent bool) {
	it := q.item(key)
	switch {
	case !it.queued:
		it.queued, it.urgent, it.queuedAt = true, urgent, q.now()
	case urgent && !it.urgent: // its entry in normal is skipped later
		it.urgent = true
	default:
		return
	}
	if urgent {
		q.urgent = append(q.urgent, key)
	} else {
		q.normal = append(q.normal, key)
	}
}

// AddAt makes key due at the given time, unless it is due earlier already. From
// now on the monotonic clock decides: times from records have only the wall clock,
// which cannot be compared any more once it has been set.
func (q *Queue) AddAt(key nstance.GroupKey, at time.Time) {
	if at.IsZero() {
		return
	}
	now := q.now()
	at = now.Add(at.Sub(now))
	q.mu.Lock()
	if it := q.item(key); it.delayed.IsZero() || at.Before(it.delayed) {
		it.delayed = at
		heap.Push(&q.delayed, delay{at, key})
	}
	q.mu.Unlock()
	q.signal()
}

// Take blocks until a key is due and returns it, or ok false when ctx ends.
func (q *Queue) Take(ctx context.Context) (key nstance.GroupKey, urgent, ok bool) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		key, urgent, wait := q.Next()
		if wait == 0 {
			return key, urgent, true
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-timer.C:
		}
	}
	return key, false, false
}

// Pause waits for d. After an ordinary key, an urgent one ends the wait.
func (q *Queue) Pause(ctx context.Context, d time.Duration, wasUrgent bool) {
	over := time.NewTimer(d)
	defer over.Stop()
	for wasUrgent || !q.hasUrgent() {
		select {
		case <-ctx.Done():
			return
		case <-over.C:
			return
		case <-q.wake: // Take looks for itself
		}
	}
}

func (q *Queue) hasUrgent() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.urgent) > 0
}

// Next returns a key that is due, with a wait of zero, or how long none will be.
func (q *Queue) Next() (key nstance.GroupKey, urgent bool, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.addDue(now)
	for _, list := range []*[]nstance.GroupKey{&q.urgent, &q.normal} {
		for len(*list) > 0 {
			key, *list = (*list)[0], (*list)[1:]
			if it := q.items[key]; it != nil && it.queued {
				it.queued = false
				if it.delayed.IsZero() {
					delete(q.items, key)
				}
				return key, it.urgent, 0
			}
		}
	}
	if len(q.delayed) > 0 {
		return key, false, max(q.delayed[0].at.Sub(now), 1)
	}
	return key, false, time.Hour
}

// addDue adds the delayed keys that are due.
func (q *Queue) addDue(now time.Time) {
	for len(q.delayed) > 0 && !q.delayed[0].at.After(now) {
		d := heap.Pop(&q.delayed).(delay)
		if it := q.items[d.key]; it != nil && it.delayed.Equal(d.at) {
			it.delayed = time.Time{}
			q.addLocked(d.key, false)
		}
	}
}

// Age is how long the key has waited that has waited longest.
func (q *Queue) Age() (age time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for _, it := range q.items {
		if it.queued {
			age = max(age, now.Sub(it.queuedAt))
		}
	}
	return age
}

func (q *Queue) item(key nstance.GroupKey) *queueItem {
	it := q.items[key]
	if it == nil {
		it = &queueItem{}
		q.items[key] = it
	}
	return it
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

type delay struct {
	at  time.Time
	key nstance.GroupKey
}

// delays is a heap of delays, earliest first. A key may have several; only the one
// that equals its item's counts.
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
