package server_test

import (
	"context"
	"crypto/ed25519"
	"database/sql"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

var nan = math.NaN()

// instance returns the instance as an administrator sees it.
func (w *world) instance(api apiv1.OperatorServiceClient, id nstance.InstanceID) *apiv1.Instance {
	w.Helper()
	resp, err := api.GetInstance(w.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
	require.NoError(w, err)
	return resp.GetInstance()
}

// A dam holds back storage's writes to instance records.
type dam struct {
	*storagetest.Faulty
	once sync.Once
	open chan struct{}
}

func newDam() *dam {
	return &dam{Faulty: storagetest.NewFaulty(storage.NewMemory()), open: make(chan struct{})}
}

func (d *dam) hold(prefix string) {
	d.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: prefix, Times: -1, Pass: true, Do: func() { <-d.open }})
}

func (d *dam) release() { d.once.Do(func() { close(d.open) }) }

// TestNotice follows one notice from the agent's message to the deleted machine.
func TestNotice(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	store := newDam()
	w := newWorld(t, setup{size: 1, store: store})
	t.Cleanup(store.release)
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)

	store.hold(storage.InstancePrefix(zone))
	n := reclaim("e1", 2*time.Minute)
	number := k.notice(n)
	replacement := w.await(nstance.EventReplacementRequested, "")
	require.Equal(t, id, replacement.Replaces, "the create does not wait for the drain's record")

	t.Run("acknowledged only when its consequence is durable", func(t *testing.T) {
		again := k.notice(n) // it is repeated meanwhile
		report := k.report()
		require.Equal(t, report, k.hear().GetAcknowledgement().GetReport(), "and neither before")
		require.Nil(t, w.record(nstance.DefaultTenant, "web", id).Drain)
		store.release()
		var acked []uint64
		var command *apiv1.DrainCommand
		for len(acked) < 2 || command == nil {
			m := k.hear()
			require.NotNil(t, w.record(nstance.DefaultTenant, "web", id).Drain)
			if m.GetDrain() != nil {
				command = m.GetDrain()
			} else {
				acked = append(acked, m.GetAcknowledgement().GetNoticesRevision())
			}
		}
		require.Equal(t, []uint64{number, again}, acked)
		require.EqualValues(t, 1, command.GetGeneration(), "and the agent is told to drain")
	})
	t.Run("told once, however often it is said", func(t *testing.T) {
		k.acked(k.notice(n))
		require.Equal(t, 1, w.count(nstance.EventNoticeDetected))
		require.Equal(t, 1, w.count(nstance.EventNoticeReceived))
		require.Equal(t, 1, w.count(nstance.EventDrainStarted))
	})
	t.Run("within the notice, and again in each session", func(t *testing.T) {
		d := w.record(nstance.DefaultTenant, "web", id).Drain
		require.Equal(t, nstance.ExecutorAgent, d.Executor)
		require.True(t, d.Deadline.Before(n.Deadline))
		next := k.holder.connect()
		command := next.hear().GetDrain()
		require.Equal(t, d.Generation, command.GetGeneration())
		require.True(t, d.Deadline.Equal(command.GetDeadline().AsTime()))
		k = next
	})
	t.Run("its result ends the drain and the machine", func(t *testing.T) {
		k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_DrainResult{DrainResult: &apiv1.DrainResult{
			Generation: 1, Outcome: string(nstance.OutcomeDrained),
		}}})
		k.acked(1)
		w.await(nstance.EventDrainAcknowledged, id)
		w.await(nstance.EventDeleteRequested, id)
		require.Error(t, k.ends(), "the session of a deleted instance ends")
		w.await(nstance.EventDeleted, id)
		_, known := w.cloud.Spec(id)
		require.False(t, known)
	})
	t.Run("and its story remains", func(t *testing.T) {
		api := w.admin()
		require.Eventually(t, func() bool { return w.instance(api, id).GetState() == string(nstance.Deleted) }, eventually, 20*time.Millisecond)
	})
}

