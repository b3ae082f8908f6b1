package server_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// reclaimed reclaims the machine of default/web, waits until its replacement is ready and
// it is deleted, and returns both.
func (w *world) reclaimed(event string) (lost, replacement nstance.InstanceID) {
	w.Helper()
	lost = w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(lost)
	k.awaitAck(k.sendNotice(reclaimNotice(event, 5*time.Second)))
	replacement = w.awaitEvent(nstance.EventReplacementRequested, "").Instance
	w.awaitEvent(nstance.EventCreated, replacement)
	w.connectReady(replacement)
	w.awaitEvent(nstance.EventDeleted, lost)
	return lost, replacement
}

// TestStoryAfterFailover: another server, with another disk, knows the whole story of an
// instance that has ended, and of the one that replaced it.
func TestStoryAfterFailover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	lost, replacement := w.reclaimed("e1")
	require.NoError(t, w.stopServer())
	next := newWorld(t, setup{store: w.store, provider: w.cloud, webSize: 1})
	api := next.admin()

	got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(lost)})
	require.NoError(t, err)
	require.Empty(t, got.GetEvents(), "the journal of this server does not have it")
	require.Equal(t, "deleted", got.GetInstance().GetState())
	require.NotEmpty(t, got.GetInstance().GetProviderId())
	life := got.GetLife()
	require.Equal(t, string(replacement), life.GetReplacedBy())
	require.Equal(t, "cut short", life.GetOutcome(), "nothing drained it before its deadline")
	moments := []*timestamppb.Timestamp{life.GetCreatedAt(), life.GetRegisteredAt(), life.GetReadyAt(), life.GetDrainStartedAt(), life.GetDeleteAt(), life.GetDeletedAt()}
	for i, at := range moments {
		require.NotNil(t, at, "moment %d", i)
		require.False(t, i > 0 && at.AsTime().Before(moments[i-1].AsTime()), "moment %d of %v", i, moments)
	}
	requireStory := func(i *apiv1.Interruption) {
		t.Helper()
		require.Equal(t, []string{"e1", string(lost), "web", "default", string(replacement), "cut short", "spot", "small"},
			[]string{i.GetEventId(), i.GetInstance(), i.GetGroup(), i.GetTenant(), i.GetReplacement(), i.GetDrainOutcome(), i.GetMarket(), i.GetInstanceType()})
		for _, at := range []*timestamppb.Timestamp{i.GetDetectedAt(), i.GetReceivedAt(), i.GetDrainStartedAt(), i.GetDrainedAt(), i.GetDeletedAt(), i.GetReplacementRequestedAt(), i.GetReplacementReadyAt()} {
			require.NotNil(t, at)
		}
	}
	require.Len(t, life.GetInterruptions(), 1)
	requireStory(life.GetInterruptions()[0])

	got, err = api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(replacement)})
	require.NoError(t, err)
	require.Equal(t, string(lost), got.GetLife().GetReplaces())
	require.Nil(t, got.GetLife().GetDeletedAt())

	for _, req := range []*apiv1.ListInterruptionsRequest{
		{}, {EventId: "e1"}, {Instance: string(lost)}, {Instance: string(lost)[:12]}, {Group: "web"}, {Since: timestamppb.New(time.Now().Add(-time.Hour))},
	} {
		resp, err := api.ListInterruptions(t.Context(), req)
		require.NoError(t, err)
		require.Len(t, resp.GetInterruptions(), 1, "%v", req)
		requireStory(resp.GetInterruptions()[0])
	}
	blue := next.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	resp, err := blue.ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{})
	require.NoError(t, err)
	require.Empty(t, resp.GetInterruptions(), "another tenant's")
	_, err = blue.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(lost)})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
	_, err = api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(newInstanceID())})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
}

