package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// A campaign is one call of Campaign: a standby that becomes the holder.
type campaign struct {
	*Lease
	watch         watch
	readAt        time.Duration // when to read storage again
	takeAt        time.Duration // no attempt before, after a failed one
	unreachable   bool          // the last request failed
	watchWorks    bool
	missingLogged bool
}

func (c *campaign) run(ctx context.Context) (*Term, error) {
	for {
		term, err := c.step(ctx)
		switch {
		case term != nil:
			return term, nil
		case ctx.Err() != nil:
			return nil, stopped(ctx)
		case err != nil && !transient(err):
			return nil, err
		}
		c.logReachability(err)
		c.watch.follow(c.Holder())
		c.wait(ctx)
	}
}

// transient reports whether a retry may help.
func transient(err error) bool {
	switch nstance.CodeOf(err) {
	case nstance.Unavailable, nstance.Throttled, nstance.Ambiguous, nstance.Conflict:
		return true
	}
	return false
}

// logReachability logs when storage becomes unreachable and reachable again.
func (c *campaign) logReachability(err error) {
	switch {
	case err != nil && !c.unreachable:
		c.opts.Log.Warn("lease cannot be read or written", "code", nstance.CodeOf(err), "err", err)
	case err == nil && c.unreachable:
		c.opts.Log.Info("lease can be read and written again")
	}
	c.unreachable = err != nil
}

// step reads the lease or takes it, if either is due. Taking needs no read before:
// it replaces only the version that was seen.
func (c *campaign) step(ctx context.Context) (*Term, error) {
	if c.waitTime() > 0 && c.clock.Now() >= c.readAt {
		if term, err := c.look(ctx); term != nil || err != nil {
			return term, err
		}
	}
	if c.waitTime() > 0 {
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
	changed := s.Version != c.current.Version
	c.observe(s)
	if sent, mine := c.attempts[s.WriteID]; mine {
		return c.grant(ctx, sent), nil
	}
	if changed {
		clear(c.attempts) // the version that they would replace is gone: they cannot land any more
		c.takeAt = 0
	}
	if c.current.Version == "" && !c.opts.TakeAtOnce && !c.missingLogged {
		c.missingLogged = true
		c.opts.Log.Warn("lease missing: acquiring it after the longest ttl", "wait", records.MaxLeaseTTL,
			"remedy", "for a new shard, run nstance-admin cluster init --shard first")
	}
	return nil, nil
}

// waitTime returns how long the lease must not be taken yet, by this process's
// clock since it last saw the lease change.
func (c *campaign) waitTime() time.Duration {
	now := c.clock.Now()
	wait := c.changedAt + c.current.TTL() - now
	switch {
	case !c.observed:
		return c.opts.Poll
	case c.current.Released, c.opts.TakeAtOnce:
		wait = 0
	}
	if c.backingOff && c.opts.Standby != nil && c.opts.Standby() {
		wait = max(wait, c.releasedAt+2*c.opts.TTL-now)
	}
	return max(wait, c.takeAt-now)
}

// take replaces the lease, if it is still the version that was seen.
func (c *campaign) take(ctx context.Context) (*Term, error) {
	last, err := c.epoch(ctx)
	if err != nil {
		c.takeAt = c.clock.Now() + c.opts.Poll
		return nil, err
	}
	next := c.current.Next(last + 1)
	next.Holder, next.Address, next.Peer = c.id, c.opts.Address, c.opts.Peer
	next.Registration = c.opts.Registration
	next.TTLMillis, next.Released = c.opts.TTL.Milliseconds(), false
	sent, err := c.write(ctx, &next)
	if err == nil {
		c.observe(next)
		return c.grant(ctx, sent), nil
	}
	c.remember(next.WriteID, sent)
	before := c.current.Version
	c.takeAt = c.clock.Now() + c.opts.Poll
	term, rerr := c.look(ctx)
	switch {
	case term != nil:
		return term, nil
	case rerr != nil:
		return nil, rerr
	case c.current.Version != before:
		return nil, nil // another process was faster
	}
	return nil, err
}

// remember keeps an unanswered attempt for as long as it could still begin a
// term.
func (c *campaign) remember(id string, sent time.Duration) {
	for old, at := range c.attempts {
		if at+c.termLength() <= sent {
			delete(c.attempts, old)
		}
	}
	c.attempts[id] = sent
}

// epoch returns the shard's highest epoch so far. A missing lease does not show it,
// nor does the lease that Prepare writes.
func (c *campaign) epoch(ctx context.Context) (top uint64, err error) {
	if c.current.Epoch > 0 {
		return c.current.Epoch, nil
	}
	if c.current.Version == "" {
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
	return max(top, c.highestEpoch), nil
}

// wait returns when a step is due, or the watch has sent a message.
func (c *campaign) wait(ctx context.Context) {
	rings, stop := alarm(c.clock, min(c.readAt-c.clock.Now(), max(c.waitTime(), 0)))
	defer stop()
	select {
	case <-rings:
	case <-ctx.Done():
	case m := <-c.watch.messages:
		c.receive(m)
	}
}

// receive uses an announcement instead of a read. A broken watch is only a reason
// to read.
func (c *campaign) receive(m watchMessage) {
	now := c.clock.Now()
	switch {
	case m.broken:
		if c.watchWorks { // otherwise it polls already
			c.readAt = now
		}
		c.watchWorks = false
	case m.Epoch > c.current.Epoch:
		c.readAt = now
	case m.Epoch == c.current.Epoch && c.current.Version != "" && !c.current.Released: // nothing comes after a release
		s := c.current
		s.Version, s.WriteID, s.Released = m.Version, m.WriteID, m.Released
		if s.Version != c.current.Version {
			clear(c.attempts)
			c.takeAt = 0
		}
		c.observe(s)
		c.watchWorks = true
		c.readAt = now + s.TTL()/2 // no message for so long: the watch is dead
	}
}
