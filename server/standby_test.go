package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/internal/wire"
)

// pooledConfiguration has a group without members and with one stand-by machine.
func pooledConfiguration(pool string) string {
	text := fmt.Sprintf(configuration, "", 0)
	return strings.Replace(text, `"web": {"template": "vm", "size": 0}`, `"web": {"template": "vm", "size": 0, "drain_timeout": "0", "warm_pool": `+pool+`}`, 1)
}

// parkedAgent returns the identity of an agent whose machine is parked.
func (w *world) parkedAgent() (nstance.InstanceID, *client) {
	w.Helper()
	id := w.awaitMachineOf("web")
	w.awaitEvent(nstance.EventCreated, id)
	agent := w.registerAgent(id)
	agent.sleepOnceReady(id)
	return id, agent
}

// sleepOnceReady reports until the machine of the agent is parked.
func (h *client) sleepOnceReady(id nstance.InstanceID) {
	h.w.Helper()
	k := h.connect()
	k.ignoreGoAway.Store(true)
	k.awaitAck(k.sendReport())
	h.w.awaitEvent(nstance.EventParked, id)
	k.awaitSleep()
}

// awaitSleep waits until the server has ended the session, since its machine is parked.
func (k *agentSession) awaitSleep() {
	k.Helper()
	for k.nextMessage().GetGoAway() == nil { // which a hibernated one reads as it wakes
		continue
	}
	require.Equal(k, codes.Unavailable, status.Code(receive(k.T, k.ended)), "a session does not outlast its machine's sleep")
}

// wake has the only stand-by machine woken for a node.
func (w *world) wake(api apiv1.OperatorServiceClient, id nstance.InstanceID, node string) {
	w.Helper()
	_, err := api.ClaimStandby(w.Context(), &apiv1.ClaimStandbyRequest{Group: "web", Node: node})
	require.NoError(w, err)
	w.awaitState(api, id, "booting")
}

func (w *world) awaitState(api apiv1.OperatorServiceClient, id nstance.InstanceID, state string) {
	w.Helper()
	require.Eventually(w, func() bool { return w.instance(api, id).GetState() == state }, eventually, time.Millisecond)
}

// awaitRenewal waits until the server asks for a renewal, at once.
func (k *agentSession) awaitRenewal() {
	k.Helper()
	for {
		if r := k.nextMessage().GetRenewal(); r != nil {
			require.Zero(k, r.GetWithin().AsDuration())
			return
		}
	}
}

// TestWokenAgentRenewsFirst: what an agent reports with the certificate that its machine slept
// with counts for nothing: it is asked to renew it at once, and then the old one is dead.
func TestWokenAgentRenewsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: pooledConfiguration(`{"size": 1}`)})
	api := w.admin()
	id, agent := w.parkedAgent()
	parked := w.instance(api, id)
	require.Equal(t, []any{"parked", true}, []any{parked.GetState(), parked.GetStandby()})
	require.Nil(t, parked.GetWokenAt())

	claim, err := api.ClaimStandby(t.Context(), &apiv1.ClaimStandbyRequest{Group: "web", Node: "node-7", EventId: "e1", Reason: "reclaimed"})
	require.NoError(t, err)
	require.False(t, claim.GetUnchanged())
	require.Equal(t, "node-7", claim.GetClaim().GetNode())
	w.awaitEvent(nstance.EventWoken, id)

	slept := agent.connect()
	for slept.nextMessage().GetRenewal() == nil {
		continue
	}
	slept.awaitAck(slept.sendReport())
	require.Equal(t, "booting", w.instance(api, id).GetState(), "the old certificate proves nothing")
	old := *agent
	agent.renewCertificate()
	k := agent.connect()
	k.awaitAck(k.sendReport())
	require.Eventually(t, func() bool { return w.instance(api, id).GetState() == "ready" }, eventually, time.Millisecond)
	require.NotNil(t, w.instance(api, id).GetWokenAt())

	group := w.getGroup(api, "web")
	require.Equal(t, []int32{1, 0, 0}, []int32{group.GetStandby(), group.GetParked(), group.GetReady()})
	require.Equal(t, "node-7", group.GetClaims()[0].GetNode())
	_, err = api.Interrupt(t.Context(), &apiv1.InterruptRequest{Group: "web", Force: true})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Conflict)
	require.ErrorContains(t, err, "has no ready members", "it stands by")
	again, err := api.ClaimStandby(t.Context(), &apiv1.ClaimStandbyRequest{Group: "web", Node: "node-7"})
	require.NoError(t, err)
	require.True(t, again.GetUnchanged())
	page := w.status()
	i := slices.IndexFunc(page.Groups, func(g web.Group) bool { return g.Group == "web" })
	require.Equal(t, []int{1, 0}, []int{page.Groups[i].Standby, page.Groups[i].Parked})
	released, err := api.ReleaseStandby(t.Context(), &apiv1.ReleaseStandbyRequest{Group: "web", Node: "node-7"})
	require.NoError(t, err)
	require.False(t, released.GetUnchanged())
	require.Eventually(t, func() bool { return w.instance(api, id).GetState() == "parked" }, eventually, time.Millisecond)
	require.Equal(t, codes.PermissionDenied, status.Code(receive(t, old.open(t.Context()).ended)), "its successor is in use")
}

