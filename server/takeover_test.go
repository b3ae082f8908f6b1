package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
)

// TestTakeoverKeepsBootingMachines: two servers have different addresses, so neither
// can render the other's user data again.
func TestTakeoverKeepsBootingMachines(t *testing.T) {
	t.Parallel()
	text := replaceOnce(t, defaultConfig(5), `"content": "{{.Nonce}}"`, `"content": "{{.Nonce}} {{.Server.RegistrationAddr}}"`)
	w := newWorld(t, setup{config: text, cloud: simcloud.Options{Boot: simcloud.Delay{Min: time.Hour}}})
	api := w.admin()
	booting := func() bool {
		g := w.getGroup(api, "web")
		return g.GetBooting() == 5 && g.GetReady() == 0
	}
	w.awaitMachinesMatching(5, func(nstance.MachineSpec) bool { return true })
	require.Eventually(t, booting, eventually, 5*time.Millisecond)
	before, first := w.webSpecs(), w.server.Addresses().Registration

	w.startSuccessor(server.Options{})
	require.NotEqual(t, first, w.server.Addresses().Registration)
	api = w.admin()
	for _, spec := range before {
		require.Eventually(t, func() bool { return w.instance(api, spec.ID).GetState() == string(nstance.Booting) }, eventually, 5*time.Millisecond, "the new leader knows its machine")
		nonce, address, _ := strings.Cut(string(spec.UserData), " ")
		require.Equal(t, first, address)
		_, err := w.newClient().register(nonce)
		require.NoError(t, err)
	}
	require.Equal(t, before, w.webSpecs())
	for _, typ := range []nstance.EventType{nstance.EventCreateFailed, nstance.EventDeleteRequested} {
		require.Zero(t, w.countEvents(typ), typ)
	}
	require.True(t, booting())
}

// An argsRecorder is a provider that accepts and records any arguments.
type argsRecorder struct {
	nstance.Provider
	specs chan nstance.MachineSpec
}

func (p argsRecorder) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	p.specs <- spec
	spec.Args = nil
	return p.Provider.Create(ctx, spec)
}

// TestNonceIsForUserDataOnly: arguments end up in the cloud's logs and consoles.
func TestNonceIsForUserDataOnly(t *testing.T) {
	t.Parallel()
	cloud := simcloud.New(nil)
	t.Cleanup(cloud.Close)
	tap := argsRecorder{Provider: cloud, specs: make(chan nstance.MachineSpec, 10)}
	text := replaceOnce(t, defaultConfig(1), `"userdata": {`, `"args": {"note": "[{{.Nonce}}] {{.Instance.ID}}", "deep": [{"er": "{{.Nonce}}"}], "all": "{{json .}}"}, "userdata": {`)
	newWorld(t, setup{config: text, provider: tap, opts: server.Options{Kinds: provider.Kinds{{
		Name: "sim", Spot: true, Open: simcloud.Kind().Open, CheckSpec: func(provider.Settings, nstance.MachineSpec) error { return nil },
	}}}})
	for range 2 {
		spec := receive(t, tap.specs)
		nonce := string(spec.UserData)
		require.Greater(t, len(nonce), 100)
		require.Contains(t, string(spec.Args), "[] "+string(spec.ID), "the rest is rendered")
		for _, part := range strings.Split(nonce, ".") {
			require.NotContains(t, string(spec.Args), part)
		}
	}
}

// TestNonceIsDerivedFromRecord: a nonce depends on the intent only, so that minting
// it again gives the same bytes. It is valid for the launch and the registration.
func TestNonceIsDerivedFromRecord(t *testing.T) {
	t.Parallel()
	text := replaceOnce(t, defaultConfig(1), `"userdata": {`, `"launch_timeout": "7m", "registration_timeout": "2m", "userdata": {`)
	w := newWorld(t, setup{config: text})
	id := w.awaitMachine(nstance.DefaultTenant)
	obj, err := w.store.Get(t.Context(), layout.InstanceKey(zone, nstance.DefaultTenant, "web", id))
	require.NoError(t, err)
	rec, err := records.DecodeInstance(obj.Key, obj.Data)
	require.NoError(t, err)
	require.Equal(t, w.keys.Nonces.KeyID(), rec.NonceKeyID)
	require.NotEmpty(t, rec.Authorities)
	sum := sha256.Sum256([]byte(w.userDataNonce(id)))
	require.Equal(t, hex.EncodeToString(sum[:]), rec.UserDataDigest)
	nonce, err := w.keys.Nonces.Mint(rec.NonceKeyID, keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: zone, Tenant: rec.Tenant, Group: rec.Group,
		ConfigHash: rec.RuntimeHash, NotBefore: rec.CreatedAt.Add(-time.Minute), Expiry: rec.CreatedAt.Add(7*time.Minute + 2*time.Minute),
	})
	require.NoError(t, err)
	require.Equal(t, nonce, w.userDataNonce(id))
}

// TestMaintenanceAfterTakeover: what a leader has acknowledged, the next one acts on. The agent
// says only that it was acknowledged.
func TestMaintenanceAfterTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	_, err := w.admin().PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web"})
	require.NoError(t, err)
	n := reclaimNotice("m1", 0)
	n.Kind, n.Action, n.Source, n.Deadline, n.NotBefore = nstance.Maintenance, "instance-stop", "aws/maintenance", time.Time{}, time.Now().Add(3*time.Hour)
	k.awaitAck(k.sendNotice(n))
	require.NoError(t, w.stopServer())

	next := newWorld(t, setup{store: w.store, provider: w.cloud, webSize: 1})
	k = (&client{w: next, key: k.client.key, cert: k.client.cert}).connect()
	set := &apiv1.StandingNotices{Revision: 1, Notices: []*apiv1.Notice{wire.NoticeAt(n, time.Now())}, Acknowledged: []string{"m1"}}
	k.awaitAck(k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{Version: wire.ReportVersion, CanDrain: true, Notices: set}}}))
	_, err = next.admin().ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web"})
	require.NoError(t, err)
	require.Equal(t, "rollout", next.awaitEvent(nstance.EventCreateRequested, "").Reason)
}