// TestStatusPageAfterFailover: another server's status page has what was interrupted before.
func TestStatusPageAfterFailover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	lost, replacement := w.reclaimed("e1")
	require.NoError(t, w.stopServer())
	next := newWorld(t, setup{store: w.store, provider: w.cloud, webSize: 1, rates: true})
	var shown []web.Interruption
	require.Eventually(t, func() bool {
		shown = next.status().Interruptions
		return len(shown) > 0
	}, eventually, 20*time.Millisecond)
	require.Len(t, shown, 1)
	require.Equal(t, []string{"e1", string(lost), string(replacement)}, []string{shown[0].Event, shown[0].Instance, shown[0].Replacement})
	require.False(t, shown[0].DeletedAt.IsZero())
	require.False(t, shown[0].ReplacementReadyAt.IsZero())
}

// TestStoryUnderWay: an interruption that has not ended is known to the next leader.
func TestStoryUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	k.awaitAck(k.sendNotice(reclaimNotice("e1", time.Hour)))
	w.awaitEvent(nstance.EventDrainStarted, id)
	require.NoError(t, w.stopServer())
	next := newWorld(t, setup{store: w.store, provider: w.cloud, webSize: 1})
	resp, err := next.admin().ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{})
	require.NoError(t, err)
	require.Len(t, resp.GetInterruptions(), 1)
	i := resp.GetInterruptions()[0]
	require.Equal(t, []string{"e1", string(id), "", ""}, []string{i.GetEventId(), i.GetInstance(), i.GetOutcome(), i.GetDrainOutcome()})
	require.NotNil(t, i.GetDrainStartedAt())
	require.Nil(t, i.GetDeletedAt())
}

// TestReturningEvent: an event that was withdrawn and ends the machine when it returns, under
// the same ID, is listed once as withdrawn and once with its outcome.
func TestReturningEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	n := reclaimNotice("gcp/preempted", time.Hour)
	k.awaitAck(k.sendNotice(n))
	w.awaitEvent(nstance.EventDrainStarted, id)
	n.Cancelled = true
	k.awaitAck(k.sendNotice(n))
	w.awaitEvent(nstance.EventDrainCancelled, id)
	requireListed := func(w *world, ended bool) {
		t.Helper()
		require.Equal(t, []string{"gcp/preempted", "gcp/preempted"}, listEvents(t, w.admin(), 1), "page by page")
		resp, err := w.admin().ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{Instance: string(id)})
		require.NoError(t, err)
		latest, first := resp.GetInterruptions()[0], resp.GetInterruptions()[1]
		require.False(t, latest.GetWithdrawn())
		require.NotNil(t, latest.GetDrainStartedAt())
		require.Equal(t, ended, latest.GetDeletedAt() != nil)
		require.True(t, first.GetWithdrawn())
		require.Equal(t, "cancelled", first.GetDrainOutcome())
		require.Nil(t, first.GetDeletedAt())
	}
	k.awaitAck(k.sendNotice(reclaimNotice("gcp/preempted", time.Hour)))
	requireListed(w, false)
	k.awaitAck(k.sendNotice(reclaimNotice("gcp/preempted", 0)))
	w.awaitEvent(nstance.EventDeleted, id)
	requireListed(w, true)
	require.NoError(t, w.stopServer())
	requireListed(newWorld(t, setup{store: w.store, provider: w.cloud, webSize: 1}), true)
}

// TestPagesOfLivingInstances: the journal and the records have the same interruptions, and
// each is on one page only.
func TestPagesOfLivingInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 3})
	var want []string
	for i, id := range w.awaitMachines(3) {
		event := fmt.Sprint("e", i)
		k := w.connectReady(id)
		k.awaitAck(k.sendNotice(reclaimNotice(event, time.Hour)))
		w.awaitEvent(nstance.EventDrainStarted, id)
		want = append([]string{event}, want...)
	}
	require.Equal(t, want, listEvents(t, w.admin(), 1))
}

// listEvents returns the event IDs of all interruptions, read in pages.
func listEvents(t *testing.T, api apiv1.OperatorServiceClient, limit int32) (events []string) {
	t.Helper()
	req := &apiv1.ListInterruptionsRequest{Limit: limit}
	for first := true; first || req.Page != ""; first = false {
		resp, err := api.ListInterruptions(t.Context(), req)
		require.NoError(t, err)
		for _, i := range resp.GetInterruptions() {
			events = append(events, i.GetEventId())
		}
		req.Page = resp.GetNextPage()
		require.Less(t, len(events), 100, "pages end")
	}
	return events
}

