package server_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// TestMachineProbes covers all parts: the agent's environment, child processes,
// sockets, reports, and the API.
func TestMachineProbes(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newWorld(t, setup{webSize: 1, shard: often})
	api := w.admin()
	id := w.awaitMachine("default")

	flag := filepath.Join(t.TempDir(), "flag")
	var status atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	web := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(int(status.Load()))
		fmt.Fprint(rw, "warming up")
	}))
	defer web.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	file := filepath.Join(t.TempDir(), "probes.jsonc")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `[
		{"name": "flag", "command": ["/bin/sh", "-c", "test -e \"$1\" || { echo no flag; exit 3; }", "sh", %q], "interval": "1s"},
		{"name": "web", "http": %q, "interval": "1s"},
		{"name": "port", "tcp": %q, "interval": "1s"}, // the last probe
		{"name": "hangs", "command": ["/bin/sh", "-c", "test -e \"$1\" || sleep 1000", "sh", %q], "timeout": "1s", "interval": "1s"},
		{"name": "slow", "command": ["/bin/sh", "-c", "until test -e \"$1\"; do sleep 0.1; done", "sh", %q], "timeout": "1m", "interval": "1s"},
	]`, flag, web.URL, listener.Addr(), flag, flag), 0o600))
	w.startAgentWithProbes(id, file)

	shown := func(name string, ok bool, message string) {
		t.Helper()
		require.Eventually(t, func() bool {
			probes := w.instance(api, id).GetLastReport().GetProbes()
			i := slices.IndexFunc(probes, func(p *apiv1.ProbeResult) bool { return p.GetName() == name })
			return len(probes) == 5 && probes[i].GetOk() == ok && probes[i].GetMessage() == message
		}, eventually, 5*time.Millisecond, name)
	}
	shown("slow", false, "no result yet") // a slow probe delays no report
	shown("flag", false, "exit status 3: no flag")
	shown("web", false, "503 Service Unavailable: warming up")
	shown("port", true, "")
	shown("hangs", false, "no answer within 1s")
	require.Equal(t, "booting", w.instance(api, id).GetState(), "what is not good is not ready")
	require.Contains(t, w.instance(api, id).GetConditions(), "probes_failing")

	require.NoError(t, os.WriteFile(flag, nil, 0o600))
	status.Store(http.StatusOK)
	w.awaitEvent(nstance.EventReady, id)
	for _, name := range []string{"flag", "web", "port", "hangs", "slow"} {
		shown(name, true, "")
	}
	require.NotContains(t, w.instance(api, id).GetConditions(), "probes_failing")

	require.NoError(t, listener.Close())
	require.Eventually(t, func() bool {
		return strings.Contains(w.instance(api, id).GetLastReport().GetProbes()[2].GetMessage(), "connection refused")
	}, eventually, 5*time.Millisecond)
	require.Contains(t, w.instance(api, id).GetConditions(), "probes_failing")
}

// startAgentWithProbes starts the agent from environment variables, as its program
// does.
func (w *world) startAgentWithProbes(id nstance.InstanceID, probes string) *agentMachine {
	w.Helper()
	m := w.applyUserData(id)
	addrs := w.server.Addresses()
	vars := map[string]string{
		"NSTANCE_INSTANCE_ID": string(id), "NSTANCE_SERVER_REGISTRATION_ADDR": addrs.Registration,
		"NSTANCE_SERVER_AGENT_ADDR": addrs.Agent, "NSTANCE_PROVIDER": "none", "NSTANCE_PROBES": probes,
		"NSTANCE_IDENTITY_DIR": filepath.Join(m.dir, "identity"), "NSTANCE_KEYS_DIR": filepath.Join(m.dir, "keys"),
		"NSTANCE_RECV_DIR": filepath.Join(m.dir, "recv"),
	}
	o, err := agent.FromEnv(func(name string) string { return vars[name] })
	require.NoError(w, err)
	m.options = *o
	m.start()
	return m
}