// TestEverySleepEndsIdentity: a machine that slept has its certificate renewed, also one that
// the record still names as pending, since its use is durable with the next renewal only.
func TestEverySleepEndsIdentity(t *testing.T) {
	t.Parallel()
	requireRenewal := func(w *world, id nstance.InstanceID, agent *client) {
		rec := w.instanceRecord(nstance.DefaultTenant, "web", id)
		require.NotNil(t, rec.Pending, "the one in use is not the current one of the record")
		require.True(t, rec.Outlived(rec.Current.Serial))
		agent.connect().awaitRenewal()
		agent.renewCertificate()
		require.False(t, rec.Outlived(w.instanceRecord(nstance.DefaultTenant, "web", id).Pending.Serial))
	}
	t.Run("the second sleep", func(t *testing.T) {
		w := newWorld(t, setup{config: pooledConfiguration(`{"size": 1}`)})
		api := w.admin()
		id, agent := w.parkedAgent()
		w.wake(api, id, "n1")
		agent.renewCertificate()
		k := agent.connect()
		k.ignoreGoAway.Store(true)
		k.awaitAck(k.sendReport())
		w.awaitState(api, id, "ready")
		_, err := api.ReleaseStandby(t.Context(), &apiv1.ReleaseStandbyRequest{Group: "web", Node: "n1"})
		require.NoError(t, err)
		k.awaitSleep()
		w.wake(api, id, "n2")
		requireRenewal(w, id, agent)
	})
	t.Run("the first sleep of a machine that had renewed", func(t *testing.T) {
		w := newWorld(t, setup{config: pooledConfiguration(`{"size": 1}`)})
		api := w.admin()
		id := w.awaitMachineOf("web")
		w.awaitEvent(nstance.EventCreated, id)
		agent := w.registerAgent(id)
		agent.renewCertificate()
		agent.sleepOnceReady(id)
		w.wake(api, id, "n1")
		requireRenewal(w, id, agent)
	})
}

// pooledConfigurationWithFile has a group with one stand-by machine, which has a file.
func pooledConfigurationWithFile() string {
	text := configWithFiles(0, "", red, "", `"colour": {"kind": "string", "content": "{{.Vars.colour}}"}`, "")
	return strings.Replace(text, `"web": {"template": "vm", "size": 0}`, `"web": {"template": "vm", "size": 0, "drain_timeout": "0", "warm_pool": {"size": 1}}`, 1)
}

// TestIdentityOfSleepingMachine: while a machine sleeps, its identity opens no session and is
// not renewed. Its agent may ask again.
func TestIdentityOfSleepingMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: pooledConfiguration(`{"size": 1}`)})
	api := w.admin()
	id, agent := w.parkedAgent()
	stolen := *agent // a copy of the disk
	serial := w.instanceRecord(nstance.DefaultTenant, "web", id).Current.Serial

	require.Equal(t, codes.Unavailable, status.Code(receive(t, stolen.open(t.Context()).ended)))
	require.False(t, w.instance(api, id).GetConnected())
	for range 6 { // more than a holder may renew at once
		require.Equal(t, codes.Unavailable, status.Code(stolen.renewAgent()))
	}
	key := pki.NewKey()
	_, err := stolen.recoverCertificate(key, grpc.PerRPCCredentials(stolen.newProof(key)))
	require.ErrorIs(t, err, nstance.Unavailable)
	rec := w.instanceRecord(nstance.DefaultTenant, "web", id)
	require.Equal(t, serial, rec.Current.Serial)
	require.Nil(t, rec.Pending)

	w.wake(api, id, "n1")
	agent.connect().awaitRenewal()
	agent.renewCertificate()
	k := agent.connect()
	k.awaitAck(k.sendReport())
	w.awaitState(api, id, "ready")
}

