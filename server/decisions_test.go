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
	"github.com/nstance-go/nstance/internal/pki"
)

// told waits until the journal answers a request with an event that has all of
// the words in it, and returns every event of the answer.
func (w *world) told(api apiv1.OperatorServiceClient, req *apiv1.ListEventsRequest, words ...string) (events []*apiv1.Event) {
	w.Helper()
	require.Eventually(w, func() bool {
		resp, err := api.ListEvents(w.Context(), req)
		require.NoError(w, err)
		events = resp.GetEvents()
		for _, e := range events {
			if says(e, words) {
				return true
			}
		}
		return false
	}, eventually, 5*time.Millisecond, "%q in %v", words, events)
	return events
}

func says(e *apiv1.Event, words []string) bool {
	for _, word := range words {
		if !strings.Contains(e.GetReason(), word) && !strings.Contains(e.GetError(), word) {
			return false
		}
	}
	return true
}

// ofType asks for the events of some types.
func ofType(types ...nstance.EventType) *apiv1.ListEventsRequest {
	req := &apiv1.ListEventsRequest{}
	for _, t := range types {
		req.Types = append(req.Types, string(t))
	}
	return req
}

// TestConfigurationIsJournalled: what was proposed, what became of it and why.
func TestConfigurationIsJournalled(t *testing.T) {
	w := newWorld(t, setup{size: 4})
	eve := w.client(nstance.RoleAdmin, nstance.DefaultTenant)
	api, by := eve.api(), "asked for by "+eve.who().Subject
	only := func(typ nstance.EventType, words ...string) {
		t.Helper()
		require.Len(t, w.told(api, ofType(typ), words...), 1)
	}
	only(nstance.EventConfigAccepted, w.configStatus(api).GetDigest(), "the first one of the shard")
	require.Eventually(t, func() bool { return w.machines("default") == 4 }, eventually, time.Millisecond)

	w.conf.set("{", nil)
	for range 3 {
		require.Error(t, w.refresh(api))
	}
	only(nstance.EventConfigRefused, by, "shard.jsonc")
	shown := w.status().Events
	i := slices.IndexFunc(shown, func(e nstance.Event) bool { return e.Type == nstance.EventConfigRefused })
	require.Equal(t, "an administrator can see why", shown[i].Error, "for readers without a login")
	for _, code := range []nstance.Code{nstance.Unavailable, nstance.Throttled} {
		w.conf.set("", nstance.Errorf(code, "storage is away"))
		require.ErrorIs(t, w.refresh(api), code, "which is no decision")
	}
	w.conf.set("{", nil)
	require.ErrorIs(t, w.refresh(api), nstance.Invalid, "still, which is in the journal")

	w.conf.set(limited(t, "2", 4), nil)
	require.NoError(t, w.refresh(api))
	require.NoError(t, w.refresh(api))
	require.Len(t, w.told(api, ofType(nstance.EventConfigAccepted), by, w.configStatus(api).GetDigest(), "shard.jsonc"), 2)

	w.conf.set(limited(t, "2", 1), nil)
	require.ErrorIs(t, w.refresh(api), nstance.Conflict)
	require.ErrorIs(t, w.refresh(api), nstance.Conflict)
	only(nstance.EventConfigHeld, by, w.configStatus(api).GetHeldDigest(), "would remove 3")
	w.conf.set(limited(t, "2", 4), nil)
	held := w.configStatus(api).GetHeldDigest()
	require.NoError(t, w.refresh(api))
	only(nstance.EventConfigWithdrawn, by, held)

	w.conf.set(limited(t, "2", 1), nil)
	require.ErrorIs(t, w.refresh(api), nstance.Conflict)
	require.NoError(t, w.confirm(api, held, true))
	require.NoError(t, w.confirm(api, held, false))
	require.Len(t, w.told(api, ofType(nstance.EventConfigAccepted), held, "confirmed ("+by+")"), 3)
	only(nstance.EventConfigRefused, by)
	blue := w.client(nstance.RoleOperator, "blue").api()
	resp, err := blue.ListEvents(t.Context(), ofType(nstance.EventConfigAccepted, nstance.EventConfigRefused))
	require.NoError(t, err)
	require.Empty(t, resp.GetEvents(), "it concerns every tenant")
}

// TestGroupChangesAreJournalled: with what is different, and who asked.
func TestGroupChangesAreJournalled(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	eve := w.client(nstance.RoleOperator, nstance.DefaultTenant)
	api, by := eve.api(), "(asked for by "+eve.who().Subject+")"
	web := &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(2), Vars: &apiv1.Vars{Values: map[string]string{"colour": "green"}}}
	batch := &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1)}
	for _, dry := range []bool{true, false, false} { // the last of them change nothing
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
	changes := ofType(nstance.EventGroupCreated, nstance.EventGroupChanged, nstance.EventGroupRemovalRequested)
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
			for _, e := range w.told(api, changes) {
				require.Equal(t, "default", e.GetTenant())
				got = append(got, e.GetType()+" "+e.GetReason())
			}
			return len(got) == len(want)
		}, eventually, 5*time.Millisecond)
		require.Equal(t, want, got)
	}
	resp, err := w.client(nstance.RoleOperator, "blue").api().ListEvents(t.Context(), ofType(nstance.EventGroupChanged))
	require.NoError(t, err)
	require.Empty(t, resp.GetEvents(), "not those of others")
}

