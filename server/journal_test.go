package server_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/server"
)

// awaitJournalled waits until an event is in the journal's file.
func (w *world) awaitJournalled(api apiv1.OperatorServiceClient, typ nstance.EventType, id nstance.InstanceID) {
	w.Helper()
	require.Eventually(w, func() bool {
		resp, err := api.ListEvents(w.Context(), &apiv1.ListEventsRequest{Types: []string{string(typ)}, Instance: string(id)})
		return err == nil && len(resp.GetEvents()) > 0
	}, eventually, 5*time.Millisecond)
}

// TestEventsShowTheLatestChange lists an event at once after its change, although
// the journal is written in batches.
func TestEventsShowTheLatestChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	api := w.admin()
	for range 5 {
		_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "web", Tenant: "default", Reason: "audit"})
		require.NoError(t, err)
		resp, err := api.ListEvents(t.Context(), &apiv1.ListEventsRequest{Newest: true, Types: []string{"frozen", "thawed"}, Limit: 1})
		require.NoError(t, err)
		require.Len(t, resp.GetEvents(), 1)
		require.Equal(t, "frozen", resp.GetEvents()[0].GetType())
		_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{Group: "web", Tenant: "default"})
		require.NoError(t, err)
		resp, err = api.ListEvents(t.Context(), &apiv1.ListEventsRequest{Newest: true, Types: []string{"frozen", "thawed"}, Limit: 1})
		require.NoError(t, err)
		require.Equal(t, "thawed", resp.GetEvents()[0].GetType())
	}
}

func TestListEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 3})
	ids, other := w.awaitMachines(3), w.awaitMachine("blue")
	id := ids[0]
	w.connectReady(id)
	api, blue := w.admin(), w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	w.awaitJournalled(api, nstance.EventReady, id)
	for _, id := range ids {
		w.awaitJournalled(api, nstance.EventCreated, id)
	}
	w.awaitJournalled(api, nstance.EventCreated, other)
	list := func(api apiv1.OperatorServiceClient, req *apiv1.ListEventsRequest) []*apiv1.Event {
		t.Helper()
		resp, err := api.ListEvents(t.Context(), req)
		require.NoError(t, err)
		return resp.GetEvents()
	}
	t.Run("of one instance, in order", func(t *testing.T) {
		var types []string
		for _, e := range list(api, &apiv1.ListEventsRequest{Instance: string(id)}) {
			require.Equal(t, string(id), e.GetInstance())
			types = append(types, e.GetType())
		}
		require.Equal(t, []string{"create_requested", "created", "registered", "ready"}, types)
	})
	t.Run("of some types", func(t *testing.T) {
		got := list(api, &apiv1.ListEventsRequest{Types: []string{"created", "ready"}, Tenant: "default"})
		require.Len(t, got, 4)
		for _, e := range got {
			require.Contains(t, []string{"created", "ready"}, e.GetType())
		}
	})
	t.Run("of a period", func(t *testing.T) {
		now := time.Now()
		require.Empty(t, list(api, &apiv1.ListEventsRequest{Since: timestamppb.New(now.Add(time.Hour))}))
		require.Empty(t, list(api, &apiv1.ListEventsRequest{Until: timestamppb.New(now.Add(-time.Hour))}))
		all := list(api, &apiv1.ListEventsRequest{Since: timestamppb.New(now.Add(-time.Hour)), Until: timestamppb.New(now.Add(time.Hour))})
		require.NotEmpty(t, all)
	})
	t.Run("pages in both directions", func(t *testing.T) {
		whole := list(api, &apiv1.ListEventsRequest{Tenant: "default"})
		for _, newest := range []bool{false, true} {
			var seqs []uint64
			req := &apiv1.ListEventsRequest{Tenant: "default", Limit: 3, Newest: newest}
			for {
				resp, err := api.ListEvents(t.Context(), req)
				require.NoError(t, err)
				require.LessOrEqual(t, len(resp.GetEvents()), 3)
				for _, e := range resp.GetEvents() {
					seqs = append(seqs, e.GetSeq())
				}
				if req.Page = resp.GetNextPage(); req.Page == "" {
					break
				}
			}
			if newest {
				slices.Reverse(seqs)
			}
			require.Len(t, seqs, len(whole))
			require.True(t, slices.IsSorted(seqs))
		}
	})
	t.Run("a tenant sees its own", func(t *testing.T) {
		for _, e := range list(blue, &apiv1.ListEventsRequest{}) {
			require.Equal(t, "blue", e.GetTenant())
		}
		require.Empty(t, list(blue, &apiv1.ListEventsRequest{Instance: string(id)}))
		_, err := blue.ListEvents(t.Context(), &apiv1.ListEventsRequest{Tenant: "default"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
	})
	t.Run("bad requests name the field", func(t *testing.T) {
		for field, req := range map[string]*apiv1.ListEventsRequest{
			"limit": {Limit: -1}, "page": {Page: "x"}, "types": {Types: make([]string, 65)},
		} {
			_, err := api.ListEvents(t.Context(), req)
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
			require.ErrorContains(t, err, field)
		}
		_, err := api.ListEvents(t.Context(), &apiv1.ListEventsRequest{Types: []string{"ready", "drain_startd"}})
		require.EqualError(t, wire.ErrorOf(err), `types[1]: unknown word "drain_startd" (did you mean "drain_started"?)`)
		_, err = api.ListEvents(t.Context(), &apiv1.ListEventsRequest{Instance: "x"})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
	})
}

func TestListInterruptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	api, blue := w.admin(), w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	k.awaitAck(k.sendNotice(reclaimNotice("e1", time.Minute)))
	next := w.awaitEvent(nstance.EventReplacementRequested, "").Instance
	w.awaitJournalled(api, nstance.EventDrainStarted, id)
	w.awaitJournalled(api, nstance.EventReplacementRequested, next)
	list := func(api apiv1.OperatorServiceClient, req *apiv1.ListInterruptionsRequest) []*apiv1.Interruption {
		t.Helper()
		resp, err := api.ListInterruptions(t.Context(), req)
		require.NoError(t, err)
		return resp.GetInterruptions()
	}
	got := list(api, &apiv1.ListInterruptionsRequest{})
	require.Len(t, got, 1)
	require.Equal(t, []string{"e1", string(id), string(next), "web"}, []string{got[0].GetEventId(), got[0].GetInstance(), got[0].GetReplacement(), got[0].GetGroup()})
	require.NotNil(t, got[0].GetReceivedAt())
	require.NotNil(t, got[0].GetDrainStartedAt())
	require.Len(t, list(api, &apiv1.ListInterruptionsRequest{Instance: string(id), EventId: "e1"}), 1)
	require.Empty(t, list(api, &apiv1.ListInterruptionsRequest{EventId: "e2"}))
	require.Empty(t, list(api, &apiv1.ListInterruptionsRequest{Group: "db"}))
	require.Empty(t, list(blue, &apiv1.ListInterruptionsRequest{}))
	_, err := api.ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{Limit: 1001})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
}

