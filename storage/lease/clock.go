package lease

import (
	"context"
	"sync"
	"time"
)

// A Clock measures elapsed time in one process. The lease uses no wall clock, and
// never compares two machines' clocks; it needs only that their rates differ by
// much less than a sixth. Implementations are safe for
// concurrent use.
type Clock interface {
	// Now is the time since some fixed instant. It never goes back, and goes
	// on while the machine sleeps.
	Now() time.Duration

	// AfterFunc calls f, in a goroutine of its own, once d has passed on this
	// clock. Stop prevents that, and reports whether it came in time.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// GoClock returns the clock of Go's runtime, which in a testing/synctest
// bubble is the bubble's. It may stop while the machine sleeps: use it in tests
// and simulations only.
func GoClock() Clock { return goClock{since: time.Now()} }

type goClock struct{ since time.Time }

func (c goClock) Now() time.Duration { return time.Since(c.since) }

func (goClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }

// Elapsed returns the time since some fixed instant by a clock that counts the
// time that the machine sleeps; nil where the system has none.
func Elapsed() func() time.Duration {
	if c, ok := systemClock().(sliced); ok {
		return c.now
	}
	return nil
}

// slice is how late a timer may fire after the machine has slept.
const slice = 250 * time.Millisecond

// sliced adds timers to a clock that counts suspended time. Go's own timers stop
// during suspend, so these wake up every slice and read the clock.
type sliced struct{ now func() time.Duration }

func (c sliced) Now() time.Duration { return c.now() }

func (c sliced) AfterFunc(d time.Duration, f func()) func() bool {
	t := &slicedTimer{clock: c, at: c.now() + d, f: f}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(min(d, slice), t.wake)
	return t.stop
}

type slicedTimer struct {
	clock sliced
	at    time.Duration
	f     func()

	mu    sync.Mutex
	timer *time.Timer
	over  bool // stopped, or f was called
}

func (t *slicedTimer) wake() {
	if t.again() {
		t.f()
	}
}

// again waits for the next slice, or reports that the time has come.
func (t *slicedTimer) again() (due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := t.at - t.clock.now()
	switch {
	case t.over:
		return false
	case left > 0:
		t.timer.Reset(min(left, slice))
		return false
	}
	t.over = true
	return true
}

func (t *slicedTimer) stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	inTime := !t.over
	t.over = true
	t.timer.Stop()
	return inTime
}

// alarm returns a channel that is closed after d.
func alarm(c Clock, d time.Duration) (rings <-chan struct{}, stop func() bool) {
	ch := make(chan struct{})
	return ch, c.AfterFunc(d, func() { close(ch) })
}

// sleep waits for d, and reports false if ctx ended first.
func sleep(ctx context.Context, c Clock, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	rings, stop := alarm(c, d)
	defer stop()
	select {
	case <-rings:
		return true
	case <-ctx.Done():
		return false
	}
}
