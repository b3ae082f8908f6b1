package server_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/pki"
)

// awaitEventWithWords repeats a request until one event of the answer has all
// words, and returns all events of the answer.
func (w *world) awaitEventWithWords(api apiv1.OperatorServiceClient, req *apiv1.ListEventsRequest, words ...string) (events []*apiv1.Event) {
	w.Helper()
	require.Eventually(w, func() bool {
		resp, err := api.ListEvents(w.Context(), req)
		require.NoError(w, err)
		events = resp.GetEvents()
		for _, e := range events {
			if hasWords(e, words) {
				return true
			}
		}
		return false
	}, eventually, 5*time.Millisecond, "%q in %v", words, events)
	return events
}

func hasWords(e *apiv1.Event, words []string) bool {
	for _, word := range words {
		if !strings.Contains(e.GetReason(), word) && !strings.Contains(e.GetError(), word) {
			return false
		}
	}
	return true
}

// eventsOfType is a request for events of some types.
func eventsOfType(types ...nstance.EventType) *apiv1.ListEventsRequest {
	req := &apiv1.ListEventsRequest{}
	for _, t := range types {
		req.Types = append(req.Types, string(t))
	}
	return req
}

// TestConfigurationIsJournalled: each proposal, its outcome and the reason.
func TestConfigurationIsJournalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 4})
	eve := w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
	api, by := eve.operatorAPI(), "asked for by "+eve.identity().Subject
	only := func(typ nstance.EventType, words ...string) {
		t.Helper()
		require.Len(t, w.awaitEventWithWords(api, eventsOfType(typ), words...), 1)
	}
	only(eventtype.ConfigAccepted, w.configStatus(api).GetDigest(), "the first one of the shard")
	require.Eventually(t, func() bool { return w.countMachines("default") == 4 }, eventually, time.Millisecond)

	w.conf.set("{", nil)
	for range 3 {
		require.Error(t, w.refreshConfig(api))
	}
	only(eventtype.ConfigRefused, by, "shard.jsonc")
	shown := w.status().Events
	i := slices.IndexFunc(shown, func(e nstance.Event) bool { return e.Type == eventtype.ConfigRefused })
	require.Equal(t, "an administrator can see why", shown[i].Error, "for readers without a login")
	for _, code := range []nstance.Code{nstance.Unavailable, nstance.Throttled} {
		w.conf.set("", nstance.Errorf(code, "storage is away"))
		require.ErrorIs(t, w.refreshConfig(api), code, "which is no decision")
	}
	w.conf.set("{", nil)
	require.ErrorIs(t, w.refreshConfig(api), nstance.Invalid, "still, which is in the journal")

	w.conf.set(configWithChangeLimit(t, "2", 4), nil)
	require.NoError(t, w.refreshConfig(api))
	require.NoError(t, w.refreshConfig(api))
	require.Len(t, w.awaitEventWithWords(api, eventsOfType(eventtype.ConfigAccepted), by, w.configStatus(api).GetDigest(), "shard.jsonc"), 2)

	w.conf.set(configWithChangeLimit(t, "2", 1), nil)
	require.ErrorIs(t, w.refreshConfig(api), nstance.Conflict)
	require.ErrorIs(t, w.refreshConfig(api), nstance.Conflict)
	only(eventtype.ConfigHeld, by, w.configStatus(api).GetHeldDigest(), "would remove 3")
	w.conf.set(configWithChangeLimit(t, "2", 4), nil)
	held := w.configStatus(api).GetHeldDigest()
	require.NoError(t, w.refreshConfig(api))
	only(eventtype.ConfigWithdrawn, by, held)

	w.conf.set(configWithChangeLimit(t, "2", 1), nil)
	require.ErrorIs(t, w.refreshConfig(api), nstance.Conflict)
	require.NoError(t, w.confirmConfig(api, held, true))
	require.NoError(t, w.confirmConfig(api, held, false))
	require.Len(t, w.awaitEventWithWords(api, eventsOfType(eventtype.ConfigAccepted), held, "confirmed ("+by+")"), 3)
	only(eventtype.ConfigRefused, by)
	blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	resp, err := blue.ListEvents(t.Context(), eventsOfType(eventtype.ConfigAccepted, eventtype.ConfigRefused))
	require.NoError(t, err)
	require.Empty(t, resp.GetEvents(), "it concerns every tenant")
}

