package ports

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// CloseGrace is the time between the request to end a stream and the end of its
// connection: what is queued on both sides still gets out.
const CloseGrace = time.Second

// SendTimeout is how long a client may leave what it is sent unread before its
// connection is closed.
const SendTimeout = 10 * time.Second

// ErrTermEnded ends what is served by a server that no longer leads.
var ErrTermEnded error = &nstance.Error{Code: nstance.Unavailable, Msg: "this server does not lead its shard any more"}

// ErrUntrusted ends what rests on a certificate whose authority is gone.
var ErrUntrusted error = &nstance.Error{
	Code: nstance.Denied, Msg: "the key that signed this certificate is not trusted any more", Remedy: "register again",
}

// Expiry ends calls and streams whose certificate has expired. The handshake
// checks a certificate once, and a connection may outlive it. So each call checks
// it again, and each stream ends with it.
type Expiry struct {
	Now      func() time.Time
	Interval time.Duration // between two looks at the wall clock, which may be set
}

// Check fails with Denied once the certificate of id has expired.
func (e Expiry) Check(id nstance.Identity) error {
	if e.Now().Before(id.NotAfter) {
		return nil
	}
	return &nstance.Error{
		Code: nstance.Denied, Msg: "certificate " + id.Serial + " expired at " + id.NotAfter.Format(time.RFC3339),
		Remedy: "connect again with a renewed certificate, or register again",
	}
}

// On calls end when the certificate of id has expired, unless stop was called
// before. stop waits for end.
func (e Expiry) On(id nstance.Identity, end func(error)) (stop func()) {
	var (
		mu      sync.Mutex
		timer   *time.Timer
		stopped bool
		check   func()
	)
	check = func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		if err := e.Check(id); err != nil {
			stopped = true
			end(err)
			return
		}
		timer = time.AfterFunc(min(id.NotAfter.Sub(e.Now()), e.Interval), check)
	}
	check()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		if timer != nil {
			timer.Stop()
		}
	}
}

// Serve serves a stream whose context ends when the certificate of id expires. A
// client that does not read loses its connection CloseGrace later.
func (e Expiry) Serve(ctx context.Context, id nstance.Identity, serve func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer e.On(id, func(err error) {
		cancel(err)
		time.AfterFunc(CloseGrace, CloseConnection(ctx))
	})()
	err := serve(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
