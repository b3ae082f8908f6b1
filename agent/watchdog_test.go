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

// watchdogPings counts watchdog messages.
type watchdogPings struct {
	mu sync.Mutex
	n  int
}

func (p *watchdogPings) count(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state == "WATCHDOG=1" {
		p.n++
	}
}

// countDuring returns the number of messages during d.
func (p *watchdogPings) countDuring(d time.Duration) int {
	count := func() int { p.mu.Lock(); defer p.mu.Unlock(); return p.n }
	before := count()
	advance(d)
	return count() - before
}

// startWithWatchdog runs an agent under a watchdog of a minute, which the agent must
// notify every 30 s.
func (m *machine) startWithWatchdog() (p *watchdogPings, stop func()) {
	m.t.Helper()
	p = &watchdogPings{}
	m.options.Watchdog = time.Minute
	a, err := agent.New(m.options)
	require.NoError(m.t, err)
	agent.SetNotify(a, p.count)
	ctx, cancel := context.WithCancel(m.t.Context())
	over := make(chan error, 1)
	go func() { over <- a.Run(ctx) }()
	return p, sync.OnceFunc(func() {
		cancel()
		require.NoError(m.t, <-over)
	})
}

// A blockingLog blocks the goroutine that logs a message until the test releases it.
type blockingLog struct {
	slog.Handler
	message string
	release chan struct{}
}

func (l *blockingLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == l.message {
		<-l.release
	}
	return l.Handler.Handle(ctx, r)
}

func (l *blockingLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &blockingLog{l.Handler.WithAttrs(attrs), l.message, l.release}
}

func (m *machine) blockLogAt(message string) (release func()) {
	l := &blockingLog{m.options.Log.Handler(), message, make(chan struct{})}
	m.options.Log = slog.New(l)
	return sync.OnceFunc(func() { close(l.release) })
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWatchdog(t *testing.T) {
	t.Parallel()
	const all = 20 // in ten minutes
	t.Run("is notified by an idle session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.reportInterval = 5 * time.Minute
			p, stop := m.startWithWatchdog()
			defer stop()
			s.awaitSession()
			require.Equal(t, all, p.countDuring(10*time.Minute))
		})
	})
	t.Run("is notified during a long outage or refusal", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			p, stop := m.startWithWatchdog()
			defer stop()
			s.awaitSession()
			s.network.setDown(true)
			require.Equal(t, all, p.countDuring(10*time.Minute))
			s.configure(func() {
				s.refuseSession = func(nstance.Identity, string) error { return status.Error(codes.PermissionDenied, "no") }
			})
			s.network.setDown(false)
			require.Equal(t, all, p.countDuring(10*time.Minute))
		})
	})
	t.Run("is not notified by a stuck session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			release := m.blockLogAt("connected")
			p, stop := m.startWithWatchdog()
			defer stop()
			defer release()
			s.awaitSession()
			advance(2 * time.Minute)
			require.Zero(t, p.countDuring(10*time.Minute))
			release()
			require.NotZero(t, p.countDuring(10*time.Minute))
		})
	})
	t.Run("is not notified while a notice cannot be handled", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			release := m.blockLogAt("notice detected")
			p, stop := m.startWithWatchdog()
			defer stop()
			defer release()
			s.awaitSession()
			require.NotZero(t, p.countDuring(5*time.Minute))
			m.notice <- reclaimIn(time.Hour)
			advance(2 * time.Minute)
			require.Zero(t, p.countDuring(10*time.Minute))
		})
	})
	t.Run("is not notified while a detector hangs, with any of its keys", func(t *testing.T) {
		for name, detector := range map[string]func(o *spot.Options) (nstance.SpotDetector, error){
			"latest/meta-data/spot/instance-action":         func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewAWS(o) },
			"computeMetadata/v1/instance/preempted":         func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewGCP(o) },
			"latest/meta-data/events/maintenance/scheduled": func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewAWS(o) },
		} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, s *testShard, m *machine) {
					hang, release := make(chan struct{}), make(chan struct{})
					d, err := detector(&spot.Options{Client: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
						select {
						case <-hang:
							if r.URL.Path == "/"+name {
								<-release // ignores its context
							}
						default:
						}
						return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Header: http.Header{}}, nil
					})}})
					require.NoError(t, err)
					m.options.Detector = d
					p, stop := m.startWithWatchdog()
					defer stop()
					defer close(release)
					s.awaitSession()
					require.Equal(t, all, p.countDuring(10*time.Minute))
					close(hang)
					advance(2 * time.Minute)
					require.Zero(t, p.countDuring(10*time.Minute))
				})
			})
		}
	})
}
