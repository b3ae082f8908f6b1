package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/server"
)

// getAsHost fetches a page with another Host header than the server's address.
func (w *world) getAsHost(host, path string) (code int, body string) {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), http.MethodGet, "http://"+w.server.Addresses().HTTP+path, nil)
	require.NoError(w, err)
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	require.NoError(w, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(w, err)
	return resp.StatusCode, string(text)
}

// DNS rebinding: another site may let its own name resolve to the server.
func TestHTTPPortChecksHostNames(t *testing.T) {
	t.Parallel()
	text := strings.Replace(defaultConfig(1), `"status_page": {"detail": "full"}`,
		`"status_page": {"detail": "full", "hosts": ["ops.example"]}, "advertise": {"operator": "nstance.example:8993"}`, 1)
	w := newWorld(t, setup{config: text, opts: server.Options{
		Host: "this-machine", Advertise: server.Addresses{Agent: "agents.example:8994"},
	}})
	w.awaitMachine(nstance.DefaultTenant)
	pages := []string{"/", "/status.json", "/metrics"}
	for _, host := range []string{"attacker.example", "attacker.example:8990", "localhost.attacker.example", "127.0.0.1.attacker.example", "xlocalhost"} {
		for _, page := range pages {
			code, body := w.getAsHost(host, page)
			require.Equal(t, http.StatusMisdirectedRequest, code, "%s of %s", page, host)
			require.NotContains(t, body, "default")
			require.Contains(t, body, "shard.status_page.hosts")
		}
		for _, page := range []string{"/healthz", "/readyz"} { // health checks of load balancers show nothing
			code, _ := w.getAsHost(host, page)
			require.Equal(t, http.StatusOK, code)
		}
	}
	for _, host := range []string{
		"localhost", "localhost:8990", "LOCALHOST.", "page.localhost", "127.0.0.1", "[::1]:8990", "::1", "10.1.2.3:8990",
		"ops.example", "Ops.Example.:8990", "nstance.example", "agents.example:1", "this-machine",
	} {
		for _, page := range pages {
			code, _ := w.getAsHost(host, page)
			require.Equal(t, http.StatusOK, code, "%s of %s", page, host)
		}
	}
	w.conf.set(strings.Replace(text, "ops.example", "other.example", 1), nil)
	_, err := w.server.Refresh(t.Context())
	require.NoError(t, err)
	code, _ := w.getAsHost("other.example", "/")
	require.Equal(t, http.StatusOK, code, "names can be reloaded")
}

// The page has no authentication, so it shows only what an operator of any tenant
// may see.
func TestStatusPageSummary(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: strings.Replace(defaultConfig(2), `"status_page": {"detail": "full"},`, "", 1)})
	web1, db := w.awaitMachine(nstance.DefaultTenant), w.awaitMachine("blue")
	w.connectReady(web1)
	boss := w.admin()
	_, err := boss.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web", Reason: "because of blue"})
	require.NoError(t, err)
	_, err = w.newClient().register(w.userDataNonce(web1)) // an alarm
	require.ErrorIs(t, err, nstance.Denied)
	w.awaitEvent(nstance.EventAlarm, web1)
	_, err = boss.Freeze(t.Context(), &apiv1.FreezeRequest{Reason: "inspection"})
	require.NoError(t, err)

	operator, err := w.registerClient(nstance.RoleOperator, "green").operatorAPI().GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
	require.NoError(t, err)
	_, body := w.getAsHost("localhost", "/status.json")
	var s web.Status
	require.NoError(t, json.Unmarshal([]byte(body), &s))
	require.True(t, s.Summary)
	require.True(t, s.Leader)
	require.Equal(t, operator.GetCluster()+" "+operator.GetShard(), s.Cluster+" "+s.Shard)
	require.Equal(t, operator.GetLeaderAddress(), s.LeaderAddress)
	require.Len(t, s.Attention, len(operator.GetAttention()), "what an operator of a tenant without groups is shown")
	require.Contains(t, s.Attention[0].Why, "inspection")
	require.Empty(t, s.Groups)
	require.Empty(t, s.Instances)
	require.Zero(t, s.InstancesTotal)
	require.Empty(t, s.Events)
	for _, secret := range []string{"default", "blue", "web", `"db"`, string(web1), string(db), "because"} {
		require.NotContains(t, body, secret)
	}
	require.Eventually(t, func() bool { return w.getPage("/").StatusCode == http.StatusOK }, eventually, time.Millisecond)
}
