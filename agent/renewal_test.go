package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

// skewed runs f with a server whose clock is behind the agent's by that much, or
// ahead if it is negative.
func skewed(t *testing.T, behind time.Duration, f func(t *testing.T, s *shard, m *machine)) {
	synctest.Test(t, func(t *testing.T) {
		now := func() time.Time { return time.Now().Add(-behind) }
		s := newAuthority(t, registration.Options{AgentLifetime: lifetime, Now: now})
		defer s.stop()
		cert := s.certificate(zone)
		s.serveRegistration(s.listen(regAddr), cert)
		cfg := pki.ServerTLS(cert, s.authority.Pool(), nstance.RoleAgent)
		cfg.Time = now
		s.serveAgentsWith(addrA, s.listen(addrA), cfg)
		if behind > 0 {
			after(behind) // the authority must be older than any certificate
		}
		m := s.machine()
		m.write("nonce.jwt", m.nonce(m.id, 24*time.Hour))
		m.o.AgentAddrs = []string{addrA}
		f(t, s, m)
	})
}

func TestRenewalGoesByElapsedTime(t *testing.T) {
	due := (lifetime+time.Minute)*2/3 - time.Minute
	t.Run("a clock that is ahead renews no sooner", func(t *testing.T) {
		skewed(t, lifetime*3/4, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			defer stop()
			first := s.next()
			after(due - time.Second)
			require.Zero(t, s.count("renew"))
			second := s.next()
			require.WithinDuration(t, first.at.Add(due), second.at, 2*time.Second)
			after(due - time.Second)
			require.Equal(t, 1, s.count("renew"))
		})
	})
	t.Run("after a restart it renews once", func(t *testing.T) {
		skewed(t, lifetime*3/4, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			s.next()
			stop()
			_, stop = m.start()
			defer stop()
			after(due - time.Second)
			require.Equal(t, 1, s.count("renew"))
		})
	})
	t.Run("a clock that is behind renews in time, over a restart, too", func(t *testing.T) {
		skewed(t, -3*lifetime, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			s.next()
			stop()
			_, stop = m.start()
			defer stop()
			first := s.next()
			second := s.next()
			require.LessOrEqual(t, second.at.Sub(first.at), due+2*time.Second)
			require.Equal(t, 1, s.count("renew"))
		})
	})
	t.Run("new sessions do not hurry a renewal that fails", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.do(func() { s.lose["renew"] = 1 << 20 })
			_, stop := m.start()
			s.next()
			stop()
			after(due)
			_, stop = m.start()
			defer stop()
			for range 60 { // each long enough to be called well, so that the next one comes at once
				v := s.next()
				<-time.After(6 * time.Second)
				v.end <- status.Error(codes.Unavailable, "restart")
			}
			require.LessOrEqual(t, s.count("renew"), 30)
		})
	})
	t.Run("a server that asks in every session is not always obeyed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShard(t, registration.Options{PerHolder: registration.Limit{PerSecond: 1e6, Burst: 1e6}})
			defer s.stop()
			_, stop := s.machine().start()
			defer stop()
			for began := time.Now(); time.Since(began) < 10*time.Minute; {
				v := s.next()
				v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Renewal{
					Renewal: &apiv1.RenewalRequest{Within: durationpb.New(time.Millisecond)},
				}})
			}
			require.LessOrEqual(t, s.count("renew"), 61)
		})
	})
}
