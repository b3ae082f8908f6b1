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
	"github.com/nstance-go/nstance/agent"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

// inSkewedBubble runs f with a server whose clock is behind the agent's, or ahead if
// behind is negative.
func inSkewedBubble(t *testing.T, behind time.Duration, f func(t *testing.T, s *testShard, m *machine)) {
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
			advance(behind) // the authority must be older than any certificate
		}
		m := s.newMachine()
		m.writeIdentityFile("nonce.jwt", m.mintNonce(m.id, 24*time.Hour))
		m.options.AgentAddrs = []string{addrA}
		f(t, s, m)
	})
}

func TestRenewalUsesElapsedTime(t *testing.T) {
	t.Parallel()
	due := (lifetime+time.Minute)*2/3 - time.Minute
	t.Run("a fast clock does not renew sooner", func(t *testing.T) {
		inSkewedBubble(t, lifetime*3/4, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			defer stop()
			first := s.awaitSession()
			advance(due - time.Second)
			require.Zero(t, s.countCalls("renew"))
			second := s.awaitSession()
			require.WithinDuration(t, first.at.Add(due), second.at, 2*time.Second)
			advance(due - time.Second)
			require.Equal(t, 1, s.countCalls("renew"))
		})
	})
	t.Run("after a restart it renews once", func(t *testing.T) {
		inSkewedBubble(t, lifetime*3/4, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			_, stop = m.start()
			defer stop()
			advance(due - time.Second)
			require.Equal(t, 1, s.countCalls("renew"))
		})
	})
	t.Run("a slow clock renews in time, also after a restart", func(t *testing.T) {
		inSkewedBubble(t, -3*lifetime, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			_, stop = m.start()
			defer stop()
			first := s.awaitSession()
			second := s.awaitSession()
			require.LessOrEqual(t, second.at.Sub(first.at), due+2*time.Second)
			require.Equal(t, 1, s.countCalls("renew"))
		})
	})
	t.Run("new sessions do not speed up a failing renewal", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() { s.lostReplies["renew"] = 1 << 20 })
			_, stop := m.start()
			s.awaitSession()
			stop()
			advance(due)
			_, stop = m.start()
			defer stop()
			for range 60 { // each lasts long enough that the next one starts at once
				v := s.awaitSession()
				<-time.After(6 * time.Second)
				v.endWith <- status.Error(codes.Unavailable, "restart")
			}
			require.LessOrEqual(t, s.countCalls("renew"), 30)
		})
	})
	t.Run("a request right after a certificate was received is met at once, the next one is not", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			defer stop()
			request := &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Renewal{Renewal: &apiv1.RenewalRequest{}}}
			first := s.awaitSession()
			first.send(request)
			second := s.awaitSession()
			require.Less(t, second.at.Sub(first.at), 100*time.Millisecond, "a machine that slept since waits for nothing")
			second.send(request)
			require.GreaterOrEqual(t, s.awaitSession().at.Sub(second.at), 9*time.Second)
		})
	})
	t.Run("requests of the server in every session are limited", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShard(t, registration.Options{PerHolder: registration.Limit{PerSecond: 1e6, Burst: 1e6}})
			defer s.stop()
			_, stop := s.newMachine().start()
			defer stop()
			for began := time.Now(); time.Since(began) < 10*time.Minute; {
				v := s.awaitSession()
				v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Renewal{
					Renewal: &apiv1.RenewalRequest{Within: durationpb.New(time.Millisecond)},
				}})
			}
			require.LessOrEqual(t, s.countCalls("renew"), 61)
		})
	})
}

// TestSlept: a session does not outlast a sleep of its machine, whichever clock stood still.
func TestSlept(t *testing.T) {
	t.Parallel()
	now := time.Now()
	later := now.Add(time.Hour)
	for name, c := range map[string]struct {
		last, now time.Time
		want      bool
	}{
		"an ordinary tick":              {now, now.Add(time.Second), false},
		"a late tick":                   {now, now.Add(4 * time.Second), false},
		"the process was stopped":       {now, later, true},
		"the monotonic clock stood":     {now, later.Round(0), true},
		"the clock was set back":        {now, now.Add(-time.Hour), false},
		"the clock was set ahead a bit": {now, now.Add(3 * time.Second).Round(0), false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, agent.Slept(c.last, c.now)) })
	}
}
