package lease

import (
	"context"
	"iter"
	"sync"
)

// Announcements yields the latest write of this process's term, then each
// further one that has reached storage, and at last that the lease was given
// back. It is the source of a standby's Options.Watch. A slow receiver misses
// the writes between. It ends with ctx, when the term has been resigned, and at
// once if there was none.
func (l *Lease) Announcements(ctx context.Context) iter.Seq[Announcement] {
	return func(yield func(Announcement) bool) {
		l.mu.Lock()
		n := l.renewals
		l.mu.Unlock()
		for yielded := 0; n != nil && ctx.Err() == nil; {
			last, count, more := n.latest()
			if count > yielded {
				yielded = count
				if !yield(last) {
					return
				}
				continue
			}
			if more == nil {
				return
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}
}

// renewals are the announcements of one term. Only the latest is kept.
type renewals struct {
	mu    sync.Mutex
	last  Announcement
	count int
	more  chan struct{} // closed at the next announcement; nil: there will be none
}

func newRenewals() *renewals { return &renewals{more: make(chan struct{})} }

func (n *renewals) latest() (last Announcement, count int, more <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last, n.count, n.more
}

func (n *renewals) announce(a Announcement) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = a
	n.count++
	close(n.more)
	n.more = make(chan struct{})
}

func (n *renewals) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.more != nil {
		close(n.more)
		n.more = nil
	}
}