// TestInterruptionsAmongManyEvents finds a notice and its outcome, page by page,
// among many later events.
func TestInterruptionsAmongManyEvents(t *testing.T) {
	t.Parallel()
	ids := make([]nstance.InstanceID, 4)
	for i := range ids {
		var err error
		ids[i], err = nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
	}
	lost, fresh, other, late := ids[0], ids[1], ids[2], ids[3]
	var events []nstance.Event
	say := func(typ nstance.EventType, id nstance.InstanceID, change func(*nstance.Event)) {
		e := nstance.Event{Time: time.Now().Add(-time.Hour), Type: typ, Tenant: nstance.DefaultTenant, Group: "web", Instance: id}
		if change != nil {
			change(&e)
		}
		events = append(events, e)
	}
	noticed := func(id string) func(*nstance.Event) {
		n := reclaimNotice(id, time.Minute)
		return func(e *nstance.Event) { e.Notice = &n }
	}
	say(nstance.EventNoticeReceived, lost, noticed("e1"))
	say(nstance.EventReplacementRequested, fresh, func(e *nstance.Event) { e.Replaces = lost })
	for range 10_500 { // all of kinds that interruptions consist of
		say(nstance.EventReady, other, nil)
	}
	for range 1_100 { // leaders without a record of it receive it again
		say(nstance.EventNoticeReceived, lost, noticed("e1"))
	}
	say(nstance.EventNoticeReceived, late, noticed("e2"))
	say(nstance.EventReady, fresh, nil)
	say(nstance.EventDeleted, lost, nil)

	w := newWorld(t, setup{opts: server.Options{Events: journalOf(events)}})
	api := w.admin()
	list := func(req *apiv1.ListInterruptionsRequest) (ids []string, all []*apiv1.Interruption) {
		t.Helper()
		resp, err := api.ListInterruptions(t.Context(), req)
		require.NoError(t, err)
		for _, i := range resp.GetInterruptions() {
			ids = append(ids, i.GetEventId())
		}
		return ids, resp.GetInterruptions()
	}
	got, all := list(&apiv1.ListInterruptionsRequest{})
	require.Equal(t, []string{"e2", "e1"}, got)
	i := all[1]
	require.Equal(t, string(fresh), i.GetReplacement())
	require.NotNil(t, i.GetReplacementReadyAt())
	require.NotNil(t, i.GetDeletedAt())
	got, _ = list(&apiv1.ListInterruptionsRequest{Limit: 1})
	require.Equal(t, []string{"e2"}, got)
	got, _ = list(&apiv1.ListInterruptionsRequest{EventId: "e1"})
	require.Equal(t, []string{"e1"}, got)
	got, _ = list(&apiv1.ListInterruptionsRequest{Instance: string(late)})
	require.Equal(t, []string{"e2"}, got)
	got, _ = list(&apiv1.ListInterruptionsRequest{Group: "db"})
	require.Empty(t, got)
}

// journalOf returns a journal with these events.
func journalOf(events []nstance.Event) journal.Journal {
	kept := journal.NewMemory(2 * len(events))
	for _, e := range events {
		kept.Append(e)
	}
	return kept
}
