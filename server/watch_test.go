package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
)

// An instanceWatch is one WatchInstanceEvents call.
type instanceWatch struct {
	*testing.T
	stream grpc.ServerStreamingClient[apiv1.WatchInstanceEventsResponse]
	seq    uint64 // number of the last message
	stop   context.CancelFunc
}

func (w *world) watch(api apiv1.OperatorServiceClient, req *apiv1.WatchInstanceEventsRequest) *instanceWatch {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), eventually)
	w.Cleanup(cancel)
	stream, err := api.WatchInstanceEvents(ctx, req)
	require.NoError(w, err)
	return &instanceWatch{T: w.T, stream: stream, stop: cancel}
}

// snapshot reads up to the end of the snapshot and returns the instances in it.
func (g *instanceWatch) snapshot() (ids []string) {
	g.Helper()
	for {
		m, err := g.stream.Recv()
		require.NoError(g, err)
		if m.GetSynced() != nil {
			g.seq = m.GetSynced().GetSeq()
			return ids
		}
		require.NotNil(g, m.GetSnapshot(), "an event before the snapshot was complete")
		ids = append(ids, m.GetSnapshot().GetId())
	}
}

// awaitEnd waits for the end of the watch and returns its error.
func (g *instanceWatch) awaitEnd() error {
	g.Helper()
	for {
		if _, err := g.stream.Recv(); err != nil {
			return wire.ErrorOf(err)
		}
	}
}

func (g *instanceWatch) nextEvent() *apiv1.Event {
	g.Helper()
	m, err := g.stream.Recv()
	require.NoError(g, err)
	require.NotNil(g, m.GetEvent())
	g.seq = m.GetEvent().GetSeq()
	return m.GetEvent()
}

// awaitEventType returns the first event of a type.
func (g *instanceWatch) awaitEventType(typ nstance.EventType) *apiv1.Event {
	g.Helper()
	for {
		if e := g.nextEvent(); e.GetType() == string(typ) {
			return e
		}
	}
}

// awaitOperatorDrain returns the drain of an instance once an operator is its
// executor. A drain that is reassigned as soon as the watch is open may be in the
// snapshot already.
func (g *instanceWatch) awaitOperatorDrain(id nstance.InstanceID) *apiv1.Drain {
	g.Helper()
	for {
		m, err := g.stream.Recv()
		require.NoError(g, err)
		if i := m.GetSnapshot(); i.GetId() == string(id) && i.GetDrain().GetExecutor() == string(nstance.ExecutorOperator) {
			return i.GetDrain()
		}
		if e := m.GetEvent(); e.GetType() == string(nstance.EventDrainReassigned) && e.GetInstance() == string(id) {
			require.Equal(g, string(nstance.ExecutorOperator), e.GetDrain().GetExecutor())
			return e.GetDrain()
		}
	}
}

// awaitEventOf returns the first event of a type about an instance.
func (g *instanceWatch) awaitEventOf(typ nstance.EventType, id nstance.InstanceID) *apiv1.Event {
	g.Helper()
	for {
		if e := g.awaitEventType(typ); e.GetInstance() == string(id) {
			return e
		}
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	w.awaitMachine("blue")
	api := w.admin()
	size := int32(2)

	all := w.watch(api, &apiv1.WatchInstanceEventsRequest{})
	t.Run("a snapshot first, then what happens", func(t *testing.T) {
		require.Len(t, all.snapshot(), 2)
		_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: &size})
		require.NoError(t, err)
		created := all.awaitEventType(nstance.EventCreated)
		require.NotEqual(t, string(id), created.GetInstance())
		require.Equal(t, "web", created.GetGroup())
	})
	t.Run("numbers grow, and a resumed watch misses and repeats no event", func(t *testing.T) {
		since := all.seq
		k.awaitAck(k.sendNotice(reclaimNotice("e1", 2*time.Minute)))
		var want []string
		for {
			e := all.nextEvent()
			want = append(want, e.GetType())
			if e.GetType() == string(nstance.EventDrainStarted) {
				break
			}
		}
		require.EqualValues(t, since+uint64(len(want)), all.seq)
		resumed := w.watch(api, &apiv1.WatchInstanceEventsRequest{AfterSeq: since})
		for i, typ := range want {
			e := resumed.nextEvent()
			require.Equal(t, typ, e.GetType())
			require.Equal(t, since+1+uint64(i), e.GetSeq())
		}
	})
	t.Run("an unknown number gets a snapshot", func(t *testing.T) {
		require.NotEmpty(t, w.watch(api, &apiv1.WatchInstanceEventsRequest{AfterSeq: 7}).snapshot())
	})
	t.Run("filtered by instance and by group", func(t *testing.T) {
		one := w.watch(api, &apiv1.WatchInstanceEventsRequest{Instance: string(id)})
		require.Equal(t, []string{string(id)}, one.snapshot())
		require.Len(t, w.watch(api, &apiv1.WatchInstanceEventsRequest{Group: "db"}).snapshot(), 1)
	})
	t.Run("ends with the server", func(t *testing.T) {
		require.NoError(t, w.stopServer())
		for {
			if _, err := all.stream.Recv(); err != nil {
				require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
				require.ErrorContains(t, err, "does not lead")
				break
			}
		}
	})
}

