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

// PublishNotice publishes a notice about a machine that the machine itself cannot detect,
// such as the maintenance of its host. Every watch that begins later gets the kept
// notices again.
func (c *Cloud) PublishNotice(n nstance.MachineNotice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notices = append(c.notices[max(0, len(c.notices)-maxNotices+1):len(c.notices):len(c.notices)], n)
	c.noticeCount++
	close(c.news)
	c.news = make(chan struct{})
}

// WatchNotices implements [nstance.NoticeWatcher] with what PublishNotice publishes.
func (c *Cloud) WatchNotices(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.MachineNotice, error] {
	return func(yield func(nstance.MachineNotice, error) bool) {
		for seen := 0; ; {
			fresh, total, news := c.noticesSince(seen, owner)
			for _, n := range fresh {
				if !yield(n, nil) {
					return
				}
			}
			seen = total
			select {
			case <-ctx.Done():
				return
			case <-c.done:
				return
			case <-news:
			}
		}
	}
}

// noticesSince returns the notices about the owner's machines after the first seen
// ones, how many there are altogether, and what is closed with the next.
func (c *Cloud) noticesSince(seen int, owner nstance.Owner) (fresh []nstance.MachineNotice, total int, news <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.notices[max(0, len(c.notices)-(c.noticeCount-seen)):] {
		if m := c.machines[n.ID]; m != nil && owner.Owns(m.view.Owner) {
			fresh = append(fresh, n)
		}
	}
	return fresh, c.noticeCount, c.news
}

// ConsoleOutput implements [nstance.ConsoleReader] with Options.Console.
func (c *Cloud) ConsoleOutput(ctx context.Context, want nstance.Machine) (out []byte, err error) {
	err = c.call(ctx, opConsole, want.ID, func() error {
		m := c.handles[want.ProviderID]
		if m == nil || m.view.ID != want.ID {
			return nstance.Errorf(nstance.NotFound, "no machine %s", want.ID)
		}
		if c.o.Console != nil {
			out = slices.Clone(c.o.Console(m.view))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
