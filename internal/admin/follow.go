package admin

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/sleep"
)

// How a follower comes back after a broken stream.
const (
	firstWait = 200 * time.Millisecond
	maxWait   = 10 * time.Second
	maxOutage = 10 * time.Minute // without a server that answers
)

// news is one thing that a follower learns.
type news struct {
	synced   bool // what follows is new
	gap      bool // with synced: events may have been missed
	event    *apiv1.Event
	instance *apiv1.Instance // of a snapshot, before synced
}

// A follower watches events across broken streams and changes of leader.
type follower struct {
	r    *remote
	req  *apiv1.WatchInstanceEventsRequest // its AfterSeq moves on
	turn [][]byte                          // the certificate that the server asked to renew; nil: it did not
}

// follow yields the events that req selects until ctx ends, which is no error.
// Only the first connection must succeed at once; a later one is sought with
// backoff for as long as maxOutage.
func (r *remote) follow(ctx context.Context, req *apiv1.WatchInstanceEventsRequest) iter.Seq2[news, error] {
	return func(yield func(news, error) bool) {
		f := &follower{r: r, req: req}
		var back backoff
		for ctx.Err() == nil {
			began := r.p.now()
			answered, err := f.watch(ctx, func(n news) bool { return yield(n, nil) })
			if errors.Is(err, errStop) || ctx.Err() != nil {
				return
			}
			back.note(answered, r.p.now().Sub(began))
			if errors.Is(err, errTurn) {
				continue // where it stopped, with the next certificate
			}
			wait, again := back.next(err, r.p.now())
			if !again {
				yield(news{}, err)
				return
			}
			r.p.stderr.note("connection lost, trying again in %s: %v", wait.Round(time.Millisecond), err)
			sleep.For(ctx, wait)
		}
	}
}

// errStop says that nobody wants to know more, errTurn that the certificate is
// to be renewed.
var (
	errStop = errors.New("stopped")
	errTurn = errors.New("asked to renew the certificate")
)

// watch holds one stream. answered says whether there was a server at all.
func (f *follower) watch(ctx context.Context, yield func(news) bool) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := f.r.connectAsked(ctx, f.turn)
	f.turn = nil
	if err != nil {
		return false, err
	}
	defer c.close()
	// A stream that resumes is silent until something happens, so this tells
	// that it can be held at all.
	if _, err := c.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{}); err != nil {
		return false, err
	}
	stream, err := c.WatchInstanceEvents(ctx, f.req)
	if err != nil {
		return true, explain(c.addr, f.r.timeout, err)
	}
	var turn *time.Timer
	for {
		msg, err := stream.Recv()
		if errors.Is(context.Cause(ctx), errTurn) {
			f.turn = c.id.Chain
			return true, errTurn
		}
		if errors.Is(err, io.EOF) {
			return true, nstance.Errorf(nstance.Unavailable, "%s ended the stream", c.addr)
		}
		if err != nil {
			return true, explain(c.addr, f.r.timeout, err)
		}
		if r := msg.GetRenewal(); r != nil && turn == nil {
			turn = time.AfterFunc(turnAfter(r.GetWithin().AsDuration()), func() { cancel(errTurn) })
			defer turn.Stop()
		}
		if !f.take(msg, yield) {
			return true, errStop
		}
	}
}

// take passes a message on; what it does not know, of a newer server, it passes
// over. A snapshot after the beginning means that the server did not know what
// came after AfterSeq any more. Only an executor is told what is in it: for
// others that has its own commands.
func (f *follower) take(msg *apiv1.WatchInstanceEventsResponse, yield func(news) bool) bool {
	switch m := msg.GetMessage().(type) {
	case *apiv1.WatchInstanceEventsResponse_Snapshot:
		if f.req.GetDrainExecutor() {
			return yield(news{instance: m.Snapshot})
		}
	case *apiv1.WatchInstanceEventsResponse_Synced:
		gap := f.req.AfterSeq != 0
		f.req.AfterSeq = m.Synced.GetSeq()
		return yield(news{synced: true, gap: gap})
	case *apiv1.WatchInstanceEventsResponse_Event:
		f.req.AfterSeq = m.Event.GetSeq()
		return yield(news{event: m.Event})
	}
	return true
}

// A backoff decides how long to wait before the next attempt.
type backoff struct {
	connected bool      // at least once
	since     time.Time // of the outage; zero: none yet
	wait      time.Duration
}

// note takes how an attempt went: whether a server answered, and how long the
// stream lived. One that lived ends the outage.
func (b *backoff) note(answered bool, lived time.Duration) {
	b.connected = b.connected || answered
	if answered && lived > maxWait {
		b.since = time.Time{}
	}
}

// next returns how long to wait after an attempt that ended with err at now,
// and whether to go on at all.
func (b *backoff) next(err error, now time.Time) (time.Duration, bool) {
	if !b.connected || !errors.Is(err, nstance.Unavailable) {
		return 0, false
	}
	if b.since.IsZero() {
		b.since, b.wait = now, firstWait
	}
	if now.Sub(b.since) > maxOutage {
		return 0, false
	}
	wait := sleep.Jitter(b.wait)
	b.wait = min(2*b.wait, maxWait)
	return wait, true
}
