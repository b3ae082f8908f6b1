package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// streams are the open streams of operators and administrators in one term.
// Their certificates are checked when they begin; here they can be found when
// one does not stand any more.
type streams struct {
	mu   sync.Mutex
	open map[*openStream]bool // as many as there are
}

// An openStream is one of them.
type openStream struct {
	id     nstance.Identity
	cancel context.CancelCauseFunc
	hangUp func() // ends Send, which nothing else can
	timer  *time.Timer
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

// holders returns whose streams are open, each once.
func (l *streams) holders() []nstance.Identity {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[nstance.Identity]bool{}
	var out []nstance.Identity
	for o := range l.open {
		if !seen[o.id] {
			seen[o.id] = true
			out = append(out, o.id)
		}
	}
	return out
}

// end ends the streams for which why is not nil, with that as the reason. A
// client that does not read loses its connection soon after.
func (l *streams) end(why func(nstance.Identity) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for o := range l.open {
		if err := why(o.id); err != nil && o.timer == nil {
			o.cancel(err)
			o.timer = time.AfterFunc(ports.CloseGrace, o.hangUp)
		}
	}
}

// recheckStreams ends the streams of those who have been revoked by a server of
// another shard, or by hand.
func (t *term) recheckStreams(ctx context.Context) {
	for _, id := range t.streams.holders() {
		_, err := t.registrar.Verify(ctx, id)
		if code := nstance.CodeOf(err); code != nstance.Denied && code != nstance.NotFound {
			continue // what cannot be read ends nothing
		}
		t.streams.end(func(o nstance.Identity) error {
			if o == id {
				return err
			}
			return nil
		})
	}
}

// guarded serves a stream of an operator or administrator, until the certificate
// that it began with does not stand any more.
func (c caller) guarded(ss grpc.ServerStream, serve func(context.Context) error) error {
	done, err := c.beginWatch()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancelCause(context.WithValue(ss.Context(), callerKey{}, c))
	defer cancel(nil)
	defer c.term.streams.begin(&openStream{id: c.Identity, cancel: cancel, hangUp: ports.CloseConnection(ss.Context())})()
	if _, err := c.term.registrar.Verify(ctx, c.Identity); err != nil {
		return err // revoked just before it could be found
	}
	err = serve(ctx)
	if cause := context.Cause(ctx); ctx.Err() != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
