package agent_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/registration"
)

// listenLoopback listens on a free port.
func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return ln
}

// eventually is the deadline of conditions that normally hold at once.
const eventually = time.Minute

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(eventually):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// TestOverRealSockets runs an agent as in production: TLS over TCP, a metadata service
// over HTTP, a command as hook, a notification socket like systemd's.
func TestOverRealSockets(t *testing.T) {
	t.Parallel()
	s := newAuthority(t, registration.Options{})
	defer s.stop()
	cert := s.certificate(zone)
	reg, sessions := listenLoopback(t), listenLoopback(t)
	s.serveRegistration(reg, cert)
	s.serveAgents("loopback", sessions, cert)

	metadata := imds.New(&imds.Options{Protocol: "aws", RequireToken: true, Spot: true})
	cloud := httptest.NewServer(metadata)
	defer cloud.Close()

	m := s.newMachine()
	proof := filepath.Join(t.TempDir(), "drained")
	healthAddr, err := freeport.Address()
	require.NoError(t, err)
	probed := listenLoopback(t) // not the agent's own health, which may come after the first report
	defer probed.Close()
	systemd := listenNotify(t)
	m.options.Dial, m.options.Detector = nil, nil
	_, port, err := net.SplitHostPort(sessions.Addr().String())
	require.NoError(t, err)
	m.options.RegistrationAddrs, m.options.AgentAddrs = []string{reg.Addr().String()}, []string{"localhost:" + port}
	m.options.Provider, m.options.MetadataURL, m.options.SpotPollInterval = "", cloud.URL, 50*time.Millisecond
	m.options.HealthAddr = healthAddr
	m.options.DrainHook = []string{"/bin/sh", "-c", `echo "$NSTANCE_DRAIN_REASON" > "$0"; echo emptied`, proof}
	m.options.Probes = []health.Probe{{Name: "health", TCP: probed.Addr().String()}}
	m.options.NotifySocket, m.options.Watchdog = systemd.LocalAddr().String(), 20*time.Millisecond
	_, stop := m.start()
	defer stop()

	v := receive(t, s.visits)
	r := receive(t, v.received)
	require.True(t, r.GetReport().GetCanDrain())
	require.True(t, r.GetReport().GetProbes()[0].GetOk())
	require.Equal(t, "READY=1", readNotify(t, systemd))
	require.Equal(t, "WATCHDOG=1", readNotify(t, systemd))
	// systemd reads on: its socket holds a few datagrams only, and the agent
	// does not wait for readers.
	stopping := make(chan error, 1)
	go func() { stopping <- readNotifyUntil(systemd, "STOPPING=1") }()

	require.Eventually(t, func() bool {
		code, status := getHealth(t, m.options.HealthAddr)
		return code == http.StatusOK && !status.LastReport.IsZero()
	},
		eventually, 10*time.Millisecond)

	deadline := time.Now().Add(2 * time.Minute).UTC().Truncate(time.Second)
	metadata.Reclaim("terminate", deadline)
	n := receive(t, v.received).GetNotices().GetNotices()[0]
	require.True(t, deadline.Equal(n.GetDeadline().AsTime()))
	_, status := getHealth(t, m.options.HealthAddr)
	require.Equal(t, n.GetEventId(), status.Notices[0].EventID)

	v.drain(1, deadline)
	result := receive(t, v.received).GetDrainResult()
	require.Equal(t, "drained", result.GetOutcome(), result.GetMessage())
	require.Equal(t, "emptied", result.GetMessage())
	said, err := os.ReadFile(proof)
	require.NoError(t, err)
	require.Equal(t, "notice\n", string(said))

	stop()
	require.NotNil(t, receive(t, v.received).GetGoodbye())
	require.NoError(t, receive(t, stopping))
}

// getHealth requests the health once; code 0 means that nothing listens yet.
func getHealth(t *testing.T, addr string) (code int, s agent.Status) {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/healthz")
	if err != nil {
		t.Log(err)
		return 0, s
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Error(err)
	}
	return resp.StatusCode, s
}

func listenNotify(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func readNotify(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(eventually)))
	buf := make([]byte, 1024)
	n, err := conn.Read(buf)
	require.NoError(t, err)
	return string(buf[:n])
}

// readNotifyUntil drops other messages.
func readNotifyUntil(conn *net.UnixConn, word string) error {
	if err := conn.SetReadDeadline(time.Now().Add(3 * eventually)); err != nil {
		return err
	}
	for buf := make([]byte, 1024); ; {
		n, err := conn.Read(buf)
		if err != nil || string(buf[:n]) == word {
			return err
		}
	}
}

func TestHealthz(t *testing.T) {
	t.Parallel()
	get := func(t *testing.T, addr, path string) int {
		t.Helper()
		resp, err := http.Get("http://" + addr + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		return resp.StatusCode
	}
	t.Run("returns the reason when unhealthy, and serves no other page", func(t *testing.T) {
		free, err := freeport.Address()
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(free)
		require.NoError(t, err)
		s := newAuthority(t, registration.Options{})
		m := s.newMachine()
		m.options.HealthAddr = ":" + port // without a host: loopback
		_, stop := m.start()
		defer stop()
		addr := "127.0.0.1:" + port
		require.Eventually(t, func() bool {
			code, status := getHealth(t, addr)
			return code == http.StatusServiceUnavailable && status.Error != ""
		},
			eventually, 10*time.Millisecond)
		require.Equal(t, http.StatusNotFound, get(t, addr, "/"))
		require.Equal(t, http.StatusNotFound, get(t, addr, "/debug/pprof/"))
	})
}
