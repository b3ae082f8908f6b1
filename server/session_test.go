package server_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

var nan = math.NaN()

// instance returns the instance from the operators' API.
func (w *world) instance(api apiv1.OperatorServiceClient, id nstance.InstanceID) *apiv1.Instance {
	w.Helper()
	resp, err := api.GetInstance(w.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
	require.NoError(w, err)
	return resp.GetInstance()
}

// A writeGate holds back storage's writes to instance records.
type writeGate struct {
	*storagetest.Faulty
	once   sync.Once
	opened chan struct{}
}

func newWriteGate() *writeGate {
	return &writeGate{Faulty: storagetest.NewFaulty(storage.NewMemory()), opened: make(chan struct{})}
}

func (d *writeGate) hold(prefix string) {
	d.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: prefix, Times: -1, Pass: true, Do: func() { <-d.opened }})
}

func (d *writeGate) release() { d.once.Do(func() { close(d.opened) }) }

// TestNotice follows one notice from the agent's message to the deleted machine.
func TestNotice(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	store := newWriteGate()
	w := newWorld(t, setup{webSize: 1, store: store})
	t.Cleanup(store.release)
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)

	store.hold(layout.InstancePrefix(zone))
	n := reclaimNotice("e1", 2*time.Minute)
	number := k.sendNotice(n)
	replacement := w.awaitEvent(nstance.EventReplacementRequested, "")
	require.Equal(t, id, replacement.Replaces, "the create does not wait for the drain's record")

	t.Run("acknowledged only when its consequence is durable", func(t *testing.T) {
		again := k.sendNotice(n) // repeated before the acknowledgement
		report := k.sendReport()
		require.Equal(t, report, k.nextMessage().GetAcknowledgement().GetReport(), "and not before")
		require.Nil(t, w.instanceRecord(nstance.DefaultTenant, "web", id).Drain)
		store.release()
		var acked []uint64
		var command *apiv1.DrainCommand
		for len(acked) < 2 || command == nil {
			m := k.nextMessage()
			require.NotNil(t, w.instanceRecord(nstance.DefaultTenant, "web", id).Drain)
			if m.GetDrain() != nil {
				command = m.GetDrain()
			} else {
				acked = append(acked, m.GetAcknowledgement().GetNoticesRevision())
			}
		}
		require.Equal(t, []uint64{number, again}, acked)
		require.EqualValues(t, 1, command.GetGeneration(), "and the agent is told to drain")
	})
	t.Run("recorded once, however often it is sent", func(t *testing.T) {
		k.awaitAck(k.sendNotice(n))
		require.Equal(t, 1, w.countEvents(eventtype.NoticeDetected))
		require.Equal(t, 1, w.countEvents(nstance.EventNoticeReceived))
		require.Equal(t, 1, w.countEvents(nstance.EventDrainStarted))
	})
	t.Run("the drain ends before the deadline and is sent again in each session", func(t *testing.T) {
		d := w.instanceRecord(nstance.DefaultTenant, "web", id).Drain
		require.Equal(t, nstance.ExecutorAgent, d.Executor)
		require.True(t, d.Deadline.Before(n.Deadline))
		next := k.client.connect()
		command := next.nextMessage().GetDrain()
		require.Equal(t, d.Generation, command.GetGeneration())
		require.True(t, d.Deadline.Equal(command.GetDeadline().AsTime()))
		k = next
	})
	t.Run("its result ends the drain and deletes the machine", func(t *testing.T) {
		k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_DrainResult{DrainResult: &apiv1.DrainResult{
			Generation: 1, Outcome: string(nstance.OutcomeDrained),
		}}})
		k.awaitAck(1)
		w.awaitEvent(nstance.EventDrainAcknowledged, id)
		w.awaitEvent(nstance.EventDeleteRequested, id)
		require.Error(t, k.awaitEnd(), "the session of a deleted instance ends")
		w.awaitEvent(nstance.EventDeleted, id)
		_, known := w.cloud.Spec(id)
		require.False(t, known)
	})
	t.Run("the deleted instance is still shown", func(t *testing.T) {
		api := w.admin()
		require.Eventually(t, func() bool { return w.instance(api, id).GetState() == string(nstance.Deleted) }, eventually, 20*time.Millisecond)
	})
}

