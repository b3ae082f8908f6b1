package agent_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
)

// clone makes the directories of another machine a copy of m's, as an image does. Its user data is
// not written yet.
func (m *machine) clone() *machine {
	m.t.Helper()
	c := m.s.newMachine()
	c.options.KeysDir = m.t.TempDir()
	require.NoError(m.t, os.RemoveAll(c.options.IdentityDir))
	require.NoError(m.t, os.CopyFS(c.options.IdentityDir, os.DirFS(m.options.IdentityDir)))
	if m.options.KeysDir != "" {
		require.NoError(m.t, os.CopyFS(c.options.KeysDir, os.DirFS(m.options.KeysDir)))
	}
	return c
}

func (m *machine) writeNonce() {
	m.writeIdentityFile("nonce.jwt", m.mintNonce(m.id, 10*time.Minute))
}

// runsAsItself requires that the next session is the machine's own and that nothing of the
// other machine's identity is in use.
func (m *machine) runsAsItself(t *testing.T, s *testShard, other *machine) {
	t.Helper()
	v := s.awaitSession()
	require.Equal(t, string(m.id), v.id.Subject)
	named, _ := metadata.FromIncomingContext(v.stream.Context())
	require.Equal(t, []string{string(m.id)}, named.Get(wire.SessionInstance))
	theirs, err := pki.LoadKey(other.path("key.pem"))
	if err == nil {
		ours, err := pki.LoadKey(m.path("key.pem"))
		require.NoError(t, err)
		require.NotEqual(t, theirs, ours)
	}
	m.notice <- reclaimIn(2 * time.Minute)
	require.Len(t, noticesOf(v.awaitMessage(t, isNotice)), 1)
}

