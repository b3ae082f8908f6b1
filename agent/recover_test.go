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
	// asleep registers, and starts again after the certificate has expired.
	asleep := func(t *testing.T, s *shard, m *machine) (first *visit) {
		t.Helper()
		_, stop := m.start()
		first = s.next()
		stop()
		require.NoError(t, os.Remove(m.path("nonce.jwt")))
		after(lifetime + time.Minute)
		return first
	}

	t.Run("a time without servers, longer than a certificate's life, needs no nonce", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShard(t, registration.Options{AgentLifetime: 8 * time.Minute})
			defer s.stop()
			m := s.machine()
			a, stop := m.start()
			defer stop()
			first := s.next()
			require.NoError(t, os.Remove(m.path("nonce.jwt")))
			s.network.away(true)
			after(10 * time.Minute)
			require.False(t, a.Status().Connected)
			s.network.away(false)
			back := time.Now()
			second := s.next()
			require.LessOrEqual(t, second.at.Sub(back), 70*time.Second, "the backoff of a long outage for one port, the short one for the other")
			require.Equal(t, first.id.Subject, second.id.Subject)
			require.NotEqual(t, first.id.Serial, second.id.Serial)
			require.NotEqual(t, first.id.Key, second.id.Key)
			second.until(t, isReport)
			synctest.Wait()
			require.True(t, a.Status().Healthy())
			require.Equal(t, 1, s.count("register"))
			require.Equal(t, 1, s.count("recover"))
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a machine that slept for thirty hours is back at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			asleep(t, s, m)
			after(29 * time.Hour)
			woke := time.Now()
			_, stop := m.start()
			defer stop()
			require.Equal(t, woke, s.next().at)
		})
	})
	t.Run("a lost reply heals itself with the same key, over a restart, too", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			asleep(t, s, m)
			s.do(func() { s.lose["recover"] = 3 })
			_, stop := m.start()
			synctest.Wait()
			stop()
			_, stop = m.start()
			defer stop()
			s.next()
			s.do(func() {
				require.Len(t, s.calls["recover"], 4)
				for _, csr := range s.calls["recover"] {
					require.Equal(t, s.calls["recover"][0], csr)
				}
			})
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("so does a renewal whose reply was lost before the silence", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.do(func() { s.lose["renew"] = 1 })
			_, stop := m.start()
			s.next()
			for s.count("renew") == 0 {
				after(time.Second)
			}
			stop()
			after(3 * lifetime)
			_, stop = m.start()
			defer stop()
			s.next()
			require.Equal(t, 1, s.count("recover"))
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a deleted instance is told so, seldom", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			asleep(t, s, m)
			delete(s.records.all, m.id)
			a, stop := m.start()
			defer stop()
			after(10 * time.Minute)
			require.Contains(t, a.Status().Error, "no record")
			require.Contains(t, a.Status().Error, "certificate that ends at")
			require.False(t, a.Status().Registered)
			require.LessOrEqual(t, s.count("recover"), 22)
		})
	})
	t.Run("a used nonce is not presented", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			nonce := m.nonce(m.id, time.Hour)
			asleep(t, s, m)
			m.write("nonce.jwt", nonce)
			_, stop := m.start()
			defer stop()
			s.next()
			require.Equal(t, 1, s.count("register"))
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a clock that is fast does not make it spin", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var behind atomic.Int64 // the server, seen from the agent
			s := newShard(t, registration.Options{AgentLifetime: lifetime, Now: func() time.Time {
				return time.Now().Add(-time.Duration(behind.Load()))
			}})
			defer s.stop()
			after(3 * lifetime) // the authority must be older than any certificate
			m := s.machine()
			asleep(t, s, m)
			behind.Store(int64(2 * lifetime))
			a, stop := m.start()
			defer stop()
			after(10 * time.Minute)
			require.Contains(t, a.Status().Error, "clock")
			require.LessOrEqual(t, s.count("recover"), 22)
			issued := s.records.all[m.id].Pending.Serial
			after(10 * time.Minute)
			require.Equal(t, issued, s.records.all[m.id].Pending.Serial)
			behind.Store(0)
			s.next()
		})
	})
}

// TestCalledExpired: the machine's clock is slow, and so it has the server's
// word for it only.
func TestCalledExpired(t *testing.T) {
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
		m := s.machine()
		m.o.AgentAddrs = []string{addrA}
		_, stop := m.start()
		defer stop()
		first := s.next()
		ahead.Store(int64(2 * lifetime))
		s.network.away(true)
		s.network.away(false)
		second := s.next()
		require.NotEqual(t, first.id.Serial, second.id.Serial)
		require.Less(t, second.at.Sub(first.at), time.Minute)
		require.Equal(t, 1, s.count("recover"))
		require.Zero(t, s.count("renew"))
	})
}
