package agent

import (
	"context"
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/sleep"
)

// A progress watches that a loop makes progress: each turn sets when the next one
// is due. It is safe for concurrent use.
type progress struct {
	mu  sync.Mutex
	due func() time.Time // nil, or a zero time: no limit
}

// heartbeat says that the next turn is due within d.
func (p *progress) heartbeat(d time.Duration) {
	due := time.Now().Add(d)
	p.setDue(func() time.Time { return due })
}

// setDue lets a function return when the next turn is due.
func (p *progress) setDue(due func() time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = due
}

// overdue reports whether a turn is overdue.
func (p *progress) overdue(now time.Time) bool {
	p.mu.Lock()
	due := p.due
	p.mu.Unlock()
	if due == nil {
		return false
	}
	at := due()
	return !at.IsZero() && now.After(at)
}

// sleep waits as part of a loop's turn, and reports whether ctx has not ended.
func (p *progress) sleep(ctx context.Context, d time.Duration) bool {
	p.heartbeat(d + attemptLimit)
	return sleep.For(ctx, d)
}

// alive reports whether the session loop and the notice watch make progress.
func (a *Agent) alive() bool {
	a.Status() // blocks if a lock is stuck
	now := time.Now()
	return !a.sessionProgress.overdue(now) && !a.watchProgress.overdue(now)
}