func TestImageOfAnEnrolledMachine(t *testing.T) {
	t.Parallel()
	t.Run("that runs", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.KeysDir = t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(m.options.KeysDir, "web.pem"), []byte("private"), 0o600))
			_, stop := m.start()
			defer stop()
			s.awaitSession()
			advance(time.Second)
			c := m.clone()
			c.writeNonce()
			a, stopClone := c.start()
			defer stopClone()
			c.runsAsItself(t, s, m)
			require.Contains(t, a.Status().ForeignIdentity, string(m.id))
			require.NoFileExists(t, filepath.Join(c.options.KeysDir, "web.pem"), "nor a key of the other one's certificates")
			require.FileExists(t, filepath.Join(c.options.KeysDir, "of-"+string(m.id), "web.pem"), "but nothing is lost")
			require.FileExists(t, c.path(filepath.Join("of-"+string(m.id), "v1", "cert.pem")))
		})
	})
	t.Run("whose files are the other machine's", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			c := m.clone()
			ran := filepath.Join(t.TempDir(), "ran")
			c.options.RecvDir = t.TempDir()
			files := machinefiles.New(machinefiles.Options{Dir: c.options.RecvDir, KeysDir: t.TempDir()})
			digest := machinefiles.Digest([]byte("x"))
			_, err := files.Begin(machinefiles.Set{
				Hash: "theirs", Command: []string{"/bin/sh", "-c", "touch " + ran},
				Files: []machinefiles.File{{Path: "a", Digest: digest, Size: 1}},
			})
			require.NoError(t, err)
			require.NoError(t, files.Write(digest, 0, []byte("x")))
			require.NoError(t, files.Commit("theirs"))
			require.NoError(t, files.Close())
			c.writeNonce()
			_, stopClone := c.start()
			defer stopClone()
			r := s.awaitSession().awaitMessage(t, isReport).GetReport()
			require.Empty(t, r.GetFiles(), "they are not this machine's")
			require.NotEqual(t, "theirs", r.GetConfigHash())
			require.NoFileExists(t, ran, "nor is their command")
			require.NoFileExists(t, filepath.Join(c.options.RecvDir, "a"))
			require.FileExists(t, filepath.Join(c.options.RecvDir, "of-"+string(m.id), "v1", "files", "a"), "but nothing is lost")
		})
	})
	t.Run("made of a key alone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			theirs := pki.NewKey()
			require.NoError(t, os.MkdirAll(m.path("v1"), 0o700))
			require.NoError(t, pki.SaveKey(m.path("v1/key.pem"), theirs))
			_, stop := m.start()
			defer stop()
			s.awaitSession()
			ours, err := pki.LoadKey(m.path("key.pem"))
			require.NoError(t, err)
			require.NotEqual(t, theirs, ours, "whose it is cannot be known")
		})
	})
	t.Run("with a notice that stands", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.Detector = nil
			m.options.Provider = "none"
			require.NoError(t, os.WriteFile(m.path("notices.json"), []byte(`{"version":1,"instance_id":"`+string(m.id)+`","notices":[{"kind":"reclaim","event_id":"x"}]}`), 0o600))
			c := m.clone()
			require.NoError(t, os.WriteFile(c.path("instance_id"), []byte(m.id), 0o600))
			c.options.Detector, c.options.Provider = nil, "none"
			c.writeNonce()
			a, stop := c.start()
			defer stop()
			require.Equal(t, string(c.id), s.awaitSession().id.Subject)
			require.Empty(t, a.Status().Notices)
			require.Empty(t, a.Status().NoticesError)
		})
	})
	t.Run("whose user data comes late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			c := m.clone()
			_, stopClone := c.start()
			defer stopClone()
			advance(10 * time.Minute)
			require.Equal(t, 1, s.countCalls("register"), "with the nonce of the image no server is asked")
			c.writeNonce()
			before := time.Now()
			c.runsAsItself(t, s, m)
			require.Less(t, time.Since(before), 30*time.Second)
		})
	})
	t.Run("made before it was registered", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.network.setDown(true)
			_, stop := m.start()
			advance(time.Minute)
			stop()
			require.FileExists(t, m.path("v1/key.pem"))
			s.network.setDown(false)
			c := m.clone()
			c.writeNonce()
			_, stopClone := c.start()
			defer stopClone()
			s.awaitSession()
			theirs, err := pki.LoadKey(m.path("v1/key.pem"))
			require.NoError(t, err)
			ours, err := pki.LoadKey(c.path("key.pem"))
			require.NoError(t, err)
			require.NotEqual(t, theirs, ours, "a key belongs to one machine")
		})
	})
	t.Run("of an agent that did not name the owner", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			c := m.clone()
			require.NoError(t, os.Remove(c.path("instance_id")))
			c.writeNonce()
			_, stopClone := c.start()
			defer stopClone()
			c.runsAsItself(t, s, m)
		})
	})
	t.Run("restored while the agent runs", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			c := s.newMachine()
			s.network.setDown(true)
			_, stopClone := c.start()
			defer stopClone()
			advance(time.Second)
			for _, name := range []string{"v1", "current", "key.pem", "cert.pem", "ca.pem"} {
				require.NoError(t, os.RemoveAll(c.path(name)))
			}
			require.NoError(t, os.CopyFS(c.path("v1"), os.DirFS(m.path("v1"))))
			require.NoError(t, os.Symlink("v1", c.path("current")))
			s.network.setDown(false)
			require.Equal(t, string(c.id), s.awaitSession().id.Subject)
		})
	})
	t.Run("whose identity cannot be moved", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			stop()
			c := m.clone()
			c.writeNonce()
			block := c.path("of-" + string(m.id)) // a file where the folder would be
			require.NoError(t, os.WriteFile(block, nil, 0o600))
			a, stopClone := c.start()
			defer stopClone()
			advance(2 * time.Minute)
			require.Empty(t, s.visits, "it never runs as the other machine")
			require.Contains(t, a.Status().Error, string(m.id))
			require.NoError(t, os.Remove(block))
			c.runsAsItself(t, s, m)
		})
	})
}

// TestUserDataThatIsBeingWritten: half a file of user data is no refusal, after which the agent
// would wait for long.
func TestUserDataThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nonce.jwt", "ca.crt"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *testShard, m *machine) {
				whole, err := os.ReadFile(m.path(name))
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(m.path(name), whole[:len(whole)/3], 0o600))
				_, stop := m.start()
				defer stop()
				advance(5 * time.Second)
				require.NoError(t, os.WriteFile(m.path(name), whole, 0o600))
				before := time.Now()
				s.awaitSession()
				require.Less(t, time.Since(before), 20*time.Second)
			})
		})
	}
}
