package spot

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// readLimit bounds one reading without the pause before it: the longest is a
// poll of 12 s, and the consumer of notices needs time, too.
const readLimit = 30 * time.Second

// lastReads holds when each poller of the watches under way last finished a
// reading, and what became of it. It is safe for concurrent use.
type lastReads struct {
	mu   sync.Mutex
	last map[*poller]lastRead
}

type lastRead struct {
	at     time.Time
	err    error
	failed time.Time // since then every reading has failed; zero: the last one has not
}

func (r *lastReads) done(p *poller, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[*poller]lastRead{}
	}
	read := lastRead{at: time.Now(), err: err}
	if err != nil {
		if read.failed = r.last[p].failed; read.failed.IsZero() {
			read.failed = read.at
		}
	}
	r.last[p] = read
}

// unreadable returns the different errors of the pollers whose last reading failed, and
// since when the first of them has failed every time.
func (r *lastReads) unreadable() (since time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	texts := map[string]error{}
	for _, read := range r.last {
		if read.err == nil {
			continue
		}
		texts[read.err.Error()] = read.err
		if since.IsZero() || read.failed.Before(since) {
			since = read.failed
		}
	}
	var errs []error
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		errs = append(errs, texts[text])
	}
	return since, errors.Join(errs...)
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
	for _, read := range r.last {
		if oldest.IsZero() || read.at.Before(oldest) {
			oldest = read.at
		}
	}
	if oldest.IsZero() {
		return oldest
	}
	return oldest.Add(interval + readLimit)
}
