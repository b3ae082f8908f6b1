package simcloud

import (
	"context"
	"iter"
	"slices"

	"github.com/nstance-go/nstance"
)

var (
	_ nstance.NoticeWatcher = (*Cloud)(nil)
	_ nstance.ConsoleReader = (*Cloud)(nil)
)

// maxNotices is how many notices the cloud keeps for watches that begin later.
const maxNotices = 1000

// A noticeBoard has the notices about machines.
type noticeBoard struct {
	*core
	machines map[nstance.InstanceID]*machine // of the fleet
	notices  []nstance.MachineNotice         // the latest
	count    int                             // of all
	news     chan struct{}                   // closed and replaced with each
}

// PublishNotice publishes a notice about a machine that the machine itself cannot detect,
// such as the maintenance of its host. Every watch that begins later gets the kept
// notices again.
func (b *noticeBoard) PublishNotice(n nstance.MachineNotice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notices = append(b.notices[max(0, len(b.notices)-maxNotices+1):len(b.notices):len(b.notices)], n)
	b.count++
	close(b.news)
	b.news = make(chan struct{})
}

// WatchNotices implements [nstance.NoticeWatcher] with what PublishNotice publishes.
func (b *noticeBoard) WatchNotices(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.MachineNotice, error] {
	return func(yield func(nstance.MachineNotice, error) bool) {
		for seen := 0; ; {
			fresh, total, news := b.noticesSince(seen, owner)
			for _, n := range fresh {
				if !yield(n, nil) {
					return
				}
			}
			seen = total
			select {
			case <-ctx.Done():
				return
			case <-b.done:
				return
			case <-news:
			}
		}
	}
}

// noticesSince returns the notices about the owner's machines after the first seen
// ones, how many there are altogether, and what is closed with the next.
func (b *noticeBoard) noticesSince(seen int, owner nstance.Owner) (fresh []nstance.MachineNotice, total int, news <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.notices[max(0, len(b.notices)-(b.count-seen)):] {
		if m := b.machines[n.ID]; m != nil && owner.Owns(m.view.Owner) {
			fresh = append(fresh, n)
		}
	}
	return fresh, b.count, b.news
}

// ConsoleOutput implements [nstance.ConsoleReader] with Options.Console.
func (c *Cloud) ConsoleOutput(ctx context.Context, want nstance.Machine) ([]byte, error) {
	return ask(ctx, &c.calls, opConsole, want.ID, func() ([]byte, error) {
		m := c.fleet.handles[want.ProviderID]
		if m == nil || m.view.ID != want.ID {
			return nil, nstance.Errorf(nstance.NotFound, "no machine %s", want.ID)
		}
		if c.o.Console == nil {
			return nil, nil
		}
		return slices.Clone(c.o.Console(m.view)), nil
	})
}