// writeLedger writes lives of reclaimed instances, one each hour, the last one before the
// end, and returns their event IDs, the latest first.
func writeLedger(t *testing.T, store storage.Store, n int, end time.Time) (events []string) {
	t.Helper()
	for i := range n {
		at := end.Add(-time.Duration(i+1) * time.Hour).UTC()
		id, err := nstance.NewInstanceID("web", at.Add(-time.Hour))
		require.NoError(t, err)
		event := fmt.Sprintf("old-%d", i)
		line, err := json.Marshal(ledger.Entry{Life: &ledger.Life{
			ID: id, Tenant: "default", Group: "web", CreatedAt: at.Add(-time.Hour), RegisteredAt: at.Add(-50 * time.Minute), DeletedAt: at.Add(time.Minute), Outcome: ledger.Drained,
			Pool:    ledger.Pool{InstanceType: "small", Zone: "z-1", Market: nstance.Spot},
			Notices: []nstance.Notice{{Kind: nstance.Reclaim, EventID: event, Source: "aws/spot", DetectedAt: at, ReceivedAt: at, Deadline: at.Add(2 * time.Minute)}},
		}})
		require.NoError(t, err)
		_, err = store.PutIfAbsent(t.Context(), layout.LedgerKey(zone, at, fmt.Sprint("test-", i)), append(line, '\n'))
		require.NoError(t, err)
		events = append(events, event)
	}
	return events
}

// TestLedgerPages reads a month of interruptions page by page, and a period of it.
func TestLedgerPages(t *testing.T) {
	t.Parallel()
	store := storagetest.NewFaulty(storage.NewMemory())
	want := writeLedger(t, store, 30*24, time.Now())
	api := newWorld(t, setup{store: store, webSize: 0}).admin()
	var got []string
	req := &apiv1.ListInterruptionsRequest{Limit: 100}
	for first := true; first || req.Page != ""; first = false {
		store.Reset()
		resp, err := api.ListInterruptions(t.Context(), req)
		require.NoError(t, err)
		require.LessOrEqual(t, len(resp.GetInterruptions()), 100)
		if first {
			require.Less(t, store.Count(storagetest.Get), 300, "only as many days as are needed")
		}
		for _, i := range resp.GetInterruptions() {
			got = append(got, i.GetEventId())
		}
		req.Page = resp.GetNextPage()
	}
	require.Equal(t, want, got)

	since, until := time.Now().Add(-100*time.Hour), time.Now().Add(-90*time.Hour)
	resp, err := api.ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{Since: timestamppb.New(since), Until: timestamppb.New(until)})
	require.NoError(t, err)
	require.Len(t, resp.GetInterruptions(), 10)
	for _, i := range resp.GetInterruptions() {
		at := i.GetReceivedAt().AsTime()
		require.False(t, at.Before(since) || !at.Before(until))
	}
	for _, page := range []string{"x", "x|y|z", "2026-01-01T00:00:00Z"} {
		_, err := api.ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{Page: page})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
		require.ErrorContains(t, err, "page")
	}
}

