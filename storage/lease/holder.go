package lease

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
)

// A tenure is a term that is being renewed.
type tenure struct {
	term      *Term
	confirmed time.Duration            // when the last write that is known to have landed was sent
	sent      map[string]time.Duration // writes since then without an answer: write ID, when
	lost      bool                     // somebody else has written the lease
	news      *news
	over      chan struct{} // closed when nobody renews it any more
}

// valid is how long a confirmed write makes its term last. The rest of the ttl
// is the margin between this process's clock and anybody else's.
func (l *Lease) valid() time.Duration { return l.opts.TTL - l.opts.TTL/6 }

// pause is how long to wait before something is tried again within a term.
func (l *Lease) pause() time.Duration { return l.opts.TTL / 24 }

// grant begins the term that l.now stands for, written at sent. It returns nil
// when that is too long ago.
func (l *Lease) grant(ctx context.Context, sent time.Duration) *Term {
	until := sent + l.valid()
	l.takes = map[string]time.Duration{}
	if l.clock.Now() >= until {
		l.opts.Log.Warn("lease taken too late", "epoch", l.now.Epoch)
		return nil
	}
	term := newTerm(ctx, l.now.Epoch, l.clock, until)
	t := &tenure{term: term, confirmed: sent, sent: map[string]time.Duration{}, news: newNews(), over: make(chan struct{})}
	l.tenure, l.shy = t, false
	l.mu.Lock()
	l.news = t.news
	l.mu.Unlock()
	l.announce(t)
	l.opts.Log.Info("lease taken", "epoch", term.epoch)
	go l.keep(t) // halt waits for it
	return term
}

func (l *Lease) announce(t *tenure) {
	t.news.tell(Announcement{Epoch: l.now.Epoch, Version: l.now.version, WriteID: l.now.WriteID, Released: l.now.Released})
}

// keep renews the term every third of the ttl, until it is over.
func (l *Lease) keep(t *tenure) {
	defer close(t.over)
	ctx := t.term.Context()
	for sleep(ctx, l.clock, t.confirmed+l.opts.TTL/3-l.clock.Now()) {
		if err := l.renew(ctx, t); err != nil && ctx.Err() == nil {
			l.opts.Log.Warn("lease not renewed", "epoch", t.term.epoch, "code", nstance.CodeOf(err), "err", err)
			sleep(ctx, l.clock, l.pause())
		}
	}
	if why := context.Cause(ctx); !errors.Is(why, ErrResigned) && !errors.Is(why, errCampaigns) {
		l.opts.Log.Error("lease lost", "epoch", t.term.epoch, "err", why)
	}
}

// renew writes the lease once, and does not return before it is known whether
// that landed, or the term is over. An error means that it did not.
func (l *Lease) renew(ctx context.Context, t *tenure) error {
	next := l.now.next(t.term.epoch)
	sent, err := l.write(ctx, &next)
	if err == nil {
		l.confirm(t, next, sent)
		return nil
	}
	t.sent[next.WriteID] = sent
	for ctx.Err() == nil {
		s, rerr := l.read(ctx)
		if rerr == nil || errors.Is(rerr, nstance.Invalid) {
			return l.settle(t, s, err)
		}
		sleep(ctx, l.clock, l.pause())
	}
	return err
}

// settle decides about a write without a good answer, by what stands in
// storage. Only that decides: a refusal may be that of a repeated request,
// whose first copy landed.
func (l *Lease) settle(t *tenure, s standing, cause error) error {
	sent, mine := t.sent[s.WriteID]
	switch {
	case mine:
		l.confirm(t, s, sent)
		return nil
	case s.version != "" && s.version == l.now.version:
		return cause
	}
	t.lost = true
	t.term.end(errLost)
	if s.WriteID != "" || s.version == "" {
		l.observe(s)
	}
	return cause
}

// confirm takes note of a write that landed. It counts from when it was sent.
func (l *Lease) confirm(t *tenure, s standing, sent time.Duration) {
	l.observe(s)
	t.confirmed = sent
	clear(t.sent)
	t.term.extend(sent + l.valid())
	l.announce(t)
}

// release marks the lease as given back. It stops trying when the lease would
// have run out by itself.
func (l *Lease) release(ctx context.Context, t *tenure) error {
	began := l.clock.Now()
	l.freed, l.shy = began, true
	freed := map[string]bool{}
	for {
		next := l.now.next(t.term.epoch)
		next.Released = true
		freed[next.WriteID] = true
		_, err := l.write(ctx, &next)
		if err == nil {
			l.observe(next)
			l.announce(t)
			return nil
		}
		s, rerr := l.read(ctx)
		_, mine := t.sent[s.WriteID]
		switch {
		case rerr != nil:
		case freed[s.WriteID]:
			l.observe(s)
			l.announce(t)
			return nil
		case mine && s.version != l.now.version: // a renewal was faster
			l.observe(s)
			continue
		case s.version == "" || s.version != l.now.version:
			l.observe(s)
			l.shy = false
			return nil // there is nothing of ours to give back
		}
		if l.clock.Now()-began >= l.opts.TTL || !sleep(ctx, l.clock, l.pause()) {
			return err
		}
	}
}
