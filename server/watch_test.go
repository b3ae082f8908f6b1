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
)

// A watching is one WatchInstanceEvents call.
type watching struct {
	*testing.T
	stream grpc.ServerStreamingClient[apiv1.WatchInstanceEventsResponse]
	seq    uint64 // of the last message
}

func (w *world) watch(api apiv1.OperatorServiceClient, req *apiv1.WatchInstanceEventsRequest) *watching {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), eventually)
	w.Cleanup(cancel)
	stream, err := api.WatchInstanceEvents(ctx, req)
	require.NoError(w, err)
	return &watching{T: w.T, stream: stream}
}

// snapshot reads up to the end of the snapshot and returns the instances in it.
func (g *watching) snapshot() (ids []string) {
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

// ends waits for the end of the watch and returns why.
func (g *watching) ends() error {
	g.Helper()
	for {
		if _, err := g.stream.Recv(); err != nil {
			return wire.ErrorOf(err)
		}
	}
}

func (g *watching) event() *apiv1.Event {
	g.Helper()
	m, err := g.stream.Recv()
	require.NoError(g, err)
	require.NotNil(g, m.GetEvent())
	g.seq = m.GetEvent().GetSeq()
	return m.GetEvent()
}

// until returns the first event of a type.
func (g *watching) until(typ nstance.EventType) *apiv1.Event {
	g.Helper()
	for {
		if e := g.event(); e.GetType() == string(typ) {
			return e
		}
	}
}

func TestWatch(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	w.machine("blue")
	api := w.admin()
	size := int32(2)

	all := w.watch(api, &apiv1.WatchInstanceEventsRequest{})
	t.Run("a snapshot first, then what happens", func(t *testing.T) {
		require.Len(t, all.snapshot(), 2)
		_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: &size})
		require.NoError(t, err)
		created := all.until(nstance.EventCreated)
		require.NotEqual(t, string(id), created.GetInstance())
		require.Equal(t, "web", created.GetGroup())
	})
	t.Run("numbers grow, and resuming misses nothing and repeats nothing", func(t *testing.T) {
		since := all.seq
		k.acked(k.notice(reclaim("e1", 2*time.Minute)))
		var want []string
		for {
			e := all.event()
			want = append(want, e.GetType())
			if e.GetType() == string(nstance.EventDrainStarted) {
				break
			}
		}
		require.EqualValues(t, since+uint64(len(want)), all.seq)
		resumed := w.watch(api, &apiv1.WatchInstanceEventsRequest{AfterSeq: since})
		for i, typ := range want {
			e := resumed.event()
			require.Equal(t, typ, e.GetType())
			require.Equal(t, since+1+uint64(i), e.GetSeq())
		}
	})
	t.Run("a number of another time gets a snapshot", func(t *testing.T) {
		require.NotEmpty(t, w.watch(api, &apiv1.WatchInstanceEventsRequest{AfterSeq: 7}).snapshot())
	})
	t.Run("filtered by instance and by group", func(t *testing.T) {
		one := w.watch(api, &apiv1.WatchInstanceEventsRequest{Instance: string(id)})
		require.Equal(t, []string{string(id)}, one.snapshot())
		require.Len(t, w.watch(api, &apiv1.WatchInstanceEventsRequest{Group: "db"}).snapshot(), 1)
	})
	t.Run("ends with the server", func(t *testing.T) {
		require.NoError(t, w.stop())
		for {
			if _, err := all.stream.Recv(); err != nil {
				require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
				require.ErrorContains(t, err, "does not lead")
				break
			}
		}
	})
}

func TestWhoDrains(t *testing.T) {
	w := newWorld(t, setup{size: 3})
	api := w.client(nstance.RoleOperator, nstance.DefaultTenant).api()
	drain := func(id string) *apiv1.Drain {
		t.Helper()
		resp, err := api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: id})
		require.NoError(t, err)
		return resp.GetDrain()
	}
	var ids []nstance.InstanceID
	require.Eventually(t, func() bool {
		ids = nil
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == nstance.DefaultTenant {
				ids = append(ids, m.ID)
			}
		}
		return len(ids) == 3
	}, eventually, time.Millisecond)
	for _, id := range ids {
		w.await(nstance.EventCreated, id)
		w.ready(id)
	}

	t.Run("an operator that watches one group sees too little to be trusted with drains", func(t *testing.T) {
		group := w.watch(api, &apiv1.WatchInstanceEventsRequest{Group: "web"})
		group.snapshot()
		require.Equal(t, string(nstance.ExecutorAgent), drain(string(ids[0])).GetExecutor())
	})
	t.Run("an administrator is no drainer", func(t *testing.T) {
		w.watch(w.admin(), &apiv1.WatchInstanceEventsRequest{}).snapshot()
		require.Equal(t, string(nstance.ExecutorAgent), drain(string(ids[1])).GetExecutor())
	})
	t.Run("an operator that watches its tenant drains, and acknowledges", func(t *testing.T) {
		w.watch(api, &apiv1.WatchInstanceEventsRequest{}).snapshot()
		d := drain(string(ids[2]))
		require.Equal(t, string(nstance.ExecutorOperator), d.GetExecutor())
		ack := &apiv1.AcknowledgeDrainedRequest{Id: string(ids[2]), Generation: d.GetGeneration() + 1, Outcome: "drained"}
		_, err := api.AcknowledgeDrained(t.Context(), ack)
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Conflict, "another generation")
		ack.Generation--
		_, err = api.AcknowledgeDrained(t.Context(), ack)
		require.NoError(t, err)
		w.await(nstance.EventDeleted, ids[2])
	})
}
