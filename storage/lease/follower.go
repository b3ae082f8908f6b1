package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
)

// A campaign is one call of Campaign: a standby that becomes the holder.
type campaign struct {
	*Lease
	watch   watch
	readAt  time.Duration // when to look at storage again
	takeAt  time.Duration // not to be taken before, after an attempt that came to nothing
	trouble bool          // the last request came to nothing
	listens bool          // the watch works
	waits   bool          // for a missing lease, and that was logged
}

func (c *campaign) run(ctx context.Context) (*Term, error) {
	for {
		term, err := c.turn(ctx)
		switch {
		case term != nil:
			return term, nil
		case ctx.Err() != nil:
			return nil, stopped(ctx)
		case err != nil && !passing(err):
			return nil, err
		}
		c.note(err)
		c.watch.follow(c.Holder())
		c.wait(ctx)
	}
}

// passing reports whether repeating may help.
func passing(err error) bool {
	switch nstance.CodeOf(err) {
	case nstance.Unavailable, nstance.Throttled, nstance.Ambiguous, nstance.Conflict:
		return true
	}
	return false
}

// note logs when trouble begins and ends.
func (c *campaign) note(err error) {
	switch {
	case err != nil && !c.trouble:
		c.opts.Log.Warn("lease not reached", "code", nstance.CodeOf(err), "err", err)
	case err == nil && c.trouble:
		c.opts.Log.Info("lease reached again")
	}
	c.trouble = err != nil
}

// turn does what is due. To take needs no look before: it replaces only what
// was seen.
func (c *campaign) turn(ctx context.Context) (*Term, error) {
	if c.due() > 0 && c.clock.Now() >= c.readAt {
		if term, err := c.look(ctx); term != nil || err != nil {
			return term, err
		}
	}
	if c.due() > 0 {
		return nil, nil
	}
	return c.take(ctx)
}

// look reads the lease, and returns a term if it turns out to be this
// process's own attempt.
func (c *campaign) look(ctx context.Context) (*Term, error) {
	c.readAt = c.clock.Now() + c.opts.Poll
	s, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	changed := s.version != c.now.version
	c.observe(s)
	if sent, mine := c.takes[s.WriteID]; mine {
		return c.grant(ctx, sent), nil
	}
	if changed {
		clear(c.takes) // what they were to replace is gone: they cannot land any more
		c.takeAt = 0
	}
	if c.now.version == "" && !c.opts.TakeAtOnce && !c.waits {
		c.waits = true
		c.opts.Log.Warn("there is no lease: it is taken when it has been missing for some time", "wait", MaxTTL,
			"remedy", "for a new shard, run nstance-admin cluster init --shard first")
	}
	return nil, nil
}

// due returns how long the lease must be left alone, by this process's own
// clock since it last saw it change.
func (c *campaign) due() time.Duration {
	now := c.clock.Now()
	wait := c.seen + c.now.ttl() - now
	switch {
	case !c.looked:
		return c.opts.Poll
	case c.now.Released, c.opts.TakeAtOnce:
		wait = 0
	}
	if c.shy && c.opts.Standby != nil && c.opts.Standby() {
		wait = max(wait, c.freed+2*c.opts.TTL-now)
	}
	return max(wait, c.takeAt-now)
}

// take replaces the lease, if it still is what was seen.
func (c *campaign) take(ctx context.Context) (*Term, error) {
	last, err := c.epoch(ctx)
	if err != nil {
		c.takeAt = c.clock.Now() + c.opts.Poll
		return nil, err
	}
	next := c.now.next(last + 1)
	next.Holder, next.Address, next.Peer = c.id, c.opts.Address, c.opts.Peer
	next.Registration = c.opts.Registration
	next.TTL, next.Released = c.opts.TTL.Milliseconds(), false
	sent, err := c.write(ctx, &next)
	if err == nil {
		c.observe(next)
		return c.grant(ctx, sent), nil
	}
	c.remember(next.WriteID, sent)
	before := c.now.version
	c.takeAt = c.clock.Now() + c.opts.Poll
	term, rerr := c.look(ctx)
	switch {
	case term != nil:
		return term, nil
	case rerr != nil:
		return nil, rerr
	case c.now.version != before:
		return nil, nil // somebody was faster
	}
	return nil, err
}

// remember keeps an attempt without an answer for as long as it could still
// make a term.
func (c *campaign) remember(id string, sent time.Duration) {
	for old, at := range c.takes {
		if at+c.valid() <= sent {
			delete(c.takes, old)
		}
	}
	c.takes[id] = sent
}

// epoch returns the shard's highest so far. A missing lease does not say it, nor
// does one of Prepare, which has found nothing in storage.
func (c *campaign) epoch(ctx context.Context) (top uint64, err error) {
	if c.now.Epoch > 0 {
		return c.now.Epoch, nil
	}
	if c.now.version == "" {
		top, err = (&epochs{store: c.store, shard: c.shard, log: c.opts.Log}).highest(ctx)
	}
	if err == nil && c.opts.Marks != nil {
		var marked uint64
		marked, err = c.opts.Marks(ctx)
		top = max(top, marked)
	}
	if err != nil {
		return 0, fmt.Errorf("look for the last epoch: %w", err)
	}
	return max(top, c.last), nil
}

// wait returns when something is due, or was heard.
func (c *campaign) wait(ctx context.Context) {
	rings, stop := alarm(c.clock, min(c.readAt-c.clock.Now(), max(c.due(), 0)))
	defer stop()
	select {
	case <-rings:
	case <-ctx.Done():
	case h := <-c.watch.heard:
		c.hear(h)
	}
}

// hear takes note of an announcement, which saves a read. That the watch broke
// is no more than a reason to look.
func (c *campaign) hear(h heard) {
	now := c.clock.Now()
	switch {
	case h.broken:
		if c.listens { // otherwise it polls already
			c.readAt = now
		}
		c.listens = false
	case h.Epoch > c.now.Epoch:
		c.readAt = now
	case h.Epoch == c.now.Epoch && c.now.version != "" && !c.now.Released: // nothing comes after a release
		s := c.now
		s.version, s.WriteID, s.Released = h.Version, h.WriteID, h.Released
		if s.version != c.now.version {
			clear(c.takes)
			c.takeAt = 0
		}
		c.observe(s)
		c.listens = true
		c.readAt = now + s.ttl()/2 // silence for so long means that the watch is dead
	}
}
