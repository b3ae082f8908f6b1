package agent_test

import (
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

func TestRecovery(t *testing.T) {
	t.Parallel()
	// asleep registers, and starts again after the certificate has expired.
	asleep := func(t *testing.T, s *testShard, m *machine) (first *serverSession) {
		t.Helper()
		_, stop := m.start()
		first = s.awaitSession()
		stop()
		require.NoError(t, os.Remove(m.path("nonce.jwt")))
		advance(lifetime + time.Minute)
		return first
	}

	t.Run("an outage longer than a certificate's life needs no nonce", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShard(t, registration.Options{AgentLifetime: 8 * time.Minute})
			defer s.stop()
			m := s.newMachine()
			a, stop := m.start()
			defer stop()
			first := s.awaitSession()
			require.NoError(t, os.Remove(m.path("nonce.jwt")))
			s.network.setDown(true)
			advance(10 * time.Minute)
			require.False(t, a.Status().Connected)
			s.network.setDown(false)
			back := time.Now()
			second := s.awaitSession()
			require.LessOrEqual(t, second.at.Sub(back), 70*time.Second, "the backoff of a long outage for one port, the short one for the other")
			require.Equal(t, first.id.Subject, second.id.Subject)
			require.NotEqual(t, first.id.Serial, second.id.Serial)
			require.NotEqual(t, first.id.Key, second.id.Key)
			second.awaitMessage(t, isReport)
			synctest.Wait()
			require.True(t, a.Status().Healthy())
			require.Equal(t, 1, s.countCalls("register"))
			require.Equal(t, 1, s.countCalls("recover"))
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a machine that slept for thirty hours is back at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			asleep(t, s, m)
			advance(29 * time.Hour)
			woke := time.Now()
			_, stop := m.start()
			defer stop()
			require.Equal(t, woke, s.awaitSession().at)
		})
	})
	t.Run("after a lost reply the same key is certified, also after a restart", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			asleep(t, s, m)
			s.configure(func() { s.lostReplies["recover"] = 3 })
			_, stop := m.start()
			synctest.Wait()
			stop()
			_, stop = m.start()
			defer stop()
			s.awaitSession()
			s.configure(func() {
				require.Len(t, s.callCSRs["recover"], 4)
				for _, csr := range s.callCSRs["recover"] {
					require.Equal(t, s.callCSRs["recover"][0], csr)
				}
			})
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a renewal whose reply was lost before the outage uses the same key", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() { s.lostReplies["renew"] = 1 })
			_, stop := m.start()
			s.awaitSession()
			for s.countCalls("renew") == 0 {
				advance(time.Second)
			}
			stop()
			advance(3 * lifetime)
			_, stop = m.start()
			defer stop()
			s.awaitSession()
			require.Equal(t, 1, s.countCalls("recover"))
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a deleted instance is refused and retries seldom", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			asleep(t, s, m)
			delete(s.records.all, m.id)
			a, stop := m.start()
			defer stop()
			advance(10 * time.Minute)
			require.Contains(t, a.Status().Error, "no record")
			require.Contains(t, a.Status().Error, "certificate that ends at")
			require.False(t, a.Status().Registered)
			require.LessOrEqual(t, s.countCalls("recover"), 22)
		})
	})
	t.Run("a used nonce is not sent", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			nonce := m.mintNonce(m.id, time.Hour)
			asleep(t, s, m)
			m.writeIdentityFile("nonce.jwt", nonce)
			_, stop := m.start()
			defer stop()
			s.awaitSession()
			require.Equal(t, 1, s.countCalls("register"))
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a fast clock causes no retry loop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var behind atomic.Int64 // how far the server's clock is behind the agent's
			s := newShard(t, registration.Options{AgentLifetime: lifetime, Now: func() time.Time {
				return time.Now().Add(-time.Duration(behind.Load()))
			}})
			defer s.stop()
			advance(3 * lifetime) // the authority must be older than any certificate
			m := s.newMachine()
			asleep(t, s, m)
			behind.Store(int64(2 * lifetime))
			a, stop := m.start()
			defer stop()
			advance(10 * time.Minute)
			require.Contains(t, a.Status().Error, "clock")
			require.LessOrEqual(t, s.countCalls("recover"), 22)
			issued := s.records.all[m.id].Pending.Serial
			advance(10 * time.Minute)
			require.Equal(t, issued, s.records.all[m.id].Pending.Serial)
			behind.Store(0)
			s.awaitSession()
		})
	})
}

// TestExpiryReportedByServer: the machine's clock is slow, so only the server's TLS
// alert shows the expiry.
func TestExpiryReportedByServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		s := newAuthority(t, registration.Options{AgentLifetime: lifetime, Now: now})
		defer s.stop()
		cert := s.certificate(zone)
		s.serveRegistration(s.listen(regAddr), cert)
		cfg := pki.ServerTLS(cert, s.authority.Pool(), nstance.RoleAgent)
		cfg.Time = now
		s.serveAgentsWith(addrA, s.listen(addrA), cfg)
		m := s.newMachine()
		m.options.AgentAddrs = []string{addrA}
		_, stop := m.start()
		defer stop()
		first := s.awaitSession()
		ahead.Store(int64(2 * lifetime))
		s.network.setDown(true)
		s.network.setDown(false)
		second := s.awaitSession()
		require.NotEqual(t, first.id.Serial, second.id.Serial)
		require.Less(t, second.at.Sub(first.at), time.Minute)
		require.Equal(t, 1, s.countCalls("recover"))
		require.Zero(t, s.countCalls("renew"))
	})
}
