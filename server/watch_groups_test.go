package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// A groupWatch is one WatchGroups call.
type groupWatch struct {
	*testing.T
	stream grpc.ServerStreamingClient[apiv1.WatchGroupsResponse]
	seq    uint64 // number of the last message
}

func (w *world) watchGroups(api apiv1.OperatorServiceClient, req *apiv1.WatchGroupsRequest) *groupWatch {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), eventually)
	w.Cleanup(cancel)
	stream, err := api.WatchGroups(ctx, req)
	require.NoError(w, err)
	return &groupWatch{T: w.T, stream: stream}
}

// snapshot returns the groups up to the end of the snapshot.
func (g *groupWatch) snapshot() (names []string) {
	g.Helper()
	for {
		m, err := g.stream.Recv()
		require.NoError(g, err)
		if m.GetSynced() != nil {
			g.seq = m.GetSynced().GetSeq()
			return names
		}
		require.NotNil(g, m.GetSnapshot(), "a change before the snapshot was complete")
		names = append(names, m.GetSnapshot().GetTenant()+"/"+m.GetSnapshot().GetGroup())
	}
}

// awaitChange waits for a change that wanted accepts and returns its group, nil
// after a removal.
func (g *groupWatch) awaitChange(wanted func(g *apiv1.Group) bool) *apiv1.Group {
	g.Helper()
	for {
		m, err := g.stream.Recv()
		require.NoError(g, err)
		if m.GetRemoved() != nil {
			g.seq = m.GetRemoved().GetSeq()
			return nil
		}
		require.NotNil(g, m.GetChanged())
		g.seq = m.GetChanged().GetSeq()
		if wanted(m.GetChanged().GetGroup()) {
			return m.GetChanged().GetGroup()
		}
	}
}

func TestWatchGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 0})
	api, blue := w.admin(), w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	all, one := w.watchGroups(api, &apiv1.WatchGroupsRequest{}), w.watchGroups(api, &apiv1.WatchGroupsRequest{Group: "batch"})
	theirs := w.watchGroups(blue, &apiv1.WatchGroupsRequest{})
	require.ElementsMatch(t, []string{"default/web", "blue/db"}, all.snapshot())
	require.Empty(t, one.snapshot())
	require.Equal(t, []string{"blue/db"}, theirs.snapshot(), "another tenant's groups do not exist")
	never := func(*apiv1.Group) bool { return false }

	_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1)})
	require.NoError(t, err)
	g := one.awaitChange(func(g *apiv1.Group) bool { return g.GetBooting() == 1 })
	require.Equal(t, "batch", g.GetGroup())
	after := one.seq
	w.connectReady(w.awaitMachineOf("batch"))
	one.awaitChange(func(g *apiv1.Group) bool { return g.GetReady() == 1 })
	_, err = api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: "batch"})
	require.NoError(t, err)
	one.awaitChange(func(g *apiv1.Group) bool { return g.GetRemoving() })
	_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(w.awaitMachineOf("batch")), NoDrain: true})
	require.NoError(t, err)
	require.Nil(t, one.awaitChange(never), "and then it is removed")

	resumed := w.watchGroups(api, &apiv1.WatchGroupsRequest{AfterSeq: after, Group: "batch"})
	resumed.awaitChange(func(g *apiv1.Group) bool { return g.GetReady() == 1 })
	require.Nil(t, resumed.awaitChange(never), "a resumed watch misses nothing")
	require.Equal(t, one.seq, resumed.seq)

	_, err = blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "db", Size: proto.Int32(2)})
	require.NoError(t, err)
	for first := true; ; first = false {
		m, err := theirs.stream.Recv()
		require.NoError(t, err)
		require.Equal(t, "blue", m.GetChanged().GetGroup().GetTenant(), "nor does what happens to them; first: %v", first)
		if m.GetChanged().GetGroup().GetSize() == 2 {
			break
		}
	}
	require.NotEmpty(t, w.watchGroups(api, &apiv1.WatchGroupsRequest{AfterSeq: 7}).snapshot(), "a number of another time gets a snapshot")

	require.NoError(t, w.stopServer())
	deadline := time.Now().Add(eventually)
	for time.Now().Before(deadline) {
		if _, err := all.stream.Recv(); err != nil {
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
			return
		}
	}
	require.Fail(t, "the watch did not end with the server")
}