func TestExecutorChoice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 6})
	api := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	drain := func(id nstance.InstanceID) *apiv1.Drain {
		t.Helper()
		resp, err := api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		return resp.GetDrain()
	}
	ids := w.awaitMachines(6)
	var talks []*agentSession
	for _, id := range ids {
		talks = append(talks, w.connectReady(id))
	}

	t.Run("an operator that only watches is not an executor", func(t *testing.T) {
		w.watch(api, &apiv1.WatchInstanceEventsRequest{}).snapshot()
		require.Equal(t, string(nstance.ExecutorAgent), drain(ids[0]).GetExecutor())
	})
	t.Run("an administrator that only watches is not an executor", func(t *testing.T) {
		w.watch(w.admin(), &apiv1.WatchInstanceEventsRequest{}).snapshot()
		require.Equal(t, string(nstance.ExecutorAgent), drain(ids[1]).GetExecutor())
	})
	t.Run("an operator of another tenant is not an executor", func(t *testing.T) {
		other := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
		w.watch(other, &apiv1.WatchInstanceEventsRequest{DrainExecutor: true}).snapshot()
		require.Equal(t, string(nstance.ExecutorAgent), drain(ids[2]).GetExecutor())
	})
	t.Run("an executor must see every drain", func(t *testing.T) {
		for _, req := range []*apiv1.WatchInstanceEventsRequest{
			{DrainExecutor: true, Group: "web"}, {DrainExecutor: true, Instance: string(ids[0])},
		} {
			err := w.watch(api, req).awaitEnd()
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "drain_executor")
		}
	})
	for i, as := range map[int]struct {
		name string
		api  apiv1.OperatorServiceClient
	}{3: {"operator", api}, 4: {"administrator", w.admin()}} {
		t.Run("an "+as.name+" that offers to drain is the executor and acknowledges", func(t *testing.T) {
			watch := w.watch(as.api, &apiv1.WatchInstanceEventsRequest{DrainExecutor: true})
			watch.snapshot()
			drain(ids[i])
			d := watch.awaitEventOf(nstance.EventDrainStarted, ids[i]).GetDrain()
			require.Equal(t, string(nstance.ExecutorOperator), d.GetExecutor())
			ack := &apiv1.AcknowledgeDrainedRequest{Id: string(ids[i]), Generation: d.GetGeneration() + 1, Outcome: "drained"}
			_, err := as.api.AcknowledgeDrained(t.Context(), ack)
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Conflict, "another generation")
			ack.Generation--
			_, err = as.api.AcknowledgeDrained(t.Context(), ack)
			require.NoError(t, err)
			w.awaitEvent(nstance.EventDeleted, ids[i])
			watch.stop()
			require.Eventually(t, func() bool { return !server.HasExecutor(w.server, nstance.DefaultTenant) }, eventually, time.Millisecond)
		})
	}
	t.Run("a late executor takes over drains that have none", func(t *testing.T) {
		k := talks[5]
		k.awaitAckKeepingOthers(k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{Version: wire.ReportVersion}}}))
		require.Equal(t, string(nstance.ExecutorNone), drain(ids[5]).GetExecutor(), "its agent has no hook")
		watch := w.watch(api, &apiv1.WatchInstanceEventsRequest{DrainExecutor: true})
		d := watch.awaitOperatorDrain(ids[5])
		w.awaitEvent(nstance.EventDrainReassigned, ids[5])
		require.Eventually(t, func() bool { // the event is published before the drain is announced
			_, err := api.AcknowledgeDrained(t.Context(), &apiv1.AcknowledgeDrainedRequest{Id: string(ids[5]), Generation: d.GetGeneration(), Outcome: "drained"})
			return err == nil
		}, eventually, time.Millisecond)
		w.awaitEvent(nstance.EventDeleted, ids[5])
	})
}
