package server_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
)

// startAgentWithHostname starts the agent of a machine that registered with a
// hostname of its own choice.
func (w *world) startAgentWithHostname(hostname string) *agentMachine {
	w.Helper()
	m := w.applyUserData(w.awaitMachine(nstance.DefaultTenant))
	h := w.newClient()
	conn := h.dial(w.server.Addresses().Registration)
	defer conn.Close()
	_, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(w.Context(), &apiv1.RegisterAgentRequest{
		Nonce: w.userDataNonce(m.id), Csr: h.csr(h.key), Addresses: []string{"203.0.113.7"}, Hostname: hostname,
	})
	require.NoError(w, err)
	require.NoError(w, os.WriteFile(filepath.Join(m.dir, "identity", "instance_id"), []byte(m.id), 0o600))
	pair := filepath.Join(m.dir, "identity", "v1")
	require.NoError(w, os.Mkdir(pair, 0o700))
	require.NoError(w, pki.SaveKey(filepath.Join(pair, "key.pem"), h.key)) // the agent registers again with the same key
	addrs := w.server.Addresses()
	m.options = agent.Options{
		InstanceID: m.id, RegistrationAddrs: []string{addrs.Registration}, AgentAddrs: []string{addrs.Agent},
		IdentityDir: filepath.Join(m.dir, "identity"), KeysDir: filepath.Join(m.dir, "keys"), RecvDir: filepath.Join(m.dir, "recv"), Detector: noNotices{},
	}
	m.start()
	w.awaitEvent(nstance.EventReady, m.id)
	require.Equal(w, hostname, w.instanceRecord(nstance.DefaultTenant, "web", m.id).Hostname)
	return m
}

// awaitFileError waits until a file of the machine has the error.
func (m *agentMachine) awaitFileError(api apiv1.OperatorServiceClient, path, says string) {
	m.w.Helper()
	require.Eventually(m.w, func() bool {
		for _, f := range m.w.instance(api, m.id).GetLastReport().GetFiles() {
			if f.GetPath() == path && strings.Contains(f.GetError(), says) {
				return true
			}
		}
		return false
	}, eventually, eventually/1000)
}

func TestClaimedHostnames(t *testing.T) {
	t.Parallel()
	const file = `"web.crt": {"kind": "certificate", "certificate": "web"}`
	t.Run("are refused in the configuration", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1})
		for _, cert := range []string{
			`"web": {"dns_names": ["{{.Instance.FQDN}}"]}`, `"web": {"dns_names": ["a", "{{with .Instance}}{{.Hostname}}{{end}}.example.com"]}`,
			`"web": {"common_name": "{{$.Instance.Hostname}}"}`,
		} {
			w.conf.set(configWithFiles(1, "", red, cert, file, ""), nil)
			_, err := w.server.Refresh(t.Context())
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "dns_suffix")
		}
		w.conf.set(configWithFiles(1, "", red, `"web": {"dns_suffix": ".example.com"}`, file, ""), nil)
		_, err := w.server.Refresh(t.Context())
		require.ErrorContains(t, err, `".example.com" is not a domain`)
	})
	certificates := map[string]string{
		"name":   `"web": {"dns_names": ["{{.Instance.FQDN}}"], "dns_suffix": "web.example"}`,
		"holder": `"web": {"common_name": "{{.Instance.FQDN}}", "dns_suffix": "web.example"}`,
		"hidden": `"web": {"dns_names": ["{{$i := .Instance}}{{with $i}}{{printf \"%s\" .}}{{end}}"]}`,
	}
	for _, claim := range []string{"payments.other-tenant.internal", "payments.evilweb.example", "web.example", "a..web.example", "a_b.web.example"} {
		for what, cert := range certificates {
			t.Run(claim+" is not certified as "+what, func(t *testing.T) {
				w := newWorld(t, setup{config: configWithFiles(1, often, red, cert, file, "")})
				m := w.startAgentWithHostname(claim)
				m.awaitFileError(w.admin(), "web.crt", claim)
				require.Empty(t, m.readFile("recv", "web.crt"))
				require.Empty(t, w.objectKeys("certlog/s1/"), "nothing was issued")
			})
		}
	}
	t.Run("are certified within the domain", func(t *testing.T) {
		w := newWorld(t, setup{config: configWithFiles(1, often, red, `"web": {"dns_names": ["{{.Instance.FQDN}}", "all.example"], "dns_suffix": "web.example"}`, file, "")})
		m := w.startAgentWithHostname("a.web.example")
		var pair tls.Certificate
		require.Eventually(t, func() (ok bool) {
			loaded, err := pki.LoadPair(filepath.Join(m.dir, "recv", "web.crt"), filepath.Join(m.dir, "keys", "web.pem"))
			if err == nil {
				pair = *loaded
			}
			return err == nil
		}, eventually, eventually/1000)
		require.Equal(t, []string{"a.web.example", "all.example"}, pair.Leaf.DNSNames)
		for _, ip := range pair.Leaf.IPAddresses {
			require.NotEqual(t, "203.0.113.7", ip.String(), "an address that only the machine claims")
		}
	})
}