// TestStandingNotices sends sets of more than one notice.
func TestStandingNotices(t *testing.T) {
	t.Parallel()
	store := newWriteGate()
	w := newWorld(t, setup{webSize: 1, store: store})
	t.Cleanup(store.release)
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	likely := reclaimNotice("likely", time.Hour)
	likely.Kind = nstance.Rebalance
	set := func(all ...nstance.Notice) (out []*apiv1.Notice) {
		for _, n := range all {
			out = append(out, wire.NoticeAt(n, time.Now()))
		}
		return out
	}
	t.Run("a notice without drain is acknowledged", func(t *testing.T) {
		k.awaitAck(k.sendNotices(set(likely)...))
	})
	t.Run("a revision waits for the last of its notices", func(t *testing.T) {
		store.hold(layout.InstancePrefix(zone))
		revision := k.sendNotices(set(reclaimNotice("e1", 30*time.Minute), likely)...)
		w.awaitEvent(nstance.EventNoticeReceived, id)
		report := k.sendReportWith(set(reclaimNotice("e1", 30*time.Minute), likely)...)
		require.Equal(t, report, k.nextMessage().GetAcknowledgement().GetReport(), "notices in a report wait too")
		store.release()
		k.awaitAck(revision)
	})
	t.Run("a missing notice is not withdrawn", func(t *testing.T) {
		k.awaitAck(k.sendNotices(set(likely)...))
		require.NotNil(t, w.instanceRecord(nstance.DefaultTenant, "web", id).Drain)
		gone := reclaimNotice("e1", 30*time.Minute)
		gone.Cancelled = true
		k.awaitAck(k.sendReportWith(set(gone)...))
		w.awaitEvent(nstance.EventDrainCancelled, id)
	})
	t.Run("repeated notices are not journalled again", func(t *testing.T) {
		require.Equal(t, 2, w.countEvents(eventtype.NoticeDetected))
		require.Equal(t, 1, w.countEvents(nstance.EventNoticeIgnored))
	})
	t.Run("notices acknowledged by another leader are not journalled again", func(t *testing.T) {
		former := likely
		former.EventID = "former"
		k.awaitAck(k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Notices{Notices: &apiv1.StandingNotices{
			Revision: k.lastNumber + 1, Notices: set(former), Acknowledged: []string{"former"},
		}}}))
		require.Equal(t, 1, w.countEvents(nstance.EventNoticeIgnored))
	})
	t.Run("a restarted agent may start with low revisions", func(t *testing.T) {
		k = k.client.connect()
		k.awaitAck(k.sendNotices(set(likely)...))
	})
}

func TestSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	h := w.registerAgent(id)
	api := w.admin()
	k := h.connect()
	k.awaitAck(k.sendReport())

	t.Run("a newer session replaces the older one", func(t *testing.T) {
		next := h.connect()
		require.Error(t, k.awaitEnd())
		next.awaitAck(next.sendReport())
		require.True(t, w.instance(api, id).GetConnected(), "the end of the older one is no disconnection")
		k = next
	})
	t.Run("of concurrent sessions one stays connected", func(t *testing.T) {
		var wg sync.WaitGroup
		talks := make(chan *agentSession, 8)
		for range cap(talks) {
			wg.Go(func() { talks <- h.open(t.Context()) })
		}
		wg.Wait()
		close(talks)
		for other := range talks {
			select {
			case <-other.ended:
			case <-other.messages: // it was welcomed before it was replaced
			}
		}
		k = h.connect()
		k.awaitAck(k.sendReport())
		require.True(t, w.instance(api, id).GetConnected())
	})
	t.Run("messages with old numbers are dropped", func(t *testing.T) {
		k.lastNumber = 0
		k.sendNotice(reclaimNotice("replayed", time.Minute))
		k.lastNumber = 100
		k.awaitAck(k.sendReport())
		require.Zero(t, w.countEvents(nstance.EventNoticeReceived))
	})
	t.Run("a repeated report is ignored", func(t *testing.T) {
		heard, last := w.instance(api, id).GetLastReportAt().AsTime(), k.lastNumber
		for _, number := range []uint64{last, last, last / 2} {
			k.lastNumber = number - 1
			k.sendReport()
		}
		k.lastNumber = last
		k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_DrainResult{DrainResult: &apiv1.DrainResult{Generation: 999}}})
		k.awaitAck(999) // all earlier messages have been read
		require.Equal(t, heard, w.instance(api, id).GetLastReportAt().AsTime())
	})
	t.Run("a goodbye ends the session without error", func(t *testing.T) {
		k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Goodbye{Goodbye: &apiv1.Goodbye{}}})
		require.NoError(t, k.stream.CloseSend())
		require.EqualError(t, receive(t, k.ended), "EOF")
		require.False(t, w.instance(api, id).GetConnected())
	})
	t.Run("an unregistered key cannot connect", func(t *testing.T) {
		thief := w.newClient()
		forged, err := w.keys.Identity.Issue(keyring.Template{
			Subject: string(id), Tenant: nstance.DefaultTenant, Role: nstance.RoleAgent,
			Key: thief.key.Public().(ed25519.PublicKey), Lifetime: time.Hour, Now: time.Now(),
		})
		require.NoError(t, err)
		thief.useCredential(thief.key, nstance.Credential{Chain: [][]byte{forged.Certificate}})
		require.ErrorIs(t, thief.open(t.Context()).awaitEnd(), nstance.Denied)
	})
}

// A silentStream is the stream of an agent that sends nothing.
type silentStream struct {
	grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]
	ctx context.Context
}

func (s silentStream) Context() context.Context          { return s.ctx }
func (s silentStream) Send(*apiv1.ConnectResponse) error { return nil }
func (s silentStream) Recv() (*apiv1.ConnectRequest, error) {
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

// TestSessionOfAnInstanceBeingDeleted connects after the deletion looked for
// sessions to end, with a certificate that was checked before.
func TestSessionOfAnInstanceBeingDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	h := w.registerAgent(id)
	deleting, deleted := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(deleted) })
	t.Cleanup(release)
	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Keep: true, Do: func() { close(deleting); <-deleted }})
	api, asked := w.admin(), make(chan error, 1)
	go func() {
		_, err := api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
		asked <- err
	}()
	receive(t, deleting) // its record is still there, marked as deleting

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- server.ConnectChecked(w.server, h.identity(), silentStream{ctx: ctx}) }()
	require.ErrorIs(t, receive(t, ended), nstance.NotFound)
	release()
	require.NoError(t, receive(t, asked))
}

// TestReportsAreNotWritten: reports are read from memory only, and a large shard
// would write hundreds per second.
func TestReportsAreNotWritten(t *testing.T) {
	t.Parallel()
	store, kept := storagetest.NewFaulty(storage.NewMemory()), journal.NewMemory(0)
	w := newWorld(t, setup{store: store, webSize: 1, opts: server.Options{Events: kept}})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	instance := layout.InstanceKey(zone, nstance.DefaultTenant, "web", id)
	written := func() (events int, record storage.Version) {
		all, err := kept.Events(t.Context(), journal.Filter{Limit: journal.MaxLimit, Instance: id})
		require.NoError(t, err)
		obj, err := store.Get(t.Context(), instance)
		require.NoError(t, err)
		return len(all), obj.Version
	}
	k.awaitAck(k.sendReport())
	w.awaitEvent(nstance.EventReady, id)
	events, record := written()
	require.Positive(t, events)
	for range 20 {
		k.awaitAck(k.sendReport())
	}
	require.NotNil(t, w.instance(w.admin(), id).GetLastReport(), "the last report is shown from memory")
	eventsAfter, recordAfter := written()
	require.Equal(t, events, eventsAfter, "reports are no events")
	require.Equal(t, record, recordAfter, "they are not in the record")
}