// TestStandingNotices is about sets of more than one notice.
func TestStandingNotices(t *testing.T) {
	store := newDam()
	w := newWorld(t, setup{size: 1, store: store})
	t.Cleanup(store.release)
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	likely := reclaim("likely", time.Hour)
	likely.Kind = nstance.Rebalance
	set := func(all ...nstance.Notice) (out []*apiv1.Notice) {
		for _, n := range all {
			out = append(out, wire.NoticeAt(n, time.Now()))
		}
		return out
	}
	t.Run("what dooms nothing is acknowledged at once", func(t *testing.T) {
		k.acked(k.notices(set(likely)...))
	})
	t.Run("a revision waits for the last of its notices", func(t *testing.T) {
		store.hold(storage.InstancePrefix(zone))
		revision := k.notices(set(reclaim("e1", 30*time.Minute), likely)...)
		w.await(nstance.EventNoticeReceived, id)
		report := k.reportWith(set(reclaim("e1", 30*time.Minute), likely)...)
		require.Equal(t, report, k.hear().GetAcknowledgement().GetReport(), "and so does one within a report")
		store.release()
		k.acked(revision)
	})
	t.Run("a notice that is missing was not withdrawn", func(t *testing.T) {
		k.acked(k.notices(set(likely)...))
		require.NotNil(t, w.record(nstance.DefaultTenant, "web", id).Drain)
		gone := reclaim("e1", 30*time.Minute)
		gone.Cancelled = true
		k.acked(k.reportWith(set(gone)...))
		w.await(nstance.EventDrainCancelled, id)
	})
	t.Run("nothing is journalled again", func(t *testing.T) {
		require.Equal(t, 2, w.count(nstance.EventNoticeDetected))
		require.Equal(t, 1, w.count(nstance.EventNoticeIgnored))
	})
	t.Run("nor what another leader has acknowledged", func(t *testing.T) {
		former := likely
		former.EventID = "former"
		k.acked(k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Notices{Notices: &apiv1.StandingNotices{
			Revision: k.number + 1, Notices: set(former), Acknowledged: []string{"former"},
		}}}))
		require.Equal(t, 1, w.count(nstance.EventNoticeIgnored))
	})
	t.Run("an agent that was restarted begins with low revisions", func(t *testing.T) {
		k = k.holder.connect()
		k.acked(k.notices(set(likely)...))
	})
}

func TestSession(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	h := w.agent(id)
	api := w.admin()
	k := h.connect()
	k.acked(k.report())

	t.Run("a newer session takes the older one's place", func(t *testing.T) {
		next := h.connect()
		require.Error(t, k.ends())
		next.acked(next.report())
		require.True(t, w.instance(api, id).GetConnected(), "the end of the older one is no disconnection")
		k = next
	})
	t.Run("many at once leave one, and it counts as connected", func(t *testing.T) {
		var wg sync.WaitGroup
		talks := make(chan *talk, 8)
		for range cap(talks) {
			wg.Go(func() { talks <- h.open(t.Context()) })
		}
		wg.Wait()
		close(talks)
		for other := range talks {
			select {
			case <-other.over:
			case <-other.heard: // a welcome, if only for a moment
			}
		}
		k = h.connect()
		k.acked(k.report())
		require.True(t, w.instance(api, id).GetConnected())
	})
	t.Run("messages whose number does not grow are dropped", func(t *testing.T) {
		k.number = 0
		k.notice(reclaim("replayed", time.Minute))
		k.number = 100
		k.acked(k.report())
		require.Zero(t, w.count(nstance.EventNoticeReceived))
	})
	t.Run("a report that is repeated refreshes nothing", func(t *testing.T) {
		heard, last := w.instance(api, id).GetLastReportAt().AsTime(), k.number
		for _, number := range []uint64{last, last, last / 2} {
			k.number = number - 1
			k.report()
		}
		k.number = last
		k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_DrainResult{DrainResult: &apiv1.DrainResult{Generation: 999}}})
		k.acked(999) // so all before it was read
		require.Equal(t, heard, w.instance(api, id).GetLastReportAt().AsTime())
	})
	t.Run("a goodbye ends it cleanly", func(t *testing.T) {
		k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Goodbye{Goodbye: &apiv1.Goodbye{}}})
		require.NoError(t, k.stream.CloseSend())
		require.EqualError(t, receive(t, k.over), "EOF")
		require.False(t, w.instance(api, id).GetConnected())
	})
	t.Run("an unregistered key cannot connect", func(t *testing.T) {
		thief := w.holder()
		forged, err := w.keys.Identity.Issue(registration.Template{
			Subject: string(id), Tenant: nstance.DefaultTenant, Role: nstance.RoleAgent,
			Key: thief.key.Public().(ed25519.PublicKey), Lifetime: time.Hour, Now: time.Now(),
		})
		require.NoError(t, err)
		thief.use(thief.key, nstance.Credential{Chain: [][]byte{forged.Certificate}})
		require.ErrorIs(t, thief.open(t.Context()).ends(), nstance.Denied)
	})
}

