package simcloud

import (
	"container/heap"
	"time"
)

// An event is a step of the cloud at a set time: booting a machine, reclaiming it,
// calling OnStop.
type event struct {
	at   time.Time
	seq  uint64        // of the cloud: equal times keep their order
	last bool          // runs even if the cloud closes first
	do   func() func() // called under the cloud's lock; returns what to call after it, or nil
}

// An eventQueue is a heap of events, the earliest first.
type eventQueue []*event

func (a eventQueue) Len() int      { return len(a) }
func (a eventQueue) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a eventQueue) Less(i, j int) bool {
	if a[i].at.Equal(a[j].at) {
		return a[i].seq < a[j].seq
	}
	return a[i].at.Before(a[j].at)
}
func (a *eventQueue) Push(x any) { *a = append(*a, x.(*event)) }
func (a *eventQueue) Pop() any {
	old := *a
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*a = old[:len(old)-1]
	return last
}

// after schedules e for d from now. It needs the lock. One dispatcher runs while there
// are events and ends with the last, so an idle cloud owns no goroutine.
func (c *core) after(d time.Duration, e *event) {
	c.seq++
	e.at, e.seq = time.Now().Add(d), c.seq
	heap.Push(&c.events, e)
	switch {
	case c.closed: // Close handles it
	case !c.running:
		c.running = true
		c.wg.Go(c.dispatch)
	case c.events[0] == e:
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// later is after for an event that calls nothing.
func (c *core) later(d time.Duration, do func()) {
	c.after(d, &event{do: func() func() { do(); return nil }})
}

// dispatch runs events until none is left or the cloud closes.
func (c *core) dispatch() {
	for {
		call, wait, more := c.next()
		switch {
		case !more:
			return
		case wait > 0:
			c.sleep(wait)
		case call != nil:
			call()
		}
	}
}

// next runs the first event if it is due, or returns how long until then.
func (c *core) next() (call func(), wait time.Duration, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.events) == 0 {
		c.running = false
		return nil, 0, false
	}
	if wait := time.Until(c.events[0].at); wait > 0 {
		return nil, wait, true
	}
	return heap.Pop(&c.events).(*event).do(), 0, true
}

func (c *core) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.wake:
	case <-c.done:
	}
}
