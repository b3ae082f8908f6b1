package agent_test

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

func TestRegistration(t *testing.T) {
	t.Run("a nonce becomes an identity, and the first report comes at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			began := time.Now()
			a, stop := m.start()
			defer stop()
			v := s.next()
			require.Equal(t, string(m.id), v.id.Subject)
			r := v.until(t, isReport)
			require.EqualValues(t, 1, r.GetNumber())
			require.Equal(t, "v1:sha256:cafe", r.GetReport().GetConfigHash())
			require.Equal(t, nstance.ReportVersion, r.GetReport().GetVersion())
			synctest.Wait()
			require.Equal(t, began, time.Now(), "nothing waited")
			status := a.Status()
			require.True(t, status.Healthy())
			require.WithinDuration(t, began, status.LastReport, 0)
		})
	})
	t.Run("the files are there and closed to strangers", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			s.next()
			stop()
			for _, name := range []string{"key.pem", "cert.pem", "ca.pem", "server.json", "config.hash"} {
				info, err := os.Stat(m.path(name))
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o600), info.Mode(), name)
			}
		})
	})
	t.Run("a wider mode is for everything but the key", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			m.o.IdentityMode = 0o640
			modes := map[string]os.FileMode{
				"key.pem": 0o600, "cert.pem": 0o640, "ca.pem": 0o640, "config.hash": 0o640, "server.json": 0o640, "nonce.used": 0o640,
			}
			_, stop := m.start()
			s.next()
			stop()
			for name, mode := range modes {
				info, err := os.Stat(m.path(name))
				require.NoError(t, err)
				require.Equal(t, mode, info.Mode(), name)
			}
		})
	})
	t.Run("a restart does not register again, nor need the nonce", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			first := s.next()
			stop()
			require.NoError(t, os.Remove(m.path("nonce.jwt")))
			_, stop = m.start()
			defer stop()
			require.Equal(t, first.id.Serial, s.next().id.Serial)
			require.Equal(t, 1, s.count("register"))
		})
	})
	t.Run("sooner when the server asks, at a moment of its own", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			defer stop()
			first := s.next()
			ask := &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Renewal{
				Renewal: &apiv1.RenewalRequest{Within: durationpb.New(5 * time.Minute)},
			}}
			for range 3 { // it may be asked again
				first.send(ask)
			}
			second := s.next()
			require.Less(t, second.at.Sub(first.at), 5*time.Minute+2*time.Second)
			require.NotEqual(t, first.id.Serial, second.id.Serial)
			require.Equal(t, 1, s.count("renew"))
		})
	})
	t.Run("a request of the server delays nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			defer stop()
			first := s.next()
			after(lifetime / 2)
			first.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Renewal{
				Renewal: &apiv1.RenewalRequest{Within: durationpb.New(1000 * time.Hour)},
			}})
			second := s.next()
			require.Less(t, second.at.Sub(first.at), lifetime*2/3+2*time.Second)
		})
	})
	t.Run("a lost reply heals itself with the same key", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.do(func() { s.lose["register"] = 3 })
			_, stop := m.start()
			defer stop()
			s.next()
			require.Equal(t, 4, s.count("register"))
			require.Zero(t, s.alarms.Load(), "another key would have raised one")
		})
	})
	t.Run("so it does when the agent died in between", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.do(func() { s.lose["register"] = 1 })
			_, stop := m.start()
			synctest.Wait()
			stop()
			_, stop = m.start()
			defer stop()
			s.next()
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a refused nonce is reported and retried slowly, and a new one is taken", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			m.write("nonce.jwt", m.nonce(m.id, time.Second))
			after(5 * time.Second)
			a, stop := m.start()
			defer stop()
			after(10 * time.Minute)
			require.Contains(t, a.Status().Error, "expired")
			require.False(t, a.Status().Registered)
			require.LessOrEqual(t, s.count("register"), 22)
			require.GreaterOrEqual(t, s.count("register"), 10)
			m.write("nonce.jwt", m.nonce(m.id, time.Hour))
			s.next()
			synctest.Wait()
			require.Empty(t, a.Status().Error)
		})
	})
	t.Run("a deleted instance is reported, too", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			delete(s.records.all, m.id)
			a, stop := m.start()
			defer stop()
			after(time.Minute)
			require.Contains(t, a.Status().Error, "no record")
		})
	})
	t.Run("the nonce of another machine is not sent anywhere", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			other := s.machine()
			m.write("nonce.jwt", m.nonce(other.id, time.Hour))
			a, stop := m.start()
			defer stop()
			after(time.Minute)
			require.Contains(t, a.Status().Error, "NSTANCE_INSTANCE_ID")
			require.Zero(t, s.count("register"))
		})
	})
	t.Run("user data may come late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			nonce := m.nonce(m.id, time.Hour)
			require.NoError(t, os.Remove(m.path("nonce.jwt")))
			a, stop := m.start()
			defer stop()
			after(time.Minute)
			require.Contains(t, a.Status().Error, "no nonce yet")
			m.write("nonce.jwt", nonce)
			late := time.Now()
			s.next()
			require.LessOrEqual(t, time.Since(late), 5*time.Second)
		})
	})
	t.Run("an identity that cannot be read is no reason to register", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			s.next()
			stop()
			require.NoError(t, os.Remove(m.path("nonce.used"))) // the nonce itself would not hold it back
			require.NoError(t, os.Remove(m.path("v1/cert.pem")))
			require.NoError(t, os.Mkdir(m.path("v1/cert.pem"), 0o700)) // EISDIR, root or not
			a, stop := m.start()
			defer stop()
			after(5 * time.Minute)
			require.Equal(t, 1, s.count("register"))
			require.NotEmpty(t, a.Status().Error)
		})
	})
	t.Run("a server that is not the shard's is refused", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.serveAgents("elsewhere.test:8994", s.listen("elsewhere.test:8994"), s.certificate("zone-b"))
			m.o.AgentAddrs = []string{"elsewhere.test:8994"}
			a, stop := m.start()
			defer stop()
			after(time.Minute)
			require.Contains(t, a.Status().Error, "certificate")
			require.Empty(t, s.visits)
		})
	})
}

