package agent_test

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/spot"
)

// pings counts signs of life.
type pings struct {
	mu sync.Mutex
	n  int
}

func (p *pings) say(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state == "WATCHDOG=1" {
		p.n++
	}
}

// during returns how many there are in that time.
func (p *pings) during(d time.Duration) int {
	count := func() int { p.mu.Lock(); defer p.mu.Unlock(); return p.n }
	before := count()
	after(d)
	return count() - before
}

// supervised runs an agent under a watchdog of a minute, which it tells of its
// life every 30 s.
func (m *machine) supervised() (p *pings, stop func()) {
	m.t.Helper()
	p = &pings{}
	m.o.Watchdog = time.Minute
	a, err := agent.New(m.o)
	require.NoError(m.t, err)
	agent.SetNotify(a, p.say)
	ctx, cancel := context.WithCancel(m.t.Context())
	over := make(chan error, 1)
	go func() { over <- a.Run(ctx) }()
	return p, sync.OnceFunc(func() {
		cancel()
		require.NoError(m.t, <-over)
	})
}

// A stuckLog blocks the goroutine that logs that message, until it is released.
type stuckLog struct {
	slog.Handler
	message string
	release chan struct{}
}

func (l *stuckLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == l.message {
		<-l.release
	}
	return l.Handler.Handle(ctx, r)
}

func (l *stuckLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &stuckLog{l.Handler.WithAttrs(attrs), l.message, l.release}
}

func (m *machine) stuckAt(message string) (release func()) {
	l := &stuckLog{m.o.Log.Handler(), message, make(chan struct{})}
	m.o.Log = slog.New(l)
	return sync.OnceFunc(func() { close(l.release) })
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWatchdog(t *testing.T) {
	const all = 20 // in ten minutes
	t.Run("is told of a session that has nothing to do", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.interval = 5 * time.Minute
			p, stop := m.supervised()
			defer stop()
			s.next()
			require.Equal(t, all, p.during(10*time.Minute))
		})
	})
	t.Run("is told of an agent whose servers are away, or refuse, for long", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			p, stop := m.supervised()
			defer stop()
			s.next()
			s.network.away(true)
			require.Equal(t, all, p.during(10*time.Minute))
			s.do(func() {
				s.refuse = func(nstance.Identity, string) error { return status.Error(codes.PermissionDenied, "no") }
			})
			s.network.away(false)
			require.Equal(t, all, p.during(10*time.Minute))
		})
	})
	t.Run("hears nothing of a session that is stuck", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			release := m.stuckAt("connected")
			p, stop := m.supervised()
			defer stop()
			defer release()
			s.next()
			after(2 * time.Minute)
			require.Zero(t, p.during(10*time.Minute))
			release()
			require.NotZero(t, p.during(10*time.Minute))
		})
	})
	t.Run("hears nothing of a notice that cannot be handled", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			release := m.stuckAt("notice detected")
			p, stop := m.supervised()
			defer stop()
			defer release()
			s.next()
			require.NotZero(t, p.during(5*time.Minute))
			m.notice <- reclaimIn(time.Hour)
			after(2 * time.Minute)
			require.Zero(t, p.during(10*time.Minute))
		})
	})
	t.Run("hears nothing of a detector that hangs, with any of its keys", func(t *testing.T) {
		for name, detector := range map[string]func(o *spot.Options) (nstance.SpotDetector, error){
			"latest/meta-data/spot/instance-action":         func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewAWS(o) },
			"computeMetadata/v1/instance/preempted":         func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewGCP(o) },
			"latest/meta-data/events/maintenance/scheduled": func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewAWS(o) },
		} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, s *shard, m *machine) {
					hang, release := make(chan struct{}), make(chan struct{})
					d, err := detector(&spot.Options{Client: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
						select {
						case <-hang:
							if r.URL.Path == "/"+name {
								<-release // whatever its context says
							}
						default:
						}
						return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Header: http.Header{}}, nil
					})}})
					require.NoError(t, err)
					m.o.Detector = d
					p, stop := m.supervised()
					defer stop()
					defer close(release)
					s.next()
					require.Equal(t, all, p.during(10*time.Minute))
					close(hang)
					after(2 * time.Minute)
					require.Zero(t, p.during(10*time.Minute))
				})
			})
		}
	})
}