// A silentStream is the stream of an agent that says nothing.
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

// TestSessionOfAnInstanceBeingDeleted: the deletion found no session to end,
// and the certificate was good when it was checked.
func TestSessionOfAnInstanceBeingDeleted(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	h := w.agent(id)
	deleting, deleted := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(deleted) })
	t.Cleanup(release)
	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Keep: true, Do: func() { close(deleting); <-deleted }})
	api, asked := w.admin(), make(chan error, 1)
	go func() {
		_, err := api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
		asked <- err
	}()
	receive(t, deleting) // it is marked, and its record stands

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- server.ConnectChecked(w.server, h.who(), silentStream{ctx: ctx}) }()
	require.ErrorIs(t, receive(t, ended), nstance.NotFound)
	release()
	require.NoError(t, receive(t, asked))
}

// TestReportsAreNotWritten: no reader needs them beside those in memory, and a
// large shard would write hundreds a second.
func TestReportsAreNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	w := newWorld(t, setup{size: 1, opts: server.Options{Cache: path}})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	k.acked(k.report())
	require.NotNil(t, w.instance(w.admin(), id).GetLastReport(), "shown all the same")
	require.NoError(t, w.stop())

	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	defer db.Close()
	var events, reports int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM events").Scan(&events))
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM sqlite_master WHERE name LIKE '%report%'").Scan(&reports))
	require.Positive(t, events)
	require.Zero(t, reports, "there is no table for them")
}

// TestFlood is about an agent that has fallen into wrong hands.
func TestFlood(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	n := reclaim("", time.Hour)
	n.Kind = nstance.Maintenance // which dooms nothing, so that the instance stays

	t.Run("more announcements than make sense are acknowledged and dropped", func(t *testing.T) {
		for i := range 50 {
			n.EventID = fmt.Sprint("e", i)
			k.acked(k.notice(n))
		}
		require.Equal(t, 32, w.count(nstance.EventNoticeDetected))
		require.Equal(t, 32, w.count(nstance.EventNoticeIgnored))
	})
	t.Run("those in reports, too", func(t *testing.T) {
		for i := range 10 {
			var notices []*apiv1.Notice
			for j := range 20 {
				notices = append(notices, wire.NoticeAt(reclaim(fmt.Sprint("r", i, "/", j), time.Hour), time.Now()))
			}
			k.acked(k.reportWith(notices...))
		}
		require.Equal(t, 16, w.count(nstance.EventNoticeReceived))
		require.Equal(t, 32+32, w.count(nstance.EventNoticeDetected))
	})
	t.Run("over all sessions", func(t *testing.T) {
		detected := w.count(nstance.EventNoticeDetected)
		for i := range 30 {
			k = k.holder.connect()
			for j := range 64 {
				n.EventID = fmt.Sprint("more", i, "/", j)
				k.answered(k.notice(n))
			}
		}
		require.Less(t, w.count(nstance.EventNoticeDetected), detected+32, "one identity makes few lines, however often it connects")
	})
	t.Run("what is too long is refused", func(t *testing.T) {
		k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{Version: strings.Repeat("x", 300<<10)}}})
		require.ErrorIs(t, k.ends(), nstance.Throttled) // gRPC's ResourceExhausted
	})
}

func TestInterrupt(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	w.ready(id)
	api := w.client(nstance.RoleOperator, nstance.DefaultTenant).api()

	t.Run("pretended", func(t *testing.T) {
		resp, err := api.Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(id), DryRun: true})
		require.NoError(t, err)
		require.Len(t, resp.GetPlan(), 2)
		require.Contains(t, strings.Join(resp.GetPlan(), "\n"), "start_drain "+string(id))
		require.Zero(t, w.count(nstance.EventNoticeReceived))
	})
	t.Run("for real", func(t *testing.T) {
		resp, err := api.Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(id)})
		require.NoError(t, err)
		drain := w.record(nstance.DefaultTenant, "web", id).Drain
		require.NotNil(t, drain, "it is durable when the call returns")
		require.Equal(t, resp.GetEventId(), drain.Causes[0].EventID)
		require.Equal(t, id, w.await(nstance.EventReplacementRequested, "").Replaces)
	})
}

func TestDrainRequest(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	w.ready(id)
	api := w.admin()
	reason := strings.Repeat("é", 200) // more than is kept, so that one is cut

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
