package agent_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/agent"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/test/parallel"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/spot"
)

// inProcess calls a metadata service in the bubble of its test.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result(), r.Context().Err()
}

// setCloud gives the machine's next agent a detector of its own.
func (m *machine) setCloud(cloud http.Handler) {
	d, err := spot.NewAWS(&spot.Options{BaseURL: "http://metadata.test", Client: &http.Client{Transport: inProcess{cloud}}})
	require.NoError(m.t, err)
	m.options.Detector = d
}

func isCancelled(m *apiv1.ConnectRequest) bool {
	return isNotice(m) && len(noticesOf(m)) == 1 && noticesOf(m)[0].GetCancelled()
}

func TestRestart(t *testing.T) {
	t.Parallel()
	t.Run("what was withdrawn while the agent was down is withdrawn", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			cloud := imds.New(&imds.Options{Spot: true})
			m.setCloud(cloud)
			_, stop := m.start()
			v := s.awaitSession()
			cloud.Reclaim("terminate", time.Now().Add(2*time.Minute))
			event := noticesOf(v.awaitMessage(t, isNotice))[0].GetEventId()
			advance(time.Second)
			stop()
			cloud.Withdraw()

			m.setCloud(cloud)
			a, stop := m.start()
			defer stop()
			v = s.awaitSession()
			require.Equal(t, event, noticesOf(v.awaitMessage(t, isCancelled))[0].GetEventId())
			advance(time.Second)
			require.Empty(t, a.Status().Notices)
			require.Empty(t, a.Status().NoticesError)
		})
	})
	t.Run("a withdrawal that no server acknowledged is sent again", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			cloud := imds.New(&imds.Options{Spot: true})
			m.setCloud(cloud)
			_, stop := m.start()
			v := s.awaitSession()
			cloud.Reclaim("terminate", time.Now().Add(2*time.Minute))
			v.awaitMessage(t, isNotice)
			s.configure(func() { s.withholdAcks = true })
			cloud.Withdraw()
			v.awaitMessage(t, isCancelled)
			stop()

			s.configure(func() { s.withholdAcks = false })
			m.setCloud(cloud)
			_, stop = m.start()
			defer stop()
			s.awaitSession().awaitMessage(t, isCancelled)
		})
	})
	t.Run("a deadline that passed while the agent was down is not stale", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() { s.withholdAcks = true })
			cloud := imds.New(&imds.Options{Spot: true})
			m.setCloud(cloud)
			_, stop := m.start()
			v := s.awaitSession()
			cloud.Reclaim("terminate", time.Now().Add(2*time.Minute))
			event := noticesOf(v.awaitMessage(t, isNotice))[0].GetEventId()
			stop()
			advance(5 * time.Minute)

			m.setCloud(cloud)
			a, stop := m.start()
			defer stop()
			got := noticesOf(s.awaitSession().awaitMessage(t, isNotice))
			require.Len(t, got, 1)
			require.Equal(t, event, got[0].GetEventId())
			require.Negative(t, got[0].GetTimeLeft().AsDuration())
			advance(time.Minute)
			require.Len(t, a.Status().Notices, 1)
			require.False(t, a.Status().Notices[0].Cancelled)
		})
	})
	t.Run("what a server acknowledged stays acknowledged", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			cloud := imds.New(&imds.Options{Spot: true})
			m.setCloud(cloud)
			_, stop := m.start()
			v := s.awaitSession()
			cloud.Reclaim("terminate", time.Now().Add(time.Hour))
			event := noticesOf(v.awaitMessage(t, isNotice))[0].GetEventId()
			advance(time.Second)
			stop()

			s.configure(func() { s.withholdAcks = true })
			m.setCloud(cloud)
			_, stop = m.start()
			defer stop()
			v = s.awaitSession()
			require.Equal(t, []string{event}, v.awaitMessage(t, isNotice).GetNotices().GetAcknowledged())
			advance(time.Minute)
			runs, _, _ := h.log()
			require.Empty(t, runs, "the server has it: the hook is its business")
		})
	})
	t.Run("a damaged file is moved aside and reported, and stops nothing", func(t *testing.T) {
		other := `{"version": 1, "instance_id": "acc06bgm7733st2576nx5jht4ecjw", "notices": []}`
		for _, content := range []string{"", "{", "[]", `{"version": 99}`, other, string(make([]byte, 1<<20))} {
			inBubble(t, func(t *testing.T, s *testShard, m *machine) {
				m.writeIdentityFile("notices.json", content)
				cloud := imds.New(&imds.Options{Spot: true})
				m.setCloud(cloud)
				a, stop := m.start()
				defer stop()
				v := s.awaitSession()
				require.Contains(t, a.Status().NoticesError, "notices.json.damaged")
				aside, err := os.ReadFile(m.path("notices.json.damaged"))
				require.NoError(t, err)
				require.Equal(t, content, string(aside))
				cloud.Reclaim("terminate", time.Now().Add(2*time.Minute))
				v.awaitMessage(t, isNotice)
				advance(time.Second)
				info, err := os.Stat(m.path("notices.json"))
				require.NoError(t, err)
				require.EqualValues(t, 0o600, info.Mode())
			})
		}
	})
	t.Run("a directory that cannot be written delays no notice", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			require.NoError(t, os.MkdirAll(m.path("notices.json/in-the-way"), 0o700)) // a rename over it fails, for root too
			cloud := imds.New(&imds.Options{Spot: true})
			m.setCloud(cloud)
			a, stop := m.start()
			defer stop()
			v := s.awaitSession()
			require.NoError(t, os.MkdirAll(m.path("notices.json/in-the-way"), 0o700))
			cloud.Reclaim("terminate", time.Now().Add(2*time.Minute))
			v.awaitMessage(t, isNotice)
			synctest.Wait()
			require.Contains(t, a.Status().NoticesError, "notices.json")
			require.NoError(t, os.RemoveAll(m.path("notices.json")))
			advance(10 * time.Second)
			require.Empty(t, a.Status().NoticesError)
			require.FileExists(t, m.path("notices.json"))
		})
	})
	t.Run("an agent without notices writes no file", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.setCloud(imds.New(nil))
			_, stop := m.start()
			s.awaitSession()
			advance(time.Minute)
			stop()
			require.NoFileExists(t, m.path("notices.json"))
		})
	})
	t.Run("a detector that cannot continue begins anew", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			v := s.awaitSession()
			m.notice <- reclaimIn(2 * time.Minute)
			v.awaitMessage(t, isNotice)
			advance(time.Second)
			stop()
			a, stop := m.start()
			defer stop()
			s.awaitSession()
			advance(time.Minute)
			require.Empty(t, a.Status().Notices, "nothing could withdraw it")
		})
	})
}

