package operators

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// streams are the open streams of operators and administrators in one term. Their
// certificates are checked when they begin, and the streams end when a certificate is
// no longer valid.
type streams struct {
	mu   sync.Mutex
	open map[*openStream]bool // as many as there are
}

// An openStream is one of them.
type openStream struct {
	id              nstance.Identity
	cancel          context.CancelCauseFunc
	closeConnection func() // ends Send, which nothing else can
	timer           *time.Timer
}

// begin registers a stream until done is called.
func (l *streams) begin(o *openStream) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[*openStream]bool{}
	}
	l.open[o] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, o)
		if o.timer != nil {
			o.timer.Stop()
		}
	}
}

// end ends the streams for which reason returns an error, with that error. A client
// that does not read loses its connection soon after.
func (l *streams) end(reason func(nstance.Identity) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for o := range l.open {
		if err := reason(o.id); err != nil && o.timer == nil {
			o.cancel(err)
			o.timer = time.AfterFunc(ports.CloseGrace, o.closeConnection)
		}
	}
}

// recheckWidth is how many certificates are checked at the same time.
const recheckWidth = 16

// RecheckStreams ends the streams and connections of operators that were revoked by a
// server of another shard, or by hand. A record whose store does not answer delays no other.
func (t *Term) RecheckStreams(ctx context.Context) {
	var checks errgroup.Group
	checks.SetLimit(recheckWidth)
	for _, id := range t.Connected() {
		checks.Go(func() error {
			t.recheck(ctx, id)
			return nil
		})
	}
	_ = checks.Wait() // never fails
}

func (t *Term) recheck(ctx context.Context, id nstance.Identity) {
	_, err := t.Verify(ctx, id)
	if code := nstance.CodeOf(err); code != nstance.Denied && code != nstance.NotFound {
		return // a record that cannot be read ends nothing
	}
	t.streams.end(func(o nstance.Identity) error {
		if o == id {
			return err
		}
		return nil
	})
	t.End(id, err)
}

// ServeStream serves a stream of the caller in ctx, until the certificate that it began
// with is no longer valid.
func (*Service) ServeStream(stream context.Context, serve func(context.Context) error) error {
	c := callerOf(stream)
	done, err := c.beginWatch()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancelCause(stream)
	defer cancel(nil)
	defer c.term.streams.begin(&openStream{id: c.Identity, cancel: cancel, closeConnection: ports.CloseConnection(stream)})()
	if _, err := c.term.Verify(ctx, c.Identity); err != nil {
		return err // revoked before the stream was registered
	}
	err = serve(ctx)
	if cause := context.Cause(ctx); ctx.Err() != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// closeAfterTerm closes the connection below a stream some time after the term has
// ended, unless the function that it returns is called before.
func (t *Term) closeAfterTerm(stream context.Context) (cancel func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(t.Lease.Context(), func() {
		wait := time.NewTimer(ports.CloseGrace)
		defer wait.Stop()
		select {
		case <-wait.C:
			ports.CloseConnection(stream)()
		case <-over:
		}
	})
	return func() { stop(); close(over) }
}
