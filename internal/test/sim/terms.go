package sim

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage/lease"
)

// margin is the least time between the end of an expired term and the next one: a sixth
// of the ttl, less the error of two wrong clocks.
const margin = 500 * time.Millisecond

// recordTerm records a term, and checks that no other one is valid or was a moment ago.
func (c *checker) recordTerm(p *process, t *lease.Term) {
	context.AfterFunc(t.Context(), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ended = time.Now()
	})
	for _, other := range c.w.allProcesses() {
		if other == p {
			continue
		}
		last, ended := other.last()
		switch {
		case last == nil:
		case last.Err() == nil:
			c.violated("I6", "%s begins term %d while %s is in term %d", p.name, t.Epoch(), other.name, last.Epoch())
		case last.Epoch() >= t.Epoch():
			c.violated("I6", "%s begins term %d after term %d of %s", p.name, t.Epoch(), last.Epoch(), other.name)
		case !ended.IsZero() && !errors.Is(context.Cause(last.Context()), lease.ErrResigned) && !c.w.store.wasGiven() && time.Since(ended) < margin:
			c.violated("I6", "%s begins term %d %v after that of %s ended: %v", p.name, t.Epoch(), time.Since(ended), other.name, context.Cause(last.Context()))
		}
	}
}

// last returns the latest term of a process, and when it ended.
func (p *process) last() (*lease.Term, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.term, p.ended
}

// checkOneLeader checks that at most one server holds a valid term.
func (c *checker) checkOneLeader() {
	n := 0
	for _, p := range c.w.allProcesses() {
		if t, _ := p.last(); t != nil && t.Err() == nil {
			n++
		}
	}
	if n > 1 {
		c.violated("I6", "%d servers hold a valid term", n)
	}
}

// checkTermAtSend checks that the term of a server that sends a mutation is not over. Calls sent
// before may arrive later.
func (c *checker) checkTermAtSend(p *process, what string) (valid bool) {
	t, ended := p.last()
	if t == nil || t.Err() == nil {
		return t != nil
	}
	if !ended.IsZero() && time.Since(ended) > 0 {
		c.violated("I6", "%s sends %s %v after its term %d", p.name, what, time.Since(ended), t.Epoch())
	}
	return false
}

// watchTerms checks the terms ten times a second until ctx ends.
func (c *checker) watchTerms(ctx context.Context) {
	for sleep.For(ctx, 100*time.Millisecond) {
		c.checkOneLeader()
	}
}
