package agent

import (
	"context"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// A mailbox is the outbox as the agent's goroutines share it. The lock is never
// held while anything is sent.
type mailbox struct {
	now func() time.Time // the clock of the notices

	mu  sync.Mutex
	box outbox

	changed chan struct{} // something may be due: for the session
	noticed chan struct{} // a notice came: for the guard
}

func newMailbox(now func() time.Time) *mailbox {
	return &mailbox{now: now, changed: make(chan struct{}, 1), noticed: make(chan struct{}, 1)}
}

// do works on the outbox under the lock.
func (m *mailbox) do(f func(*outbox)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.box)
}

// observe takes a notice from the detector and reports whether it is news.
func (m *mailbox) observe(n nstance.Notice) (news bool) {
	m.do(func(o *outbox) { news = o.observe(n, m.now()) })
	if news {
		signal(m.changed)
		signal(m.noticed)
	}
	return news
}

// result takes the outcome of a drain.
func (m *mailbox) result(r *apiv1.DrainResult) {
	m.do(func(o *outbox) { o.result(r) })
	signal(m.changed)
}

// signal wakes the one who waits on c, or the next one who will.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// guard calls drain for each notice that dooms the machine and that no server
// has acknowledged in time, until ctx ends.
func (m *mailbox) guard(ctx context.Context, drain func(n nstance.Notice, left time.Duration)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var (
			due  *item
			n    nstance.Notice
			left time.Duration
			wait time.Duration
		)
		m.do(func(o *outbox) {
			now := m.now()
			if due, wait = o.overdue(now); due != nil {
				n, left = *due.notice, timeAlone(*due.notice, due.clock(now))
			}
		})
		if due != nil {
			drain(n, left)
			continue
		}
		timer.Reset(wait)
		if wait == 0 {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-m.noticed:
		case <-timer.C:
		}
	}
}
