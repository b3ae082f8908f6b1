package server_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
)

// A method is one RPC as the generated code describes it.
type method struct {
	name    string // as on the wire
	streams bool
	agents  bool // on the agents' port, else on the operators'
}

// coming are the RPCs of the contract that are not served yet.
var coming = map[string]bool{
	"WatchGroups": true, "CreateGroup": true, "DeleteGroup": true,
	"CreateInstance": true,
}

// methods returns every RPC that needs a certificate.
func methods() []method {
	var out []method
	for _, d := range []grpc.ServiceDesc{apiv1.AgentService_ServiceDesc, apiv1.OperatorService_ServiceDesc} {
		agents := d.ServiceName == apiv1.AgentService_ServiceDesc.ServiceName
		for _, m := range d.Methods {
			if coming[m.MethodName] {
				continue
			}
			out = append(out, method{"/" + d.ServiceName + "/" + m.MethodName, false, agents})
		}
		for _, s := range d.Streams {
			if coming[s.StreamName] {
				continue
			}
			out = append(out, method{"/" + d.ServiceName + "/" + s.StreamName, true, agents})
		}
	}
	return out
}

// call makes the RPC with an empty request and returns the code of the answer.
func (m method) call(t *testing.T, conn *grpc.ClientConn) codes.Code {
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	if !m.streams {
		return status.Code(conn.Invoke(ctx, m.name, &emptypb.Empty{}, &emptypb.Empty{}))
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, m.name)
	if err == nil {
		err = errors.Join(stream.SendMsg(&emptypb.Empty{}), stream.CloseSend())
	}
	if err == nil {
		err = stream.RecvMsg(&emptypb.Empty{})
	}
	return status.Code(err)
}

// TestAccess looks at every cell of the table: each RPC by each role.
func TestAccess(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	addrs := w.server.Addresses()
	agent := w.agent(w.machine(nstance.DefaultTenant))
	roles := map[nstance.Role]*holder{
		nstance.RoleAgent:    agent,
		nstance.RoleOperator: w.client(nstance.RoleOperator, "blue"),
		nstance.RoleAdmin:    w.client(nstance.RoleAdmin, "default"),
		"":                   w.holder(), // without a certificate
	}
	table := server.Access()
	for _, m := range methods() {
		t.Run(m.name, func(t *testing.T) {
			permitted, listed := table[m.name]
			require.True(t, listed, "a method that nobody may call should not exist")
			require.NotEmpty(t, permitted)
			addr := addrs.Operator
			if m.agents {
				addr = addrs.Agent
			}
			for role, h := range roles {
				conn := h.dial(addr)
				got := m.call(t, conn)
				switch {
				case slices.Contains(permitted, role):
					require.NotContains(t, []codes.Code{codes.PermissionDenied, codes.Unimplemented, codes.Unavailable}, got, "role %q", role)
				case role == "" || m.agents != (role == nstance.RoleAgent): // not even let in
					require.Equal(t, codes.Unavailable, got, "role %q", role)
				default:
					require.Equal(t, codes.PermissionDenied, got, "role %q", role)
				}
				conn.Close()
			}
		})
	}
	t.Run("nothing is listed that does not exist", func(t *testing.T) {
		require.Len(t, table, len(methods())+len(apiv1.PeerService_ServiceDesc.Streams), "servers have a port of their own")
	})
	t.Run("a method that is not listed is denied to all", func(t *testing.T) {
		for _, role := range []nstance.Role{nstance.RoleAgent, nstance.RoleOperator, nstance.RoleAdmin} {
			err := server.Admit(w.server, roles[role].cert.Certificate[0], "/nstance.v1.OperatorService/Shutdown")
			require.ErrorIs(t, err, nstance.Denied)
		}
		require.NoError(t, server.Admit(w.server, roles[nstance.RoleAdmin].cert.Certificate[0], apiv1.OperatorService_ListGroups_FullMethodName))
	})
	t.Run("requests have a limit", func(t *testing.T) {
		_, err := roles[nstance.RoleAdmin].api().UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{
			Group: "web", Vars: &apiv1.Vars{Values: map[string]string{"v": string(make([]byte, 300<<10))}},
		})
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
	})
}

func TestTenants(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	mine := w.machine("blue")
	blue := w.client(nstance.RoleOperator, "blue").api()
	size := int32(0)

	t.Run("another tenant's objects do not exist", func(t *testing.T) {
		for name, call := range map[string]func(ctx context.Context) (proto.Message, error){
			"UpdateGroup": func(ctx context.Context) (proto.Message, error) {
				return blue.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Tenant: "default", Group: "web", Size: &size})
			},
			"UpdateGroup, implied": func(ctx context.Context) (proto.Message, error) {
				return blue.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Group: "web", Size: &size})
			},
			"GetInstance": func(ctx context.Context) (proto.Message, error) {
				return blue.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(id)})
			},
			"DeleteInstance": func(ctx context.Context) (proto.Message, error) {
				return blue.DeleteInstance(ctx, &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
			},
			"DrainInstance": func(ctx context.Context) (proto.Message, error) {
				return blue.DrainInstance(ctx, &apiv1.DrainInstanceRequest{Id: string(id)})
			},
			"AcknowledgeDrained": func(ctx context.Context) (proto.Message, error) {
				return blue.AcknowledgeDrained(ctx, &apiv1.AcknowledgeDrainedRequest{Id: string(id), Generation: 1, Outcome: "drained"})
			},
			"Interrupt": func(ctx context.Context) (proto.Message, error) {
				return blue.Interrupt(ctx, &apiv1.InterruptRequest{Id: string(id)})
			},
			"Interrupt, pretended": func(ctx context.Context) (proto.Message, error) {
				return blue.Interrupt(ctx, &apiv1.InterruptRequest{Id: string(id), DryRun: true})
			},
		} {
			_, err := call(t.Context())
			require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound, name)
		}
		k.acked(k.report()) // and nothing has happened to it
		got, err := w.admin().GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		require.Equal(t, string(nstance.Ready), got.GetInstance().GetState())
	})
	t.Run("nor do they in lists", func(t *testing.T) {
		groups, err := blue.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		require.Len(t, groups.GetGroups(), 1)
		require.Equal(t, "blue", groups.GetGroups()[0].GetTenant())
		instances, err := blue.ListInstances(t.Context(), &apiv1.ListInstancesRequest{})
		require.NoError(t, err)
		require.Len(t, instances.GetInstances(), 1)
		require.Equal(t, string(mine), instances.GetInstances()[0].GetId())
		shard, err := blue.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		require.EqualValues(t, 1, shard.GetGroups())
		require.EqualValues(t, 1, shard.GetInstances())
	})
	t.Run("nor among the events", func(t *testing.T) {
		watch := w.watch(blue, &apiv1.WatchInstanceEventsRequest{})
		require.Equal(t, []string{string(mine)}, watch.snapshot())
		k.notice(reclaim("e1", 2*time.Minute))
		w.await(nstance.EventReplacementRequested, "")
		_, err := blue.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(mine)})
		require.NoError(t, err)
		require.Equal(t, "blue", watch.event().GetTenant())
	})
	t.Run("its own do", func(t *testing.T) {
		_, err := blue.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(mine)})
		require.NoError(t, err)
		_, err = blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "db", Size: &size})
		require.NoError(t, err)
	})
	t.Run("an administrator sees all of them", func(t *testing.T) {
		groups, err := w.admin().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		require.Len(t, groups.GetGroups(), 2)
	})
}