// TestNoticeFlood: a compromised agent cannot fill the journal.
func TestNoticeFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	n := reclaimNotice("", time.Hour)
	n.Kind = nstance.Maintenance // starts no drain, so that the instance stays

	t.Run("notices above the limit are acknowledged and dropped", func(t *testing.T) {
		for i := range 50 {
			n.EventID = fmt.Sprint("e", i)
			k.awaitAck(k.sendNotice(n))
		}
		require.Equal(t, 32, w.countEvents(eventtype.NoticeDetected))
		require.Equal(t, 32, w.countEvents(nstance.EventNoticeIgnored))
	})
	t.Run("in reports too", func(t *testing.T) {
		for i := range 10 {
			var notices []*apiv1.Notice
			for j := range 20 {
				notices = append(notices, wire.NoticeAt(reclaimNotice(fmt.Sprint("r", i, "/", j), time.Hour), time.Now()))
			}
			k.awaitAck(k.sendReportWith(notices...))
		}
		require.Equal(t, 16, w.countEvents(nstance.EventNoticeReceived))
		require.Equal(t, 32+32, w.countEvents(eventtype.NoticeDetected))
	})
	t.Run("the limit spans sessions", func(t *testing.T) {
		detected := w.countEvents(eventtype.NoticeDetected)
		for i := range 3 {
			k = k.client.connect()
			for j := range 64 {
				n.EventID = fmt.Sprint("more", i, "/", j)
				k.awaitAckKeepingOthers(k.sendNotice(n))
			}
		}
		require.Less(t, w.countEvents(eventtype.NoticeDetected), detected+32, "the limit is per identity, not per session")
	})
	t.Run("an oversized message is refused", func(t *testing.T) {
		k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{Version: strings.Repeat("x", 300<<10)}}})
		require.ErrorIs(t, k.awaitEnd(), nstance.Throttled) // gRPC's ResourceExhausted
	})
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	w.connectReady(id)
	api := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()

	t.Run("dry run", func(t *testing.T) {
		resp, err := api.Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(id), DryRun: true})
		require.NoError(t, err)
		require.Len(t, resp.GetPlan(), 2)
		require.Contains(t, strings.Join(resp.GetPlan(), "\n"), "start_drain "+string(id))
		require.Zero(t, w.countEvents(nstance.EventNoticeReceived))
	})
	t.Run("interrupt", func(t *testing.T) {
		resp, err := api.Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(id)})
		require.NoError(t, err)
		drain := w.instanceRecord(nstance.DefaultTenant, "web", id).Drain
		require.NotNil(t, drain, "it is durable when the call returns")
		require.Equal(t, resp.GetEventId(), drain.Causes[0].EventID)
		require.Equal(t, id, w.awaitEvent(nstance.EventReplacementRequested, "").Replaces)
	})
}

func TestDrainRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	w.connectReady(id)
	api := w.admin()
	reason := strings.Repeat("é", 200) // longer than the limit, so that it is cut

	_, err := api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id), Reason: reason, DryRun: true})
	require.NoError(t, err)
	require.Nil(t, w.instance(api, id).GetDrain())
	resp, err := api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id), Reason: reason})
	require.NoError(t, err)
	require.NotZero(t, resp.GetDrain().GetGeneration())
	list, err := api.ListInstances(t.Context(), &apiv1.ListInstancesRequest{Group: "web"})
	require.NoError(t, err)
	for _, i := range list.GetInstances() {
		for _, c := range i.GetDrain().GetCauses() {
			require.Regexp(t, `^é{100,} \(asked for by admin-\w+\)$`, c.GetMessage())
			require.LessOrEqual(t, len(c.GetMessage()), 256)
		}
	}
	require.NotNil(t, w.instance(api, id).GetDrain())
}