// TestRequestsAreJournalled: with the requester and the reason.
func TestRequestsAreJournalled(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newWorld(t, setup{size: 4, shard: `"gc": {"interval": "1s"},`})
	eve := w.client(nstance.RoleAdmin, nstance.DefaultTenant)
	api, by := eve.api(), "asked for by "+eve.who().Subject
	ok := func(_ any, err error) { t.Helper(); require.NoError(t, err) }
	require.Eventually(t, func() bool { return w.machines("default") == 4 }, eventually, time.Millisecond)
	var ids []nstance.InstanceID
	for _, m := range w.cloud.Machines() {
		if m.Owner.Tenant == nstance.DefaultTenant {
			ids = append(ids, m.ID)
			w.ready(m.ID)
		}
	}
	ordered, stray := newID(t), w.stray()
	ok(api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web", Reason: "odd"}))
	ok(api.ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web"}))
	ok(api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(ids[0]), Reason: "kernel"}))
	ok(api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(ids[1]), NoDrain: true}))
	ok(api.PreserveInstance(t.Context(), &apiv1.PreserveInstanceRequest{Id: string(ids[2]), Duration: durationpb.New(time.Hour)}))
	ok(api.Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(ids[3])}))
	ok(api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Group: "web", Id: ordered}))
	ok(api.AdoptOrphan(t.Context(), &apiv1.AdoptOrphanRequest{Id: string(stray)}))
	ok(api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "web", Reason: "audit"}))
	w.told(api, &apiv1.ListEventsRequest{Group: "web", Types: []string{"hold_started"}}, "frozen: ", "audit", by)
	ok(api.Thaw(t.Context(), &apiv1.ThawRequest{Group: "web"}))
	w.told(api, &apiv1.ListEventsRequest{Group: "web", Types: []string{"hold_ended"}}, "frozen, after ")

	group := func(typ nstance.EventType) *apiv1.ListEventsRequest {
		return &apiv1.ListEventsRequest{Group: "web", Types: []string{string(typ)}}
	}
	w.told(api, group(nstance.EventRolloutPaused), "odd ("+by+")")
	w.told(api, group(nstance.EventFrozen), "audit ("+by+")")
	w.told(api, group(nstance.EventThawed), by)
	w.told(api, &apiv1.ListEventsRequest{Instance: string(ids[0]), Types: []string{"removal_requested"}}, "kernel ("+by+")")
	w.told(api, &apiv1.ListEventsRequest{Instance: string(ids[1]), Types: []string{"removal_requested"}}, "without a drain: "+by)
	w.told(api, &apiv1.ListEventsRequest{Instance: string(ids[2]), Types: []string{"preserved"}}, by)
	w.told(api, &apiv1.ListEventsRequest{Instance: ordered, Types: []string{"create_requested"}}, "on_demand: "+by)
	w.told(api, &apiv1.ListEventsRequest{Instance: string(stray), Types: []string{"orphan_adopted"}}, by)
	detected := w.told(api, &apiv1.ListEventsRequest{Instance: string(ids[3]), Types: []string{"notice_detected"}})
	require.Equal(t, "rehearsal/"+eve.who().Subject, detected[0].GetNotice().GetSource())
}

// TestCertificatesAreJournalled: of operators in their tenant, and of agents as
// theirs what is out of the ordinary.
func TestCertificatesAreJournalled(t *testing.T) {
	w, c := longAgo(t)
	bob := w.client(nstance.RoleOperator, "blue")
	api := w.admin()
	first := bob.who()
	bob.renewed()
	req := ofType(nstance.EventCertificateRenewed)
	got := w.told(api, req, string(first.Role)+" "+first.Subject+": ", bob.who().Serial, "replaces "+first.Serial)
	require.Equal(t, string(first.Tenant), got[len(got)-1].GetTenant())
	require.Len(t, w.told(bob.api(), &apiv1.ListEventsRequest{Types: []string{"certificate_renewed"}}, bob.who().Subject), 1)

	id := w.machine(nstance.DefaultTenant)
	agent := w.yesterday(c, nstance.DefaultTenant, "web", id)
	expired := agent.who()
	key := pki.NewKey()
	_, err := agent.recover(key, grpc.PerRPCCredentials(agent.prove(key)))
	require.NoError(t, err)
	req.Instance, req.Group = string(id), "web"
	w.told(api, req, "by recovery, the expired "+expired.Serial)

	req = ofType(nstance.EventOperatorRegistered)
	req.Tenant = "blue"
	require.Len(t, w.told(api, req, bob.who().Subject), 1)
}
