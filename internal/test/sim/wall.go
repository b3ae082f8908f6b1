package sim

import (
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/test/wallclock"
	"github.com/nstance-go/nstance/storage"
)

const (
	// maxStep is how far a clock may be off without anybody knowing it.
	maxStep = 20 * time.Second

	// unsure is for how long after a clock was set nobody can say by which of its
	// times something was dated that is written now.
	unsure = 3 * time.Minute
)

// A wall is the wall clock of a server, or of the storage. It goes on while one
// process of the server follows another.
type wall struct {
	mu    sync.Mutex
	ahead time.Duration
	was   time.Duration // before it was set
	set   time.Time     // when
}

// now is the time by this clock.
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

// dated returns how far the clock was ahead when something was dated that is
// written now. It is not known when it was set by much a short while ago.
func (c *wall) dated() (ahead time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead, (c.ahead-c.was).Abs() <= 2*maxStep || time.Since(c.set) > unsure
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

// slowest is how long an answer of storage may take whose date is believed.
const slowest = 10 * time.Second

// note takes the date of an answer of storage that has just arrived to a call
// that was sent at that time, where storage dates its answers.
func (p *process) note(sent time.Time) {
	if now := time.Now(); p.w.dated && now.Sub(sent) <= slowest {
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
