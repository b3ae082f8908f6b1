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

// The backoff of a follower after a broken stream.
const (
	firstWait = 200 * time.Millisecond
	maxWait   = 10 * time.Second
	maxOutage = 10 * time.Minute // without a server that answers
)

// A followMessage is an event, or a part of the snapshot before the events.
type followMessage struct {
	synced   bool // the snapshot is complete
	gap      bool // with synced: events may have been missed
	event    *apiv1.Event
	instance *apiv1.Instance // of a snapshot, before synced
}

// A follower watches events across broken streams and changes of leader.
type follower struct {
	r         *remote
	req       *apiv1.WatchInstanceEventsRequest // its AfterSeq moves on
	renewalOf [][]byte                          // the certificate that the server asked to renew; nil: none
}

// follow yields the events that req selects until ctx ends, which is no error.
// Only the first connection must succeed at once; later ones are retried with
// backoff for maxOutage.
func (r *remote) follow(ctx context.Context, req *apiv1.WatchInstanceEventsRequest) iter.Seq2[followMessage, error] {
	return func(yield func(followMessage, error) bool) {
		f := &follower{r: r, req: req}
		var back backoff
		for ctx.Err() == nil {
			began := time.Now()
			answered, err := f.watch(ctx, func(n followMessage) bool { return yield(n, nil) })
			if errors.Is(err, errStop) || ctx.Err() != nil {
				return
			}
			back.recordAttempt(answered, time.Since(began))
			if errors.Is(err, errRenew) {
				continue // from the last event, with the next certificate
			}
			wait, again := back.next(err, time.Now())
			if !again {
				yield(followMessage{}, err)
				return
			}
			r.stderr.note("connection lost, trying again in %s: %v", wait.Round(time.Millisecond), err)
			sleep.For(ctx, wait)
		}
	}
}

// withLimit returns a context that is canceled for errLimit after that time. Streams
// get no deadline: gRPC sends that to the server, which may end a stream by its own
// clock before this side knows why.
func withLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(errLimit) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

var errLimit = errors.New("the time limit is over")

// errStop ends a watch whose receiver has stopped, errRenew one whose certificate is
// to be renewed.
var (
	errStop  = errors.New("stopped")
	errRenew = errors.New("asked to renew the certificate")
)

// watch reads one stream. answered reports whether a server answered.
func (f *follower) watch(ctx context.Context, yield func(followMessage) bool) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := f.r.connectRenewed(ctx, f.renewalOf)
	f.renewalOf = nil
	if err != nil {
		return false, err
	}
	defer c.close()
	// A resumed stream is silent until the next event, so this call checks that
	// the server leads.
	if _, err := c.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{}); err != nil {
		return false, err
	}
	stream, err := c.WatchInstanceEvents(ctx, f.req)
	if err != nil {
		return true, explain(c.addr, noTimeout, err)
	}
	var renewal *time.Timer
	for {
		msg, err := stream.Recv()
		if errors.Is(context.Cause(ctx), errRenew) {
			f.renewalOf = c.id.Chain
			return true, errRenew
		}
		if errors.Is(err, io.EOF) {
			return true, nstance.Errorf(nstance.Unavailable, "%s ended the stream", c.addr)
		}
		if err != nil {
			return true, explain(c.addr, noTimeout, err)
		}
		if r := msg.GetRenewal(); r != nil && renewal == nil {
			renewal = time.AfterFunc(renewalDelay(r.GetWithin().AsDuration()), func() { cancel(errRenew) })
			defer renewal.Stop()
		}
		if !f.handleMessage(msg, yield) {
			return true, errStop
		}
	}
}

// handleMessage yields a message, and ignores messages that only a newer server
// knows. A later snapshot means that the server no longer has the events after
// AfterSeq. Only an executor receives its content: for others there are commands.
func (f *follower) handleMessage(msg *apiv1.WatchInstanceEventsResponse, yield func(followMessage) bool) bool {
	switch m := msg.GetMessage().(type) {
	case *apiv1.WatchInstanceEventsResponse_Snapshot:
		if f.req.GetDrainExecutor() {
			return yield(followMessage{instance: m.Snapshot})
		}
	case *apiv1.WatchInstanceEventsResponse_Synced:
		gap := f.req.AfterSeq != 0
		f.req.AfterSeq = m.Synced.GetSeq()
		return yield(followMessage{synced: true, gap: gap})
	case *apiv1.WatchInstanceEventsResponse_Event:
		f.req.AfterSeq = m.Event.GetSeq()
		return yield(followMessage{event: m.Event})
	}
	return true
}

// A backoff decides how long to wait before the next attempt.
type backoff struct {
	connected bool      // at least once
	since     time.Time // of the outage; zero: none yet
	wait      time.Duration
}

// recordAttempt records whether a server answered, and how long the stream lasted. A
// long one ends the outage.
func (b *backoff) recordAttempt(answered bool, lasted time.Duration) {
	b.connected = b.connected || answered
	if answered && lasted > maxWait {
		b.since = time.Time{}
	}
}

// next returns how long to wait after an attempt that ended with err at now, and
// whether to retry.
func (b *backoff) next(err error, now time.Time) (time.Duration, bool) {
	if mayPass := errors.Is(err, nstance.Unavailable) || errors.Is(err, nstance.Throttled); !b.connected || !mayPass {
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
