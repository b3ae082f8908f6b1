package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func TestRegistration(t *testing.T) {
	t.Parallel()
	t.Run("a nonce is exchanged for an identity, and the first report is sent at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			began := time.Now()
			a, stop := m.start()
			defer stop()
			v := s.awaitSession()
			require.Equal(t, string(m.id), v.id.Subject)
			r := v.awaitMessage(t, isReport)
			require.EqualValues(t, 1, r.GetNumber())
			require.Equal(t, "v1:sha256:cafe", r.GetReport().GetConfigHash())
			require.Equal(t, wire.ReportVersion, r.GetReport().GetVersion())
			synctest.Wait()
			require.Equal(t, began, time.Now(), "nothing waited")
			status := a.Status()
			require.True(t, status.Healthy())
			require.WithinDuration(t, began, status.LastReport, 0)
		})
	})
	t.Run("identity files have private modes", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			for _, name := range []string{"key.pem", "cert.pem", "ca.pem", "server.json", "config.hash"} {
				info, err := os.Stat(m.path(name))
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o600), info.Mode(), name)
			}
		})
	})
	t.Run("a wider mode does not apply to the key", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.IdentityMode = 0o640
			modes := map[string]os.FileMode{
				"key.pem": 0o600, "cert.pem": 0o640, "ca.pem": 0o640, "config.hash": 0o640, "server.json": 0o640, "nonce.used": 0o640,
			}
			_, stop := m.start()
			s.awaitSession()
			stop()
			for name, mode := range modes {
				info, err := os.Stat(m.path(name))
				require.NoError(t, err)
				require.Equal(t, mode, info.Mode(), name)
			}
		})
	})
	t.Run("user data in a folder of its own, which is only read", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.UserDataDir = t.TempDir()
			for _, name := range []string{"ca.crt", "nonce.jwt"} {
				text, err := os.ReadFile(m.path(name))
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(m.options.UserDataDir, name), text, 0o400))
				m.writeIdentityFile(name, "of the image")
			}
			require.NoError(t, os.Chmod(m.options.UserDataDir, 0o500)) //nolint:gosec // a folder
			_, stop := m.start()
			first := s.awaitSession()
			stop()
			entries, err := os.ReadDir(m.options.UserDataDir)
			require.NoError(t, err)
			require.Len(t, entries, 2)
			_, stop = m.start()
			defer stop()
			require.Equal(t, first.id.Serial, s.awaitSession().id.Serial, "and it is known which nonce was used")
		})
	})
	t.Run("a restart neither registers again nor needs the nonce", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			first := s.awaitSession()
			stop()
			require.NoError(t, os.Remove(m.path("nonce.jwt")))
			_, stop = m.start()
			defer stop()
			require.Equal(t, first.id.Serial, s.awaitSession().id.Serial)
			require.Equal(t, 1, s.countCalls("register"))
		})
	})
	t.Run("sooner when the server asks, at a random moment", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			defer stop()
			first := s.awaitSession()
			ask := &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Renewal{
				Renewal: &apiv1.RenewalRequest{Within: durationpb.New(5 * time.Minute)},
			}}
			for range 3 { // it may be asked again
				first.send(ask)
			}
			second := s.awaitSession()
			require.Less(t, second.at.Sub(first.at), 5*time.Minute+2*time.Second)
			require.NotEqual(t, first.id.Serial, second.id.Serial)
			require.Equal(t, 1, s.countCalls("renew"))
		})
	})
	t.Run("a request of the server delays nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			defer stop()
			first := s.awaitSession()
			advance(lifetime / 2)
			first.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Renewal{
				Renewal: &apiv1.RenewalRequest{Within: durationpb.New(1000 * time.Hour)},
			}})
			second := s.awaitSession()
			require.Less(t, second.at.Sub(first.at), lifetime*2/3+2*time.Second)
		})
	})
	t.Run("after a lost reply the same key is certified", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() { s.lostReplies["register"] = 3 })
			_, stop := m.start()
			defer stop()
			s.awaitSession()
			require.Equal(t, 4, s.countCalls("register"))
			require.Zero(t, s.alarms.Load(), "another key would have raised one")
		})
	})
	t.Run("after a lost reply and a restart the same key is certified", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() { s.lostReplies["register"] = 1 })
			_, stop := m.start()
			synctest.Wait()
			stop()
			_, stop = m.start()
			defer stop()
			s.awaitSession()
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a refused nonce is reported and retried slowly, and a new nonce is used", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.writeIdentityFile("nonce.jwt", m.mintNonce(m.id, time.Second))
			advance(5 * time.Second)
			a, stop := m.start()
			defer stop()
			advance(10 * time.Minute)
			require.Contains(t, a.Status().Error, "expired")
			require.False(t, a.Status().Registered)
			require.LessOrEqual(t, s.countCalls("register"), 22)
			require.GreaterOrEqual(t, s.countCalls("register"), 10)
			m.writeIdentityFile("nonce.jwt", m.mintNonce(m.id, time.Hour))
			s.awaitSession()
			synctest.Wait()
			require.Empty(t, a.Status().Error)
		})
	})
	t.Run("a deleted instance is reported", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			delete(s.records.all, m.id)
			a, stop := m.start()
			defer stop()
			advance(time.Minute)
			require.Contains(t, a.Status().Error, "no record")
		})
	})
	t.Run("the nonce of another machine is not sent", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			other := s.newMachine()
			m.writeIdentityFile("nonce.jwt", m.mintNonce(other.id, time.Hour))
			a, stop := m.start()
			defer stop()
			advance(time.Minute)
			require.Contains(t, a.Status().Error, "NSTANCE_INSTANCE_ID")
			require.Zero(t, s.countCalls("register"))
		})
	})
	t.Run("user data may come late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			nonce := m.mintNonce(m.id, time.Hour)
			require.NoError(t, os.Remove(m.path("nonce.jwt")))
			a, stop := m.start()
			defer stop()
			advance(time.Minute)
			require.Contains(t, a.Status().Error, "no nonce yet")
			m.writeIdentityFile("nonce.jwt", nonce)
			late := time.Now()
			s.awaitSession()
			require.LessOrEqual(t, time.Since(late), 5*time.Second)
		})
	})
	t.Run("an unreadable identity does not cause a registration", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			require.NoError(t, os.Remove(m.path("nonce.used"))) // otherwise the used nonce would prevent it
			require.NoError(t, os.Remove(m.path("v1/cert.pem")))
			require.NoError(t, os.Mkdir(m.path("v1/cert.pem"), 0o700)) // EISDIR, root or not
			a, stop := m.start()
			defer stop()
			advance(5 * time.Minute)
			require.Equal(t, 1, s.countCalls("register"))
			require.NotEmpty(t, a.Status().Error)
		})
	})
	t.Run("a server of another shard is refused", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.serveAgents("elsewhere.test:8994", s.listen("elsewhere.test:8994"), s.certificate("zone-b"))
			m.options.AgentAddrs = []string{"elsewhere.test:8994"}
			a, stop := m.start()
			defer stop()
			advance(time.Minute)
			require.Contains(t, a.Status().Error, "certificate")
			require.Empty(t, s.visits)
		})
	})
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, m *machine) string {
		t.Helper()
		key, err := os.ReadFile(m.path("key.pem"))
		require.NoError(t, err)
		cert, err := os.ReadFile(m.path("cert.pem"))
		require.NoError(t, err)
		return string(key) + string(cert)
	}

	t.Run("at two thirds of its life, with a new key, and it reconnects at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			defer stop()
			first := s.awaitSession()
			before := read(t, m)
			second := s.awaitSession()
			life := lifetime + time.Minute // it is back-dated by a minute
			require.WithinDuration(t, first.at.Add(life*2/3-time.Minute), second.at, 2*time.Second)
			require.NotEqual(t, first.id.Serial, second.id.Serial)
			require.NotEqual(t, first.id.Key, second.id.Key)
			require.NotEqual(t, before, read(t, m))
			require.Equal(t, first.addr, second.addr)
			first.awaitMessage(t, isGoodbye)
			require.Equal(t, 1, s.countCalls("register"))
			require.Equal(t, 1, s.countCalls("renew"))
		})
	})
	t.Run("after a lost reply the same key is certified", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() { s.lostReplies["renew"] = 3 })
			_, stop := m.start()
			defer stop()
			s.awaitSession()
			s.awaitSession()
			require.Equal(t, 4, s.countCalls("renew"))
			require.Zero(t, s.alarms.Load())
		})
	})
	t.Run("a disconnected agent renews when it reconnects", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			advance(lifetime * 5 / 6)
			_, stop = m.start()
			defer stop()
			first, second := s.awaitSession(), s.awaitSession()
			require.NotEqual(t, first.id.Serial, second.id.Serial)
			require.Less(t, second.at.Sub(first.at), time.Second)
		})
	})
	t.Run("old pairs are removed", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			for range 5 {
				s.awaitSession()
			}
			stop()
			entries, err := os.ReadDir(m.options.IdentityDir)
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
