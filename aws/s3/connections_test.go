package s3_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// counted puts a proxy in front of a service, and counts its connections.
func counted(t *testing.T, target string) (p *faultproxy.Proxy, endpoint string, accepted *atomic.Int64) {
	t.Helper()
	p, err := faultproxy.New(target)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	srv, accepted := httptest.NewUnstartedServer(p), &atomic.Int64{}
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			accepted.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	return p, srv.URL, accepted
}

// TestDeletionsKeepConnections: a deletion reads no body and leaves its connection
// reusable, also for parallel deletions.
func TestDeletionsKeepConnections(t *testing.T) {
	const objects, width = 1000, 64
	p, endpoint, accepted := counted(t, service(t))
	s := open(t, endpoint, "")
	keys := make(chan string)
	go func() {
		defer close(keys)
		for i := range objects {
			keys <- fmt.Sprintf("instance/z1/default/web/%04d.json", i)
		}
	}()
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			for key := range keys {
				v, err := s.PutIfAbsent(t.Context(), key, bytes.Repeat([]byte("x"), 8<<10))
				if err == nil {
					err = s.DeleteIfMatch(t.Context(), key, v)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, objects, p.Count(http.MethodDelete))
	require.Zero(t, p.Count(http.MethodGet), "a deletion looks at the head only")
	require.LessOrEqual(t, accepted.Load(), int64(2*width), "connections")
}

// wired returns a store whose connections use a wire, several of them open and idle.
func wired(t *testing.T) (*faultproxy.Wire, storage.Store) {
	t.Helper()
	u, err := url.Parse(service(t))
	require.NoError(t, err)
	wire, err := faultproxy.NewWire(u.Host)
	require.NoError(t, err)
	t.Cleanup(wire.Close)
	return wire, openFor(t, "http://"+wire.Addr(), "", time.Minute)
}

// warm leaves n idle connections.
func warm(t *testing.T, wire *faultproxy.Wire, s storage.Store, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if _, err := s.Get(t.Context(), "nothing"); nstance.CodeOf(err) != nstance.NotFound {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		return wire.Accepted() >= n
	}, time.Minute, time.Millisecond)
}

// TestSilencedConnections: after a call without an answer, the next one uses a new
// connection.
func TestSilencedConnections(t *testing.T) {
	for name, limited := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"a deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 50*time.Millisecond)
		},
		"a caller's own clock": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			timer := time.AfterFunc(50*time.Millisecond, func() { cancel(context.DeadlineExceeded) })
			return ctx, func() { timer.Stop(); cancel(nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			wire, s := wired(t)
			v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
			require.NoError(t, err)
			warm(t, wire, s, 8)
			wire.Silence()
			ctx, cancel := limited(t.Context())
			defer cancel()
			_, err = s.PutIfMatch(ctx, "a", []byte("2"), v)
			require.Error(t, err)
			swallowed := wire.Swallowed()

			obj, err := s.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, "1", string(obj.Data))
			require.Equal(t, swallowed, wire.Swallowed(), "no other call has waited")
		})
	}
}

// A steppedClock stands still until the test lets a timer fire, but for a moment at each
// look, so that no pause is as long as the limit of a call.
type steppedClock struct {
	mu     sync.Mutex
	now    time.Duration
	timers map[*timer]bool
}

type timer struct {
	length, at time.Duration
	f          func()
}

func (c *steppedClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += time.Microsecond
	return c.now
}

func (c *steppedClock) AfterFunc(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	added := &timer{d, c.now + d, f}
	c.timers[added] = true
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		stands := c.timers[added]
		delete(c.timers, added)
		return stands
	}
}

// step ends a pause, or else the call whose answer was lost, and reports whether it was a
// call. A term's own timer, which is the last one, stands beside either.
func (c *steppedClock) step(limit time.Duration, lost bool) (call bool) {
	c.mu.Lock()
	var next *timer
	for t := range c.timers {
		call = call || t.length == limit
		if next == nil || t.at < next.at {
			next = t
		}
	}
	if call && !lost || len(c.timers) < 2 {
		c.mu.Unlock()
		return false
	}
	var due []func()
	c.now = max(c.now, next.at)
	for t := range c.timers {
		if t.at <= c.now {
			delete(c.timers, t)
			due = append(due, t.f)
		}
	}
	c.mu.Unlock()
	for _, f := range due {
		f()
	}
	return call
}

// TestLeaseOnSilencedConnections: a packet filter that drops all open connections costs
// no term. The clock moves only for the lease's own pauses and for calls that are never
// answered.
func TestLeaseOnSilencedConnections(t *testing.T) {
	const ttl = 6 * time.Second
	wire, s := wired(t)
	clock := &steppedClock{timers: map[*timer]bool{}}
	_, err := lease.Prepare(t.Context(), s, shard)
	require.NoError(t, err)
	l, err := lease.New(s, shard, &lease.Options{TTL: ttl, Clock: clock})
	require.NoError(t, err)
	warm(t, wire, s, 8)
	accepted := wire.Accepted()
	term, err := l.Campaign(t.Context())
	require.NoError(t, err)
	require.Greater(t, wire.Accepted(), accepted, "its connections are its own")
	renewals := &atomic.Int64{}
	announced := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(announced)
		for range l.Announcements(ctx) {
			renewals.Add(1)
		}
	}()
	eventually := func(condition func() bool) {
		t.Helper()
		require.Eventually(t, condition, time.Minute, time.Millisecond)
	}
	eventually(func() bool { return renewals.Load() == 1 })
	ended := wire.Swallowed()
	for range 3 {
		wire.Silence()
		before := renewals.Load()
		eventually(func() bool {
			swallowed := wire.Swallowed()
			if clock.step(ttl/6, swallowed > ended) {
				ended = swallowed
			}
			return renewals.Load() > before || term.Err() != nil
		})
		require.NoError(t, term.Err())
	}
	cancel()
	<-announced
	require.NoError(t, l.Resign(context.Background()))
}
