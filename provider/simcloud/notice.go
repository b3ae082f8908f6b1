package simcloud

import (
	"context"
	"iter"

	"github.com/nstance-go/nstance"
)

var (
	_ nstance.NoticeWatcher = (*Cloud)(nil)
	_ nstance.ConsoleReader = (*Cloud)(nil)
)

// maxTold is how many notices the cloud remembers for watches that begin later.
const maxTold = 1000

// Tell has the cloud say something about a machine that the machine itself cannot
// learn, such as the maintenance of its host. The latest form of each event is
// told again to every watch that begins later.
func (c *Cloud) Tell(n nstance.MachineNotice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told[max(0, len(c.told)-maxTold+1):len(c.told):len(c.told)], n)
	c.toldCount++
	close(c.news)
	c.news = make(chan struct{})
}

// WatchNotices implements [nstance.NoticeWatcher] with what Tell was told.
func (c *Cloud) WatchNotices(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.MachineNotice, error] {
	return func(yield func(nstance.MachineNotice, error) bool) {
		for seen := 0; ; {
			fresh, total, news := c.toldSince(seen, owner)
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

// toldSince returns the notices about the owner's machines after the first seen
// ones, how many there are altogether, and what is closed with the next.
func (c *Cloud) toldSince(seen int, owner nstance.Owner) (fresh []nstance.MachineNotice, total int, news <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.told[max(0, len(c.told)-(c.toldCount-seen)):] {
		if m := c.machines[n.ID]; m != nil && owner.Owns(m.view.Owner) {
			fresh = append(fresh, n)
		}
	}
	return fresh, c.toldCount, c.news
}

// SetConsole sets what machine id has printed to its console. Fails with NotFound
// when there is no such machine.
func (c *Cloud) SetConsole(id nstance.InstanceID, output []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.machines[id]
	if m == nil {
		return nstance.Errorf(nstance.NotFound, "no machine %s", id)
	}
	m.console = output
	return nil
}

// ConsoleOutput implements [nstance.ConsoleReader] with what SetConsole set.
func (c *Cloud) ConsoleOutput(ctx context.Context, want nstance.Machine) (out []byte, err error) {
	err = c.call(ctx, OpConsole, want.ID, func() error {
		m := c.handles[want.ProviderID]
		if m == nil || m.view.ID != want.ID {
			return nstance.Errorf(nstance.NotFound, "no machine %s", want.ID)
		}
		out = append(out, m.console...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
