package server_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// answers makes a call and returns what it says, as text: all of a list, or of a
// watch what comes until it contains a word.
func (m method) answers(t *testing.T, conn *grpc.ClientConn, req proto.Message, word string) string {
	t.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(m.name, "/"), "/", ".")))
	require.NoError(t, err)
	out := d.(protoreflect.MethodDescriptor).Output()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	if !m.streams {
		resp := dynamicpb.NewMessage(out)
		if err := conn.Invoke(ctx, m.name, req, resp); err != nil {
			return wire.ErrorOf(err).Error()
		}
		return protojson.Format(resp)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, m.name)
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(req))
	require.NoError(t, stream.CloseSend())
	text := ""
	for !strings.Contains(text, word) {
		resp := dynamicpb.NewMessage(out)
		require.NoError(t, stream.RecvMsg(resp), "%s", text)
		text += protojson.Format(resp)
	}
	return text
}

// TestTenantsReceiveNoEventsOfOthers asks everything that an operator may ask
// without naming an object, while another tenant has a group, machines, a drain,
// a problem, a hold and a configuration that is refused for it.
func TestTenantsReceiveNoEventsOfOthers(t *testing.T) {
	const theirs, group = "crimson", "vermilion"
	text := replace(t, ordinary(0), `"blue": {`, `"crimson": {"vermilion": {"template": "vm", "size": 2}, "scarlet": {"template": "vm", "size": 1}}, "blue": {`)
	store := storage.NewMemory()
	_, err := store.PutIfAbsent(t.Context(), storage.GroupsKey(zone), []byte(`{"format": "1.0", "groups": {"crimson/scarlet": {"size": -1}}}`))
	require.NoError(t, err)
	w := newWorld(t, setup{text: text, store: store})
	api := w.admin()
	mine := w.machine("blue")
	w.ready(mine)
	lost := w.machine(theirs)
	k := w.ready(lost)
	k.acked(k.notice(reclaim("e-crimson", time.Minute)))
	w.await(nstance.EventReplacementRequested, "")
	_, err = api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Tenant: theirs, Group: group, Reason: "of vermilion"})
	require.NoError(t, err)
	w.held(api, group, plan.HoldPaused)
	w.journalled(api, nstance.EventDrainStarted, lost)
	w.conf.set(replace(t, text, `"vermilion": {`, `"vermilion ": {`), nil)
	require.ErrorIs(t, w.refresh(api), nstance.Invalid)

	all, own := w.client(nstance.RoleAdmin, "default").dial(w.server.Addresses().Operator), w.client(nstance.RoleOperator, "blue").dial(w.server.Addresses().Operator)
	may, asked := published(t), 0
	for _, m := range methods() {
		about := rows[m.short()]
		if about.about != none || !slices.Contains(may[m.short()], nstance.RoleOperator) || strings.Contains(m.short(), "RenewCertificate") || strings.Contains(m.short(), "CreateGroup") {
			continue
		}
		asked++
		t.Run(m.short(), func(t *testing.T) {
			require.Contains(t, m.answers(t, all, about.request(aim{}), theirs), theirs, "an administrator is told")
			told := m.answers(t, own, about.request(aim{}), "synced")
			for _, word := range []string{theirs, group, "scarlet", string(lost)} {
				require.NotContains(t, told, word)
			}
		})
	}
	require.Equal(t, 9, asked)
	t.Run("not even how many agents they have", func(t *testing.T) {
		count := func(api apiv1.OperatorServiceClient) int32 {
			resp, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
			require.NoError(t, err)
			return resp.GetAgentsConnected()
		}
		require.EqualValues(t, 2, count(api))
		require.EqualValues(t, 1, count(w.client(nstance.RoleOperator, "blue").api()))
	})
}