// TestGroupChangesAreJournalled: with the difference and the requester.
func TestGroupChangesAreJournalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	eve := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant)
	api, by := eve.operatorAPI(), "(asked for by "+eve.identity().Subject+")"
	web := &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(2), Vars: &apiv1.Vars{Values: map[string]string{"colour": "green"}}}
	batch := &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1)}
	for _, dry := range []bool{true, false, false} { // the last one changes nothing
		web.DryRun, batch.DryRun = dry, dry
		_, err := api.UpdateGroup(t.Context(), web)
		require.NoError(t, err)
		_, err = api.CreateGroup(t.Context(), batch)
		require.NoError(t, err)
	}
	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Protect: proto.Bool(true)})
	require.NoError(t, err)
	_, err = api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "batch"})
	require.Error(t, err)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Protect: proto.Bool(false)})
	require.NoError(t, err)
	for _, dry := range []bool{true, false} {
		for _, name := range []string{"batch", "web"} {
			_, err = api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: name, DryRun: dry})
			require.NoError(t, err)
		}
	}
	changes := eventsOfType(eventtype.GroupCreated, eventtype.GroupChanged, eventtype.GroupRemovalRequested)
	for group, want := range map[string][]string{
		"batch": {
			"group_created of template vm, size 1 " + by, "group_changed protect " + by, "group_changed protect " + by,
			"group_removal_requested its members are drained and deleted " + by,
		},
		"web": {"group_changed size 2, was 1; vars " + by, "group_changed size 1, was 2; vars " + by},
	} {
		changes.Group = group
		var got []string
		require.Eventually(t, func() bool {
			got = nil
			for _, e := range w.awaitEventWithWords(api, changes) {
				require.Equal(t, "default", e.GetTenant())
				got = append(got, e.GetType()+" "+e.GetReason())
			}
			return len(got) == len(want)
		}, eventually, 5*time.Millisecond)
		require.Equal(t, want, got)
	}
	resp, err := w.registerClient(nstance.RoleOperator, "blue").operatorAPI().ListEvents(t.Context(), eventsOfType(eventtype.GroupChanged))
	require.NoError(t, err)
	require.Empty(t, resp.GetEvents(), "no groups of other tenants")
}

