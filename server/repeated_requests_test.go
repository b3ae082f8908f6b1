package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
)

// TestRepeatedRequests: a client that lost an answer repeats its request. The repeat
// succeeds, and the request is carried out once.
func TestRepeatedRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 4})
	operator := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	w.watch(operator, &apiv1.WatchInstanceEventsRequest{DrainExecutor: true}).snapshot()
	api := w.admin()
	var ids []string
	require.Eventually(t, func() bool {
		ids = nil
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == nstance.DefaultTenant {
				ids = append(ids, string(m.ID))
			}
		}
		return len(ids) == 4
	}, eventually, time.Millisecond)
	for _, id := range ids {
		w.awaitEvent(nstance.EventCreated, nstance.InstanceID(id))
		w.connectReady(nstance.InstanceID(id))
	}
	var generation uint64
	var once []nstance.EventType
	for _, order := range []struct {
		name string
		give func(ctx context.Context) (proto.Message, error)
		did  nstance.EventType // empty: no event to count
	}{
		{"UpdateGroup", func(ctx context.Context) (proto.Message, error) {
			return api.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Group: "web", Vars: &apiv1.Vars{Values: map[string]string{"colour": "green"}}})
		}, eventtype.GroupChanged},
		{"PauseGroup", func(ctx context.Context) (proto.Message, error) {
			return api.PauseGroup(ctx, &apiv1.PauseGroupRequest{Group: "web", Reason: "odd"})
		}, eventtype.RolloutPaused},
		{"ResumeGroup", func(ctx context.Context) (proto.Message, error) {
			return api.ResumeGroup(ctx, &apiv1.ResumeGroupRequest{Group: "web"})
		}, eventtype.RolloutResumed},
		{"Freeze", func(ctx context.Context) (proto.Message, error) {
			return api.Freeze(ctx, &apiv1.FreezeRequest{Group: "web", Reason: "audit"})
		}, eventtype.Frozen},
		{"Thaw", func(ctx context.Context) (proto.Message, error) {
			return api.Thaw(ctx, &apiv1.ThawRequest{Group: "web"})
		}, eventtype.Thawed},
		{"AvoidPool", func(ctx context.Context) (proto.Message, error) {
			return api.AvoidPool(ctx, &apiv1.AvoidPoolRequest{Pool: &apiv1.Pool{Zone: "a"}, Duration: durationpb.New(time.Hour), Reason: "audit"})
		}, ""},
		{"ReleasePool", func(ctx context.Context) (proto.Message, error) {
			return api.ReleasePool(ctx, &apiv1.ReleasePoolRequest{Pool: &apiv1.Pool{Zone: "a"}})
		}, ""},
		{"AcknowledgeAttention", func(ctx context.Context) (proto.Message, error) {
			return api.AcknowledgeAttention(ctx, acknowledgeShort(time.Hour))
		}, ""},
		{"UnacknowledgeAttention", func(ctx context.Context) (proto.Message, error) {
			return api.UnacknowledgeAttention(ctx, &apiv1.UnacknowledgeAttentionRequest{Kind: "short", Subject: "group blue/db"})
		}, ""},
		{"PreserveInstance", func(ctx context.Context) (proto.Message, error) {
			return api.PreserveInstance(ctx, &apiv1.PreserveInstanceRequest{Id: ids[0], Duration: durationpb.New(time.Hour)})
		}, ""},
		{"DrainInstance", func(ctx context.Context) (proto.Message, error) {
			resp, err := api.DrainInstance(ctx, &apiv1.DrainInstanceRequest{Id: ids[1]})
			if generation != 0 {
				require.Equal(t, generation, resp.GetDrain().GetGeneration(), "it is the same drain")
			}
			generation = resp.GetDrain().GetGeneration()
			return resp, err
		}, nstance.EventDrainStarted},
		{"DeleteInstance", func(ctx context.Context) (proto.Message, error) {
			return api.DeleteInstance(ctx, &apiv1.DeleteInstanceRequest{Id: ids[1]})
		}, ""},
		{"AcknowledgeDrained", func(ctx context.Context) (proto.Message, error) {
			return operator.AcknowledgeDrained(ctx, &apiv1.AcknowledgeDrainedRequest{
				Id: ids[1], Generation: generation, Outcome: string(nstance.OutcomeFailed),
			})
		}, nstance.EventDrainAcknowledged},
	} {
		t.Run(order.name, func(t *testing.T) {
			for range 2 {
				_, err := order.give(t.Context())
				require.NoError(t, err)
			}
		})
		if order.did != "" {
			once = append(once, order.did)
		}
	}
	for _, typ := range once {
		w.awaitEvent(typ, "")
	}
	require.NoError(t, w.stopServer()) // no further events
	for _, typ := range once {
		require.Equal(t, 1, w.countEvents(typ), typ)
	}
}