func TestRenewal(t *testing.T) {
	read := func(t *testing.T, m *machine) string {
		t.Helper()
		key, err := os.ReadFile(m.path("key.pem"))
		require.NoError(t, err)
		cert, err := os.ReadFile(m.path("cert.pem"))
		require.NoError(t, err)
		return string(key) + string(cert)
	}

	t.Run("at two thirds of its life, with a new key, and at once back with it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			defer stop()
			first := s.next()
			before := read(t, m)
			second := s.next()
			life := lifetime + time.Minute // it is back-dated by a minute
			require.WithinDuration(t, first.at.Add(life*2/3-time.Minute), second.at, 2*time.Second)
			require.NotEqual(t, first.id.Serial, second.id.Serial)
			require.NotEqual(t, first.id.Key, second.id.Key)
			require.NotEqual(t, before, read(t, m))
			require.Equal(t, first.addr, second.addr)
			first.until(t, isGoodbye)
			require.Equal(t, 1, s.count("register"))
			require.Equal(t, 1, s.count("renew"))
		})
	})
	t.Run("a lost reply heals itself with the same key", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.do(func() { s.lose["renew"] = 3 })
			_, stop := m.start()
			defer stop()
			s.next()
			s.next()
			require.Equal(t, 4, s.count("renew"))
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("an agent that was away renews as soon as it is back", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			s.next()
			stop()
			after(lifetime * 5 / 6)
			_, stop = m.start()
			defer stop()
			first, second := s.next(), s.next()
			require.NotEqual(t, first.id.Serial, second.id.Serial)
			require.Less(t, second.at.Sub(first.at), time.Second)
		})
	})
	t.Run("the pairs of former years do not pile up", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			for range 5 {
				s.next()
			}
			stop()
			entries, err := os.ReadDir(m.o.IdentityDir)
			require.NoError(t, err)
			versions := 0
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), "v") {
					versions++
				}
			}
			require.LessOrEqual(t, versions, 2)
		})
	})
}
