package spot

import (
	"sync"
	"time"
)

// roundLimit is how long a reading may take beside the pause before it: the
// longest is a poll of 12 s, and the consumer of notices takes time, too.
const roundLimit = 30 * time.Second

// rounds knows when each poller of the watches under way last finished a
// reading. It is safe for concurrent use.
type rounds struct {
	mu   sync.Mutex
	last map[*poller]time.Time
}

func (r *rounds) done(p *poller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[*poller]time.Time{}
	}
	r.last[p] = time.Now()
}

func (r *rounds) leave(p *poller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, p)
}

// due returns by when every poller will have read again; zero: there is none.
func (r *rounds) due(interval time.Duration) time.Time {
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
	return oldest.Add(interval + roundLimit)
}