// TestRequestsAreJournalled: with the requester and the reason.
func TestRequestsAreJournalled(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newWorld(t, setup{webSize: 4, shard: `"gc": {"interval": "1s"},`})
	eve := w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
	api, by := eve.operatorAPI(), "asked for by "+eve.identity().Subject
	ok := func(_ any, err error) { t.Helper(); require.NoError(t, err) }
	require.Eventually(t, func() bool { return w.countMachines("default") == 4 }, eventually, time.Millisecond)
	var ids []nstance.InstanceID
	for _, m := range w.cloud.Machines() {
		if m.Owner.Tenant == nstance.DefaultTenant {
			ids = append(ids, m.ID)
			w.connectReady(m.ID)
		}
	}
	ordered, stray := newRequestID(t), w.createOrphan()
	ok(api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web", Reason: "odd"}))
	ok(api.ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web"}))
	ok(api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(ids[0]), Reason: "kernel"}))
	ok(api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(ids[1]), NoDrain: true}))
	ok(api.PreserveInstance(t.Context(), &apiv1.PreserveInstanceRequest{Id: string(ids[2]), Duration: durationpb.New(time.Hour)}))
	ok(api.Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(ids[3])}))
	ok(api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Group: "web", Id: ordered}))
	ok(api.AdoptOrphan(t.Context(), &apiv1.AdoptOrphanRequest{Id: string(stray)}))
	ok(api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "web", Reason: "audit"}))
	w.awaitEventWithWords(api, &apiv1.ListEventsRequest{Group: "web", Types: []string{"hold_started"}}, "frozen: ", "audit", by)
	ok(api.Thaw(t.Context(), &apiv1.ThawRequest{Group: "web"}))
	w.awaitEventWithWords(api, &apiv1.ListEventsRequest{Group: "web", Types: []string{"hold_ended"}}, "frozen, after ")

	ok(api.AvoidPool(t.Context(), &apiv1.AvoidPoolRequest{Pool: &apiv1.Pool{Zone: "a"}, Duration: durationpb.New(time.Hour), Reason: "network"}))
	ok(api.ReleasePool(t.Context(), &apiv1.ReleasePoolRequest{Pool: &apiv1.Pool{Zone: "a"}}))
	w.awaitEventWithWords(api, eventsOfType(nstance.EventHoldStarted), "avoided: no machine is made in zone=a", "network ("+by+")", "nstance-admin pool release zone=a")
	w.awaitEventWithWords(api, eventsOfType(nstance.EventHoldEnded), "avoided: zone=a, after ", by)

	group := func(typ nstance.EventType) *apiv1.ListEventsRequest {
		return &apiv1.ListEventsRequest{Group: "web", Types: []string{string(typ)}}
	}
	w.awaitEventWithWords(api, group(eventtype.RolloutPaused), "odd ("+by+")")
	w.awaitEventWithWords(api, group(eventtype.Frozen), "audit ("+by+")")
	w.awaitEventWithWords(api, group(eventtype.Thawed), by)
	w.awaitEventWithWords(api, &apiv1.ListEventsRequest{Instance: string(ids[0]), Types: []string{"removal_requested"}}, "kernel ("+by+")")
	w.awaitEventWithWords(api, &apiv1.ListEventsRequest{Instance: string(ids[1]), Types: []string{"removal_requested"}}, "without a drain: "+by)
	w.awaitEventWithWords(api, &apiv1.ListEventsRequest{Instance: string(ids[2]), Types: []string{"preserved"}}, by)
	w.awaitEventWithWords(api, &apiv1.ListEventsRequest{Instance: ordered, Types: []string{"create_requested"}}, "on_demand: "+by)
	w.awaitEventWithWords(api, &apiv1.ListEventsRequest{Instance: string(stray), Types: []string{"orphan_adopted"}}, by)
	detected := w.awaitEventWithWords(api, &apiv1.ListEventsRequest{Instance: string(ids[3]), Types: []string{"notice_detected"}})
	require.Equal(t, "rehearsal/"+eve.identity().Subject, detected[0].GetNotice().GetSource())
}

// TestCertificatesAreJournalled: operators' certificates in their tenant, and of
// agents' certificates the unusual ones.
func TestCertificatesAreJournalled(t *testing.T) {
	t.Parallel()
	w, c := newBackdatedWorld(t)
	bob := w.registerClient(nstance.RoleOperator, "blue")
	api := w.admin()
	first := bob.identity()
	bob.renewCertificate()
	req := eventsOfType(eventtype.CertificateRenewed)
	got := w.awaitEventWithWords(api, req, string(first.Role)+" "+first.Subject+": ", bob.identity().Serial, "replaces "+first.Serial)
	require.Equal(t, string(first.Tenant), got[len(got)-1].GetTenant())
	require.Len(t, w.awaitEventWithWords(bob.operatorAPI(), &apiv1.ListEventsRequest{Types: []string{"certificate_renewed"}}, bob.identity().Subject), 1)

	id := w.awaitMachine(nstance.DefaultTenant)
	agent := w.registerExpired(c, nstance.DefaultTenant, "web", id)
	expired := agent.identity()
	key := pki.NewKey()
	_, err := agent.recoverCertificate(key, grpc.PerRPCCredentials(agent.newProof(key)))
	require.NoError(t, err)
	req.Instance, req.Group = string(id), "web"
	w.awaitEventWithWords(api, req, "by recovery, the expired "+expired.Serial)

	req = eventsOfType(eventtype.OperatorRegistered)
	req.Tenant = "blue"
	require.Len(t, w.awaitEventWithWords(api, req, bob.identity().Subject), 1)
}