// TestSessionBeforeRenewal: before it has renewed the certificate that its machine slept with,
// an agent gets nothing but the request for that, and what it sends does not count. Only
// reports are acknowledged: all else is sent again afterwards.
func TestSessionBeforeRenewal(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (*world, nstance.InstanceID, *fileAgent) {
		w := newWorld(t, setup{config: pooledConfigurationWithFile()})
		id, agent := w.parkedAgent()
		w.wake(w.admin(), id, "n1")
		return w, id, agent.connect().newFileAgent()
	}
	t.Run("gets no files", func(t *testing.T) {
		_, _, k := begin(t)
		k.requireOnlyRenewal()
		k.client.renewCertificate()
		next := k.client.connect().newFileAgent()
		next.reportFiles()
		next.receiveSet()
		next.requireContent("red")
	})
	t.Run("dooms nothing", func(t *testing.T) {
		w, id, k := begin(t)
		n := reclaimNotice("e1", time.Hour)
		k.sendNotice(n)
		k.requireOnlyRenewal()
		_, seen, _ := w.findEvent(eventtype.NoticeDetected, id)
		require.False(t, seen)
		k.client.renewCertificate()
		next := k.client.connect()
		next.awaitAck(next.sendNotice(n))
		w.awaitEvent(eventtype.NoticeDetected, id)
	})
	t.Run("ends no drain", func(t *testing.T) {
		_, _, k := begin(t)
		k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_DrainResult{DrainResult: &apiv1.DrainResult{Generation: 1, Outcome: string(nstance.OutcomeDrained)}}})
		k.requireOnlyRenewal()
	})
}

// requireOnlyRenewal reports, and checks that the server acknowledges only that, and asks
// for nothing but a renewal.
func (k *fileAgent) requireOnlyRenewal() {
	k.Helper()
	asked := false
	for range 30 { // time enough to make files
		number := k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: k.healthReport()}})
		for acked := uint64(0); acked != number; {
			m := k.nextMessage()
			asked, acked = asked || m.GetRenewal() != nil, m.GetAcknowledgement().GetReport()
			require.True(k, m.GetRenewal() != nil || acked > 0, "%v", m)
		}
	}
	require.True(k, asked)
}

// TestClaimsAreRefused: a claim names the field that is wrong, and an operator claims in its
// own tenant only.
func TestClaimsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: pooledConfiguration(`{"size": 1}`)})
	api := w.admin()
	for name, c := range map[string]struct {
		req  *apiv1.ClaimStandbyRequest
		code codes.Code
		says string
	}{
		"no node":      {&apiv1.ClaimStandbyRequest{Group: "web"}, codes.InvalidArgument, "node"},
		"no such pool": {&apiv1.ClaimStandbyRequest{Group: "db", Tenant: "blue", Node: "n"}, codes.Aborted, "warm_pool.size"},
		"no group":     {&apiv1.ClaimStandbyRequest{Group: "x", Node: "n"}, codes.NotFound, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := api.ClaimStandby(t.Context(), c.req)
			require.Equal(t, c.code, status.Code(err), "%v", err)
			require.Contains(t, fmt.Sprint(err, status.Convert(err).Details()), c.says)
		})
	}
}

// TestRunningStandby: a stand-by machine that runs on keeps its session and its certificate.
func TestRunningStandby(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: pooledConfiguration(`{"size": 1, "mode": "running"}`)})
	api := w.admin()
	id := w.awaitMachineOf("web")
	w.awaitEvent(nstance.EventCreated, id)
	k := w.registerAgent(id).connect()
	k.awaitAck(k.sendReport())
	w.awaitEvent(nstance.EventParked, id)
	_, err := api.ClaimStandby(t.Context(), &apiv1.ClaimStandbyRequest{Group: "web", Node: "n"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.instance(api, id).GetState() == "ready" }, eventually, time.Millisecond)
	k.awaitAck(k.sendReport())
}
