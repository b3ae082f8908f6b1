package lease

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// A tenure is a term that is being renewed.
type tenure struct {
	term       *Term
	confirmed  time.Duration            // when the last write that is known to have landed was sent
	unanswered map[string]time.Duration // writes since then: when sent, by write ID
	lost       bool                     // another process has written the lease
	renewals   *renewals
	over       chan struct{} // closed when it is not renewed any more
}

// termLength is how long a term lasts after a confirmed write. The rest of the ttl
// is the margin between the clocks of this process and of a standby.
func (l *Lease) termLength() time.Duration { return l.opts.TTL - l.opts.TTL/6 }

// retryDelay is the time between two attempts of a request within a term.
func (l *Lease) retryDelay() time.Duration { return l.opts.TTL / 24 }

// grant begins the term of l.current, which was written at sent. It returns nil
// when that is too long ago.
func (l *Lease) grant(ctx context.Context, sent time.Duration) *Term {
	until := sent + l.termLength()
	l.attempts = map[string]time.Duration{}
	if l.clock.Now() >= until {
		l.opts.Log.Warn("lease acquired, but its term has already ended", "epoch", l.current.Epoch)
		return nil
	}
	term := newTerm(ctx, l.current.Epoch, l.clock, until)
	t := &tenure{term: term, confirmed: sent, unanswered: map[string]time.Duration{}, renewals: newRenewals(), over: make(chan struct{})}
	l.tenure, l.backingOff = t, false
	l.mu.Lock()
	l.renewals = t.renewals
	l.mu.Unlock()
	l.announce(t)
	l.opts.Log.Info("lease acquired", "epoch", term.epoch)
	go l.keep(t) // endTerm waits for it
	return term
}

func (l *Lease) announce(t *tenure) {
	t.renewals.announce(Announcement{Epoch: l.current.Epoch, Version: l.current.Version, WriteID: l.current.WriteID, Released: l.current.Released})
}

// keep renews the term every third of the ttl, until it is over.
func (l *Lease) keep(t *tenure) {
	defer close(t.over)
	ctx := t.term.Context()
	for sleep(ctx, l.clock, t.confirmed+l.opts.TTL/3-l.clock.Now()) {
		if err := l.renew(ctx, t); err != nil && ctx.Err() == nil {
			l.opts.Log.Warn("lease not renewed", "epoch", t.term.epoch, "code", nstance.CodeOf(err), "err", err)
			sleep(ctx, l.clock, l.retryDelay())
		}
	}
	if why := context.Cause(ctx); !errors.Is(why, ErrResigned) && !errors.Is(why, errCampaigns) {
		l.opts.Log.Error("lease lost", "epoch", t.term.epoch, "err", why)
	}
}

// renew writes the lease once, and returns when it is known whether the write
// landed, or when the term is over. An error means that it did not land.
func (l *Lease) renew(ctx context.Context, t *tenure) error {
	next := l.current.Next(t.term.epoch)
	sent, err := l.write(ctx, &next)
	if err == nil {
		l.confirm(t, next, sent)
		return nil
	}
	t.unanswered[next.WriteID] = sent
	for ctx.Err() == nil {
		s, rerr := l.read(ctx)
		if rerr == nil || errors.Is(rerr, nstance.Invalid) {
			return l.settle(t, s, err)
		}
		sleep(ctx, l.clock, l.retryDelay())
	}
	return err
}

// settle decides by what is in storage whether a failed write landed. A refusal
// does not decide it: the client may have repeated a request that landed.
func (l *Lease) settle(t *tenure, s records.Lease, cause error) error {
	sent, mine := t.unanswered[s.WriteID]
	switch {
	case mine:
		l.confirm(t, s, sent)
		return nil
	case s.Version == l.current.Version:
		return cause
	}
	t.lost = true
	t.term.end(errLost)
	if s.WriteID != "" || s.Version == "" {
		l.observe(s)
	}
	return cause
}

// confirm extends the term after a write that landed, from when it was sent.
func (l *Lease) confirm(t *tenure, s records.Lease, sent time.Duration) {
	l.observe(s)
	t.confirmed = sent
	clear(t.unanswered)
	t.term.extend(sent + l.termLength())
	l.announce(t)
}

// release marks the lease as released. It gives up when the lease would have
// expired by itself.
func (l *Lease) release(ctx context.Context, t *tenure) error {
	began := l.clock.Now()
	l.releasedAt, l.backingOff = began, true
	releases := map[string]bool{}
	for {
		next := l.current.Next(t.term.epoch)
		next.Released = true
		releases[next.WriteID] = true
		_, err := l.write(ctx, &next)
		if err == nil {
			l.observe(next)
			l.announce(t)
			return nil
		}
		s, rerr := l.read(ctx)
		_, mine := t.unanswered[s.WriteID]
		switch {
		case rerr != nil:
		case releases[s.WriteID]:
			l.observe(s)
			l.announce(t)
			return nil
		case mine && s.Version != l.current.Version: // a renewal landed late
			l.observe(s)
			continue
		case s.Version != l.current.Version:
			l.observe(s)
			l.backingOff = false
			return nil // the lease is not this process's any more
		}
		if l.clock.Now()-began >= l.opts.TTL || !sleep(ctx, l.clock, l.retryDelay()) {
			return err
		}
	}
}