// agentProcess makes the test program run an agent, as its environment describes.
const agentProcess = "NSTANCE_TEST_AGENT_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(agentProcess) == "" {
		os.Exit(parallel.Run(m))
	}
	o, err := agent.FromEnv(os.Getenv)
	if err != nil {
		panic(err)
	}
	a, err := agent.New(o)
	if err != nil {
		panic(err)
	}
	if err := a.Run(context.Background()); err != nil {
		panic(err)
	}
}

// startProcess runs an agent in a process of its own; kill ends it with SIGKILL.
func (m *machine) startProcess(registration, sessions, metadata string) (kill func()) {
	m.t.Helper()
	exe, err := os.Executable()
	require.NoError(m.t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), agentProcess+"=1", "NSTANCE_INSTANCE_ID="+string(m.id),
		"NSTANCE_SERVER_REGISTRATION_ADDR="+registration, "NSTANCE_SERVER_AGENT_ADDR="+sessions,
		"NSTANCE_IDENTITY_DIR="+m.options.IdentityDir, "NSTANCE_KEYS_DIR="+m.t.TempDir(), "NSTANCE_RECV_DIR="+m.t.TempDir(),
		"NSTANCE_PROVIDER=aws", "NSTANCE_METADATA_URL="+metadata, "NSTANCE_SPOT_POLL_INTERVAL=50ms", "NOTIFY_SOCKET=")
	cmd.Stderr = m.t.Output()
	require.NoError(m.t, cmd.Start())
	killed := false
	kill = func() {
		if killed {
			return
		}
		killed = true
		require.NoError(m.t, cmd.Process.Kill())
		require.Error(m.t, cmd.Wait(), "it was killed")
	}
	m.t.Cleanup(kill)
	return kill
}

// TestKilledAgent kills an agent after a server has received its notice and before that
// was acknowledged.
func TestKilledAgent(t *testing.T) {
	t.Parallel()
	s := newAuthority(t, registration.Options{})
	defer s.stop()
	s.withholdAcks = true
	cert := s.certificate(zone)
	reg, sessions := listenLoopback(t), listenLoopback(t)
	s.serveRegistration(reg, cert)
	s.serveAgents("loopback", sessions, cert)
	_, port, err := net.SplitHostPort(sessions.Addr().String())
	require.NoError(t, err)
	metadata := imds.New(&imds.Options{RequireToken: true, Spot: true})
	cloud := httptest.NewServer(metadata)
	defer cloud.Close()
	m := s.newMachine()

	kill := m.startProcess(reg.Addr().String(), "localhost:"+port, cloud.URL)
	v := receive(t, s.visits)
	require.True(t, isReport(receive(t, v.received)))
	deadline := time.Now().Add(3 * time.Second)
	metadata.Reclaim("terminate", deadline)
	sent := noticesOf(receive(t, v.received))[0].GetEventId()
	require.Eventually(t, func() bool { return m.savedNotice() }, eventually, 10*time.Millisecond)
	kill()
	require.Eventually(t, func() bool { return time.Now().After(deadline.Add(time.Second)) }, eventually, 50*time.Millisecond)

	kill = m.startProcess(reg.Addr().String(), "localhost:"+port, cloud.URL)
	v = receive(t, s.visits)
	again := noticesOf(receive(t, v.received))
	require.Len(t, again, 1)
	require.Equal(t, sent, again[0].GetEventId())
	require.False(t, again[0].GetCancelled())
	kill()
	metadata.Withdraw()

	m.startProcess(reg.Addr().String(), "localhost:"+port, cloud.URL)
	v = receive(t, s.visits)
	for {
		if got := receive(t, v.received); isCancelled(got) {
			require.Equal(t, sent, noticesOf(got)[0].GetEventId())
			return
		}
	}
}

// savedNotice reports whether the file has been written.
func (m *machine) savedNotice() bool {
	_, err := os.Stat(m.path("notices.json"))
	return err == nil
}