// TestInterruptionRates counts what the ledger has, and the instances that live.
func TestInterruptionRates(t *testing.T) {
	t.Parallel()
	store := storagetest.NewFaulty(storage.NewMemory())
	writeLedger(t, store, 48, time.Now())
	w := newWorld(t, setup{store: store, webSize: 1})
	w.connectReady(w.awaitMachine(nstance.DefaultTenant))
	api := w.admin()
	since := time.Now().Add(-24*time.Hour - 30*time.Minute)
	resp, err := api.GetInterruptionRates(t.Context(), &apiv1.GetInterruptionRatesRequest{Since: timestamppb.New(since)})
	require.NoError(t, err)
	require.Equal(t, since.UnixMilli(), resp.GetSince().AsTime().UnixMilli())
	require.Len(t, resp.GetRates(), 2, "%v", resp)
	living, old := resp.GetRates()[0], resp.GetRates()[1] // by zone
	require.Equal(t, []string{"small", "z-1", "spot"}, []string{old.GetInstanceType(), old.GetZone(), old.GetMarket()})
	require.EqualValues(t, 24, old.GetReclaims())
	require.Equal(t, map[string]int32{"reclaim": 24}, old.GetNotices())
	require.Equal(t, 2*time.Minute, old.GetMedianNotice().AsDuration())
	require.Equal(t, 2*time.Minute, old.GetP10Notice().AsDuration())
	require.InDelta(t, 23.5, old.GetReclaimsPerDay(), 0.1)
	require.InDelta(t, 100, old.GetReclaimsPer_100Hours(), 3)
	require.Positive(t, living.GetMachineTime().AsDuration())
	require.Nil(t, living.GetMedianNotice())

	resp, err = api.GetInterruptionRates(t.Context(), &apiv1.GetInterruptionRatesRequest{})
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(-49*time.Hour), resp.GetSince().AsTime(), time.Minute, "not the 30 days of which nothing is known")
	blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	resp, err = blue.GetInterruptionRates(t.Context(), &apiv1.GetInterruptionRatesRequest{})
	require.NoError(t, err)
	require.Empty(t, resp.GetRates(), "another tenant's")

	_, err = api.GetInterruptionRates(t.Context(), &apiv1.GetInterruptionRatesRequest{Since: timestamppb.New(time.Now().Add(time.Hour))})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
	require.ErrorContains(t, err, "since")
	bad := layout.LedgerKey(zone, time.Now().Add(-time.Hour), "test-x")
	_, err = store.PutIfAbsent(t.Context(), bad, []byte("{"))
	require.NoError(t, err)
	resp, err = api.GetInterruptionRates(t.Context(), &apiv1.GetInterruptionRatesRequest{})
	require.NoError(t, err)
	require.Len(t, resp.GetProblems(), 1)
	store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: layout.LedgerPrefix(zone), Times: -1})
	_, err = api.GetInterruptionRates(t.Context(), &apiv1.GetInterruptionRatesRequest{})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
}

// TestUnreadableLedger names what cannot be read, and shows the rest.
func TestUnreadableLedger(t *testing.T) {
	t.Parallel()
	store := storagetest.NewFaulty(storage.NewMemory())
	want := writeLedger(t, store, 3, time.Now())
	bad := layout.LedgerKey(zone, time.Now().Add(-time.Hour), "test-x")
	_, err := store.PutIfAbsent(t.Context(), bad, []byte("{"))
	require.NoError(t, err)
	api := newWorld(t, setup{store: store, webSize: 0}).admin()
	resp, err := api.ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{})
	require.NoError(t, err)
	var got []string
	for _, i := range resp.GetInterruptions() {
		got = append(got, i.GetEventId())
	}
	require.Equal(t, want, got)
	require.True(t, slices.ContainsFunc(resp.GetProblems(), func(p string) bool { return len(p) > len(bad) && p[:len(bad)] == bad }))
	store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: layout.LedgerPrefix(zone), Times: -1})
	_, err = api.ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable, "an answer that is not the whole says so")
}

// TestLedgerIsPruned deletes days by age, while other shards keep theirs.
func TestLedgerIsPruned(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	day := func(shard nstance.ShardID, years int) string {
		return layout.LedgerKey(shard, time.Now().AddDate(years, 0, 0), "A")
	}
	for _, key := range []string{day(zone, -3), day(zone, 0), day("other", -3)} {
		_, err := store.PutIfAbsent(t.Context(), key, []byte("\n"))
		require.NoError(t, err)
	}
	newWorld(t, setup{store: store, webSize: 0, shard: `"gc": {"retention": "1s"},`})
	var left []string
	require.Eventually(t, func() bool {
		left = nil
		for e, err := range store.List(t.Context(), "ledger/", "") {
			require.NoError(t, err)
			left = append(left, e.Key)
		}
		return len(left) == 2
	}, eventually, 5*time.Millisecond)
	require.ElementsMatch(t, []string{day(zone, 0), day("other", -3)}, left)
}
