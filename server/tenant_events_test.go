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
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// responseText makes a call and returns the response as text: a whole list, or the
// messages of a watch until one contains word.
func (m rpc) responseText(t *testing.T, conn *grpc.ClientConn, req proto.Message, word string) string {
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

// TestTenantsReceiveNoEventsOfOthers makes every call that names no object, while
// another tenant has a group, machines, a drain, a problem, a hold and a refused
// configuration.
func TestTenantsReceiveNoEventsOfOthers(t *testing.T) {
	t.Parallel()
	const theirs, group = "crimson", "vermilion"
	text := replaceOnce(t, defaultConfig(0), `"blue": {`, `"crimson": {"vermilion": {"template": "vm", "size": 2}, "scarlet": {"template": "vm", "size": 1}}, "blue": {`)
	store := storage.NewMemory()
	_, err := store.PutIfAbsent(t.Context(), layout.GroupsKey(zone), []byte(`{"format": "1.0", "groups": {"crimson/scarlet": {"size": -1}}}`))
	require.NoError(t, err)
	w := newWorld(t, setup{config: text, store: store})
	api := w.admin()
	mine := w.awaitMachine("blue")
	w.connectReady(mine)
	lost := w.awaitMachine(theirs)
	k := w.connectReady(lost)
	k.awaitAck(k.sendNotice(reclaimNotice("e-crimson", time.Minute)))
	w.awaitEvent(nstance.EventReplacementRequested, "")
	_, err = api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Tenant: theirs, Group: group, Reason: "of vermilion"})
	require.NoError(t, err)
	w.awaitHold(api, group, plan.HoldPaused)
	w.awaitJournalled(api, nstance.EventDrainStarted, lost)
	w.conf.set(replaceOnce(t, text, `"vermilion": {`, `"vermilion ": {`), nil)
	require.ErrorIs(t, w.refreshConfig(api), nstance.Invalid)

	all, own := w.registerClient(nstance.RoleAdmin, "default").dial(w.server.Addresses().Operator), w.registerClient(nstance.RoleOperator, "blue").dial(w.server.Addresses().Operator)
	may, asked := documentedAccess(t), 0
	for _, m := range certificateRPCs() {
		about := rpcRows[m.rowName()]
		if strings.Contains(m.rowName(), "ListAvoidedPools") {
			continue // what is avoided concerns every tenant, and names none
		}
		if about.about != aboutNothing || !slices.Contains(may[m.rowName()], nstance.RoleOperator) || strings.Contains(m.rowName(), "RenewCertificate") || strings.Contains(m.rowName(), "CreateGroup") {
			continue
		}
		asked++
		t.Run(m.rowName(), func(t *testing.T) {
			seen := theirs
			if m.rowName() == "OperatorService/GetInterruptionRates" { // which names no tenant
				seen = `"reclaim"`
			}
			require.Contains(t, m.responseText(t, all, about.request(callTarget{}), seen), seen, "administrators see it")
			told := m.responseText(t, own, about.request(callTarget{}), "synced")
			for _, word := range []string{seen, theirs, group, "scarlet", string(lost)} {
				require.NotContains(t, told, word)
			}
		})
	}
	require.Equal(t, 10, asked)
	t.Run("the number of their agents is not shown", func(t *testing.T) {
		count := func(api apiv1.OperatorServiceClient) int32 {
			resp, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
			require.NoError(t, err)
			return resp.GetAgentsConnected()
		}
		require.EqualValues(t, 2, count(api))
		require.EqualValues(t, 1, count(w.registerClient(nstance.RoleOperator, "blue").operatorAPI()))
	})
}
