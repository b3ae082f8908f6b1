package lease

import (
	"context"
	"iter"
	"sync"
)

// Announcements yields the latest write of this process's term, then each
// further one that has reached storage, and at last that the lease was given
// back. It is what Options.Watch of a standby wants to hear. Whoever is slow
// misses what is between. It ends with ctx, when the term has been resigned,
// and at once if there was none.
func (l *Lease) Announcements(ctx context.Context) iter.Seq[Announcement] {
	return func(yield func(Announcement) bool) {
		l.mu.Lock()
		n := l.news
		l.mu.Unlock()
		for told := 0; n != nil && ctx.Err() == nil; {
			last, count, more := n.latest()
			if count > told {
				told = count
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

// news are the announcements of one term. Only the latest is kept.
type news struct {
	mu    sync.Mutex
	last  Announcement
	count int
	more  chan struct{} // closed when there is more to say; nil: there never will be
}

func newNews() *news { return &news{more: make(chan struct{})} }

func (n *news) latest() (last Announcement, count int, more <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last, n.count, n.more
}

func (n *news) tell(a Announcement) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = a
	n.count++
	close(n.more)
	n.more = make(chan struct{})
}

func (n *news) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.more != nil {
		close(n.more)
		n.more = nil
	}
}
