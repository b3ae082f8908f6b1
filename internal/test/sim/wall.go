package sim

import (
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/test/wallclock"
	"github.com/nstance-go/nstance/storage"
)

const (
	// maxStep is the clock error that stays undetected.
	maxStep = 20 * time.Second

	// unsure is how long after a clock was set a write may be dated by its time before or
	// after.
	dateUncertainty = 3 * time.Minute
)

// wall is the wall clock of a server, or of storage. It survives a restart of the
// server.
type wall struct {
	mu    sync.Mutex
	ahead time.Duration
	was   time.Duration // offset before it was set
	set   time.Time     // when it was set
}

// now is the time of this clock.
func (c *wall) now() time.Time { return wallclock.Ahead(c.off()) }

func (c *wall) off() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead
}

// step sets the clock.
func (c *wall) step(ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.was, c.ahead, c.set = c.ahead, ahead.Truncate(time.Second), time.Now()
}

// dated returns how far the clock was ahead when the current write was dated. It is
// unknown for a short while after a large step.
func (c *wall) dated() (ahead time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead, (c.ahead-c.was).Abs() <= 2*maxStep || time.Since(c.set) > dateUncertainty
}

// wallOf returns the wall clock of a server.
func (w *World) wallOf(server string) *wall {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.walls[server]
	if c == nil {
		c = &wall{}
		w.walls[server] = c
	}
	return c
}

// maxDateLatency is the longest call of storage whose date is used.
const maxDateLatency = 10 * time.Second

// recordDate records the date of storage's answer to a call that was sent at that time, where
// storage dates its answers.
func (p *process) recordDate(sent time.Time) {
	if now := time.Now(); p.w.dated && now.Sub(sent) <= maxDateLatency {
		date := p.w.storage.now().UTC().Truncate(time.Second)
		p.read.Store(&storage.Reading{Local: now, Remote: date, Within: time.Second + now.Sub(sent)})
	}
}

// Date implements [storage.Dated].
func (s linkedStore) Date() (storage.Reading, bool) {
	r := s.p.read.Load()
	if r == nil {
		return storage.Reading{}, false
	}
	return *r, true
}
