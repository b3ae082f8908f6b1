package spot

import (
	"sync"
	"time"
)

// readLimit bounds one reading without the pause before it: the longest is a
// poll of 12 s, and the consumer of notices needs time, too.
const readLimit = 30 * time.Second

// lastReads holds when each poller of the watches under way last finished a
// reading. It is safe for concurrent use.
type lastReads struct {
	mu   sync.Mutex
	last map[*poller]time.Time
}

func (r *lastReads) done(p *poller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[*poller]time.Time{}
	}
	r.last[p] = time.Now()
}

func (r *lastReads) leave(p *poller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, p)
}

// due returns when every poller will have read again; zero: there is no poller.
func (r *lastReads) due(interval time.Duration) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var oldest time.Time
	for _, at := range r.last {
		if oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	if oldest.IsZero() {
		return oldest
	}
	return oldest.Add(interval + readLimit)
}
