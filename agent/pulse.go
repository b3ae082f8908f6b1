package agent

import (
	"context"
	"sync"
	"time"
)

// A pulse is how a loop proves that it makes progress: at each turn it says when
// the next one is due. It is safe for concurrent use.
type pulse struct {
	mu  sync.Mutex
	due func() time.Time // zero time: nothing is known; nil likewise
}

// beat says that the next turn is due within d.
func (p *pulse) beat(d time.Duration) {
	due := time.Now().Add(d)
	p.follow(func() time.Time { return due })
}

// follow leaves it to due to say when the next sign of progress must come.
func (p *pulse) follow(due func() time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = due
}

// late reports whether a turn is overdue.
func (p *pulse) late(now time.Time) bool {
	p.mu.Lock()
	due := p.due
	p.mu.Unlock()
	if due == nil {
		return false
	}
	at := due()
	return !at.IsZero() && now.After(at)
}

// sleep waits as part of a loop's turn, and reports whether ctx is still going.
func (p *pulse) sleep(ctx context.Context, d time.Duration) bool {
	p.beat(d + attemptLimit)
	return sleep(ctx, d)
}

// alive reports whether the loops that matter make progress: the one that keeps
// a session, and the one that watches for notices.
func (a *Agent) alive() bool {
	a.Status() // returns only if the locks are free
	now := time.Now()
	return !a.pulse.late(now) && !a.notices.late(now)
}
