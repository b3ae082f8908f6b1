package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// TestUnchangedRequestsAreReported: pausing a paused group, resuming a running one,
// repeating an update.
func TestUnchangedRequestsAreReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	api := w.admin()
	type answer interface{ GetUnchanged() bool }
	for _, c := range []struct {
		name      string
		give      func() (answer, error)
		unchanged bool
	}{
		{"resume what goes on", func() (answer, error) { return api.ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web"}) }, true},
		{"pause", func() (answer, error) { return api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web"}) }, false},
		{"pause again", func() (answer, error) { return api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web"}) }, true},
		{"resume", func() (answer, error) { return api.ResumeGroup(t.Context(), &apiv1.ResumeGroupRequest{Group: "web"}) }, false},
		{"thaw what is not frozen", func() (answer, error) { return api.Thaw(t.Context(), &apiv1.ThawRequest{Group: "web"}) }, true},
		{"freeze", func() (answer, error) { return api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "web"}) }, false},
		{"freeze again", func() (answer, error) { return api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "web"}) }, true},
		{"thaw the shard, which is not frozen", func() (answer, error) { return api.Thaw(t.Context(), &apiv1.ThawRequest{}) }, true},
		{"freeze the shard", func() (answer, error) { return api.Freeze(t.Context(), &apiv1.FreezeRequest{}) }, false},
		{"thaw the shard", func() (answer, error) { return api.Thaw(t.Context(), &apiv1.ThawRequest{}) }, false},
		{"thaw", func() (answer, error) { return api.Thaw(t.Context(), &apiv1.ThawRequest{Group: "web"}) }, false},
		{"release what is not avoided", func() (answer, error) {
			return api.ReleasePool(t.Context(), &apiv1.ReleasePoolRequest{Pool: &apiv1.Pool{Zone: "a"}})
		}, true},
		{"avoid", func() (answer, error) {
			return api.AvoidPool(t.Context(), &apiv1.AvoidPoolRequest{Pool: &apiv1.Pool{Zone: "a"}, Duration: durationpb.New(time.Hour)})
		}, false},
		{"avoid again", func() (answer, error) {
			return api.AvoidPool(t.Context(), &apiv1.AvoidPoolRequest{Pool: &apiv1.Pool{Zone: "a"}, Duration: durationpb.New(time.Hour)})
		}, true},
		{"avoid longer", func() (answer, error) {
			return api.AvoidPool(t.Context(), &apiv1.AvoidPoolRequest{Pool: &apiv1.Pool{Zone: "a"}, Duration: durationpb.New(2 * time.Hour)})
		}, false},
		{"release", func() (answer, error) {
			return api.ReleasePool(t.Context(), &apiv1.ReleasePoolRequest{Pool: &apiv1.Pool{Zone: "a"}})
		}, false},
		{"unacknowledge what is not acknowledged", func() (answer, error) {
			return api.UnacknowledgeAttention(t.Context(), &apiv1.UnacknowledgeAttentionRequest{Kind: "short"})
		}, true},
		{"acknowledge", func() (answer, error) { return api.AcknowledgeAttention(t.Context(), acknowledgeShort(time.Hour)) }, false},
		{"acknowledge again", func() (answer, error) { return api.AcknowledgeAttention(t.Context(), acknowledgeShort(time.Hour)) }, true},
		{"acknowledge for longer", func() (answer, error) { return api.AcknowledgeAttention(t.Context(), acknowledgeShort(2*time.Hour)) }, false},
		{"unacknowledge", func() (answer, error) {
			return api.UnacknowledgeAttention(t.Context(), &apiv1.UnacknowledgeAttentionRequest{Kind: "short"})
		}, false},
		{"scale", func() (answer, error) {
			return api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(2)})
		}, false},
		{"scale again", func() (answer, error) {
			return api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(2)})
		}, true},
	} {
		got, err := c.give()
		require.NoError(t, err, c.name)
		require.Equal(t, c.unchanged, got.GetUnchanged(), c.name)
	}
}
