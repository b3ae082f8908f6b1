package server_test

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
)

// An rpc is one RPC of the generated code.
type rpc struct {
	name        string // with service, as on the wire
	streams     bool
	onAgentPort bool // otherwise on the operators' port
}

// certificateRPCs returns every RPC that needs a certificate.
func certificateRPCs() []rpc {
	var out []rpc
	for _, d := range []grpc.ServiceDesc{apiv1.AgentService_ServiceDesc, apiv1.OperatorService_ServiceDesc} {
		agents := d.ServiceName == apiv1.AgentService_ServiceDesc.ServiceName
		for _, m := range d.Methods {
			out = append(out, rpc{"/" + d.ServiceName + "/" + m.MethodName, false, agents})
		}
		for _, s := range d.Streams {
			out = append(out, rpc{"/" + d.ServiceName + "/" + s.StreamName, true, agents})
		}
	}
	return out
}

// Outcomes of a call's authorization.
const (
	allowed       = "allowed"   // the call may still fail for another reason
	rejectedByTLS = "TLS error" // TLS does not accept the certificate on this port
	denied        = "denied"    // the role may not call this RPC
	notFound      = "not found" // the object does not exist or belongs to another tenant
)

func outcome(err error) string {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		return denied
	case codes.NotFound:
		return notFound
	case codes.Unimplemented:
		return "not served"
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return rejectedByTLS
	}
	return allowed
}

// A callTarget is the object of a call. Each RPC uses the fields that it needs.
type callTarget struct {
	tenant   string
	group    string
	instance nstance.InstanceID
}

// An rpcRow has an RPC's kind of object and makes its request. Calls change
// nothing: they are dry runs, or fail a check that comes after authorization.
type rpcRow struct {
	about        string
	keepsDeleted bool // it also shows deleted instances
	request      func(a callTarget) proto.Message
}

// The kinds of objects. An RPC about nothing is about the shard, or filters its
// results by tenant.
const (
	aboutNothing  = "none"
	aboutCaller   = "caller"
	aboutGroup    = "group"
	aboutInstance = "instance"
)

// rpcRows has one row for each RPC that needs a client certificate.
var rpcRows = map[string]rpcRow{
	"AgentService/Connect":          {about: aboutCaller, request: func(callTarget) proto.Message { return &apiv1.ConnectRequest{} }},
	"AgentService/RenewCertificate": {about: aboutCaller, request: func(callTarget) proto.Message { return &apiv1.RenewCertificateRequest{} }},

	"OperatorService/ListGroups":           {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ListGroupsRequest{} }},
	"OperatorService/WatchGroups":          {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.WatchGroupsRequest{} }},
	"OperatorService/ListInstances":        {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ListInstancesRequest{} }},
	"OperatorService/ListEvents":           {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ListEventsRequest{} }},
	"OperatorService/ListActions":          {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ListActionsRequest{} }},
	"OperatorService/ListInterruptions":    {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ListInterruptionsRequest{} }},
	"OperatorService/GetInterruptionRates": {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.GetInterruptionRatesRequest{} }},
	"OperatorService/WatchInstanceEvents":  {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.WatchInstanceEventsRequest{} }},
	"OperatorService/Plan":                 {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.PlanRequest{} }},
	"OperatorService/GetConfigStatus":      {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.GetConfigStatusRequest{} }},
	"OperatorService/GetConfig":            {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.GetConfigRequest{} }},
	"OperatorService/RefreshConfig":        {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.RefreshConfigRequest{} }},
	"OperatorService/ConfirmConfig": {about: aboutNothing, request: func(callTarget) proto.Message {
		return &apiv1.ConfirmConfigRequest{Digest: "sha256:0", DryRun: true}
	}},
	"OperatorService/GetShardStatus": {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.GetShardStatusRequest{} }},
	"OperatorService/Freeze":         {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.FreezeRequest{DryRun: true} }},
	"OperatorService/Thaw":           {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ThawRequest{DryRun: true} }},
	"OperatorService/AvoidPool": {about: aboutNothing, request: func(callTarget) proto.Message {
		return &apiv1.AvoidPoolRequest{Pool: &apiv1.Pool{Zone: "a"}, Duration: durationpb.New(time.Hour), DryRun: true}
	}},
	"OperatorService/ReleasePool": {about: aboutNothing, request: func(callTarget) proto.Message {
		return &apiv1.ReleasePoolRequest{Pool: &apiv1.Pool{Zone: "a"}, DryRun: true}
	}},
	"OperatorService/AcknowledgeAttention": {about: aboutNothing, request: func(callTarget) proto.Message {
		return &apiv1.AcknowledgeAttentionRequest{Kind: "clock", DryRun: true} // without a duration
	}},
	"OperatorService/UnacknowledgeAttention": {about: aboutNothing, request: func(callTarget) proto.Message {
		return &apiv1.UnacknowledgeAttentionRequest{Kind: "clock", Subject: "shard", DryRun: true}
	}},
	"OperatorService/ListAvoidedPools": {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ListAvoidedPoolsRequest{} }},
	"OperatorService/GetRecord":        {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.GetRecordRequest{Key: "lease/s1.json"} }},
	"OperatorService/RepairRecord":     {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.RepairRecordRequest{DryRun: true} }},
	"OperatorService/ListKeys":         {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ListKeysRequest{} }},
	"OperatorService/RotateKey": {about: aboutNothing, request: func(callTarget) proto.Message {
		return &apiv1.RotateKeyRequest{Name: "nonce", Step: "begin", DryRun: true}
	}},
	"OperatorService/ListOperators":    {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ListOperatorsRequest{} }},
	"OperatorService/RevokeOperator":   {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.RevokeOperatorRequest{DryRun: true} }},
	"OperatorService/ListOrphans":      {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.ListOrphansRequest{} }},
	"OperatorService/AdoptOrphan":      {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.AdoptOrphanRequest{DryRun: true} }},
	"OperatorService/DeleteOrphan":     {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.DeleteOrphanRequest{DryRun: true} }},
	"OperatorService/RenewCertificate": {about: aboutNothing, request: func(callTarget) proto.Message { return &apiv1.OperatorServiceRenewCertificateRequest{} }},
	"OperatorService/CreateGroup": {about: aboutNothing, request: func(callTarget) proto.Message {
		return &apiv1.CreateGroupRequest{Group: "new", Template: "vm", DryRun: true}
	}},

	"OperatorService/UpdateGroup": {about: aboutGroup, request: func(a callTarget) proto.Message {
		size := int32(1)
		return &apiv1.UpdateGroupRequest{Tenant: a.tenant, Group: a.group, Size: &size, DryRun: true}
	}},
	"OperatorService/DeleteGroup": {about: aboutGroup, request: func(a callTarget) proto.Message {
		return &apiv1.DeleteGroupRequest{Tenant: a.tenant, Group: a.group, DryRun: true}
	}},
	"OperatorService/PauseGroup": {about: aboutGroup, request: func(a callTarget) proto.Message {
		return &apiv1.PauseGroupRequest{Tenant: a.tenant, Group: a.group, DryRun: true}
	}},
	"OperatorService/ResumeGroup": {about: aboutGroup, request: func(a callTarget) proto.Message {
		return &apiv1.ResumeGroupRequest{Tenant: a.tenant, Group: a.group, DryRun: true}
	}},
	"OperatorService/RollbackGroup": {about: aboutGroup, request: func(a callTarget) proto.Message {
		return &apiv1.RollbackGroupRequest{Tenant: a.tenant, Group: a.group, DryRun: true}
	}},
	"OperatorService/ClaimStandby": {about: aboutGroup, request: func(a callTarget) proto.Message {
		return &apiv1.ClaimStandbyRequest{Tenant: a.tenant, Group: a.group, Node: "n1"}
	}},
	"OperatorService/ReleaseStandby": {about: aboutGroup, request: func(a callTarget) proto.Message {
		return &apiv1.ReleaseStandbyRequest{Tenant: a.tenant, Group: a.group, Node: "n1"}
	}},
	"OperatorService/CreateInstance": {about: aboutGroup, request: func(a callTarget) proto.Message {
		return &apiv1.CreateInstanceRequest{Tenant: a.tenant, Group: a.group, Id: string(newInstanceID()), DryRun: true}
	}},

	"OperatorService/GetInstance": {about: aboutInstance, keepsDeleted: true, request: func(a callTarget) proto.Message {
		return &apiv1.GetInstanceRequest{Id: string(a.instance)}
	}},
	"OperatorService/GetConsoleOutput": {about: aboutInstance, request: func(a callTarget) proto.Message {
		return &apiv1.GetConsoleOutputRequest{Id: string(a.instance)}
	}},
	"OperatorService/DeleteInstance": {about: aboutInstance, request: func(a callTarget) proto.Message {
		return &apiv1.DeleteInstanceRequest{Id: string(a.instance), DryRun: true}
	}},
	"OperatorService/DrainInstance": {about: aboutInstance, request: func(a callTarget) proto.Message {
		return &apiv1.DrainInstanceRequest{Id: string(a.instance), DryRun: true}
	}},
	"OperatorService/PreserveInstance": {about: aboutInstance, request: func(a callTarget) proto.Message {
		return &apiv1.PreserveInstanceRequest{Id: string(a.instance), DryRun: true}
	}},
	"OperatorService/AcknowledgeDrained": {about: aboutInstance, request: func(a callTarget) proto.Message {
		return &apiv1.AcknowledgeDrainedRequest{Id: string(a.instance), Generation: 77, Outcome: "drained"}
	}},
	"OperatorService/Interrupt": {about: aboutInstance, request: func(a callTarget) proto.Message {
		return &apiv1.InterruptRequest{Id: string(a.instance), DryRun: true}
	}},
}

// rowName is the RPC's key in rpcRows.
func (m rpc) rowName() string { return strings.TrimPrefix(m.name, "/nstance.v1.") }

// call makes the RPC.
func (m rpc) call(t *testing.T, conn *grpc.ClientConn, req proto.Message) error {
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	if !m.streams {
		return conn.Invoke(ctx, m.name, req, &emptypb.Empty{})
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, m.name)
	if err == nil {
		err = errors.Join(stream.SendMsg(req), stream.CloseSend())
	}
	if err == nil || errors.Is(err, io.EOF) { // refused before the request was sent: the stream has the error
		err = stream.RecvMsg(&emptypb.Empty{})
	}
	return err
}

// A callerRole is the role and tenant of a caller's certificate.
type callerRole struct {
	nstance.Role
	tenant         nstance.TenantID
	invalidOutcome string // outcome of all calls with a certificate that is not valid any more
}

// documentedAccess is the table of docs/security.md: the roles that may call each
// RPC. It is written by hand beside the server's table, so that a change of
// access must be made in both.
func documentedAccess(t *testing.T) map[string][]nstance.Role {
	text, err := os.ReadFile("../docs/security.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| RPC | agent | operator | admin | server |\n|---|---|---|---|---|\n")
	require.True(t, found, "docs/security.md has no table of calls")
	table, _, _ = strings.Cut(table, "\n\n")
	columns := []nstance.Role{nstance.RoleAgent, nstance.RoleOperator, nstance.RoleAdmin, nstance.RoleServer}
	out := map[string][]nstance.Role{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		require.Len(t, cells, len(columns)+3, line)
		name := strings.Trim(cells[1], " `")
		require.NotContains(t, out, name)
		for i, role := range columns {
			if cell := strings.TrimSpace(cells[i+2]); cell != "" {
				require.Equal(t, "yes", cell, line)
				out[name] = append(out[name], role)
			}
		}
	}
	return out
}

// expectedOutcome derives a cell from the roles that may call the RPC and its row.
func (r callerRole) expectedOutcome(m rpc, may []nstance.Role, about rpcRow, state string, object nstance.TenantID) string {
	switch {
	case r.Role == "" || r.Role == nstance.RoleServer || m.onAgentPort != (r.Role == nstance.RoleAgent):
		return rejectedByTLS
	case !slices.Contains(may, r.Role):
		return denied
	case r.invalidOutcome != "":
		return r.invalidOutcome
	case about.about == aboutNothing || about.about == aboutCaller:
		return allowed
	case state == "unknown" || r.Role != nstance.RoleAdmin && r.tenant != object:
		return notFound
	case state == "deleted" && !about.keepsDeleted:
		return notFound
	}
	return allowed
}

// TestAccess checks every cell: each RPC, by each role, about a live, a deleted and
// an unknown object of each tenant.
func TestAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1, config: strings.Replace(defaultConfig(1), `"templates": {`, `"tenants": {"blue": {"templates": ["vm"]}, "green": {"templates": ["vm"]}}, "templates": {`, 1)})
	addrs := w.server.Addresses()
	live, deleted, agents := map[string]nstance.InstanceID{}, map[string]nstance.InstanceID{}, map[string]*client{}
	gone := w.registerAgent(w.awaitMachine("default")) // its instance will be deleted
	for _, tenant := range []string{"default", "blue"} {
		deleted[tenant] = w.awaitMachine(nstance.TenantID(tenant))
		_, err := w.admin().DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(deleted[tenant]), NoDrain: true})
		require.NoError(t, err)
		w.awaitEvent(nstance.EventDeleted, deleted[tenant])
		live[tenant] = w.awaitNextMachine(nstance.TenantID(tenant), deleted[tenant])
		agents[tenant] = w.connectReady(live[tenant]).client
		_, err = w.admin().DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(live[tenant])}) // for AcknowledgeDrained
		require.NoError(t, err)
	}
	own := w.newClient()
	cert, err := w.keys.Identity.Server(zone, cluster, time.Hour, time.Now())
	require.NoError(t, err)
	own.cert = cert
	revoked := w.registerClient(nstance.RoleOperator, "blue")
	w.revoke(revoked)

	type party struct {
		callerRole
		operatorPort *grpc.ClientConn
		agentPort    *grpc.ClientConn
	}
	dial := func(r callerRole, h *client) party { return party{r, h.dial(addrs.Operator), h.dial(addrs.Agent)} }
	parties := map[string]party{
		"agent":                       dial(callerRole{Role: nstance.RoleAgent, tenant: "blue"}, agents["blue"]),
		"agent of a deleted instance": dial(callerRole{Role: nstance.RoleAgent, tenant: "default", invalidOutcome: notFound}, gone),
		"operator of default":         dial(callerRole{Role: nstance.RoleOperator, tenant: "default"}, w.registerClient(nstance.RoleOperator, "default")),
		"operator of blue":            dial(callerRole{Role: nstance.RoleOperator, tenant: "blue"}, w.registerClient(nstance.RoleOperator, "blue")),
		"operator of another tenant":  dial(callerRole{Role: nstance.RoleOperator, tenant: "green"}, w.registerClient(nstance.RoleOperator, "green")),
		"revoked operator":            dial(callerRole{Role: nstance.RoleOperator, tenant: "blue", invalidOutcome: denied}, revoked),
		"admin":                       dial(callerRole{Role: nstance.RoleAdmin, tenant: "default"}, w.registerClient(nstance.RoleAdmin, "default")),
		"server":                      dial(callerRole{Role: nstance.RoleServer, tenant: "default"}, own),
		"no certificate":              dial(callerRole{}, w.newClient()),
	}
	groups := map[string]string{"default": "web", "blue": "db"}
	aims := func(about string) map[string]callTarget {
		out := map[string]callTarget{}
		for tenant := range groups {
			switch about {
			case aboutGroup:
				out["live "+tenant] = callTarget{tenant: tenant, group: groups[tenant]}
				out["unknown "+tenant] = callTarget{tenant: tenant, group: "missing"}
			case aboutInstance:
				out["live "+tenant] = callTarget{instance: live[tenant]}
				out["deleted "+tenant] = callTarget{instance: deleted[tenant]}
				out["unknown "+tenant] = callTarget{instance: newInstanceID()}
			default:
				return map[string]callTarget{"live ": {}}
			}
		}
		return out
	}
	table := documentedAccess(t)
	for _, m := range certificateRPCs() {
		t.Run(m.rowName(), func(t *testing.T) {
			may := table[m.rowName()]
			require.NotEmpty(t, may, "document in docs/security.md which role may call it; a method without a role should not exist")
			about, ok := rpcRows[m.rowName()]
			require.True(t, ok, "add a row for it above")
			for name, p := range parties {
				conn := p.operatorPort
				if m.onAgentPort {
					conn = p.agentPort
				}
				for object, a := range aims(about.about) {
					state, tenant, _ := strings.Cut(object, " ")
					want := p.expectedOutcome(m, may, about, state, nstance.TenantID(tenant))
					err := m.call(t, conn, about.request(a))
					for range 3 { // the connection of an identity that is not in use ends by itself, perhaps during a call
						if got := outcome(err); got == want || got != rejectedByTLS {
							break
						}
						err = m.call(t, conn, about.request(a))
					}
					require.Equal(t, want, outcome(err),
						"%s by %s about what is %q: %v", m.rowName(), name, object, err)
				}
			}
		})
	}
	t.Run("every row has an RPC", func(t *testing.T) {
		require.Len(t, rpcRows, len(certificateRPCs()))
	})
	t.Run("the table lists only existing RPCs", func(t *testing.T) {
		require.Len(t, table, len(certificateRPCs())+len(apiv1.PeerService_ServiceDesc.Streams), "servers have a port of their own")
	})
	t.Run("the server's table is the documented one", func(t *testing.T) {
		own := map[string][]nstance.Role{}
		for name, roles := range server.Access() {
			own[strings.TrimPrefix(name, "/nstance.v1.")] = roles
		}
		require.Equal(t, table, own, "docs/security.md and server/access.go differ")
	})
	t.Run("an unlisted method is denied to all", func(t *testing.T) {
		admin := w.registerClient(nstance.RoleAdmin, "default")
		for _, h := range []*client{gone, w.registerClient(nstance.RoleOperator, "default"), admin} {
			err := server.Admit(w.server, h.cert.Certificate[0], "/nstance.v1.OperatorService/Shutdown")
			require.ErrorIs(t, err, nstance.Denied)
		}
		require.NoError(t, server.Admit(w.server, admin.cert.Certificate[0], apiv1.OperatorService_ListGroups_FullMethodName))
	})
	t.Run("the error names the required role", func(t *testing.T) {
		_, err := w.registerClient(nstance.RoleOperator, "default").operatorAPI().Freeze(t.Context(), &apiv1.FreezeRequest{})
		require.EqualError(t, wire.ErrorOf(err), "role operator may not call Freeze (it takes an identity of role admin)")
		admin := w.registerClient(nstance.RoleAdmin, "default")
		err = server.Admit(w.server, admin.cert.Certificate[0], apiv1.AgentService_RenewCertificate_FullMethodName)
		require.ErrorContains(t, err, "of role agent)")
	})
	t.Run("requests have a limit", func(t *testing.T) {
		_, err := w.admin().UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{
			Group: "web", Vars: &apiv1.Vars{Values: map[string]string{"v": string(make([]byte, 300<<10))}},
		})
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
	})
}

func TestTenantIsolation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	mine := w.awaitMachine("blue")
	blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	size := int32(0)

	t.Run("another tenant's objects do not exist", func(t *testing.T) {
		for name, call := range map[string]func(ctx context.Context) (proto.Message, error){
			"UpdateGroup": func(ctx context.Context) (proto.Message, error) {
				return blue.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Tenant: "default", Group: "web", Size: &size})
			},
			"UpdateGroup, implied": func(ctx context.Context) (proto.Message, error) {
				return blue.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Group: "web", Size: &size})
			},
			"CreateGroup": func(ctx context.Context) (proto.Message, error) {
				return blue.CreateGroup(ctx, &apiv1.CreateGroupRequest{Tenant: "default", Group: "own", Template: "vm", Size: &size})
			},
			"DeleteGroup": func(ctx context.Context) (proto.Message, error) {
				return blue.DeleteGroup(ctx, &apiv1.DeleteGroupRequest{Tenant: "default", Group: "web"})
			},
			"DeleteGroup, implied": func(ctx context.Context) (proto.Message, error) {
				return blue.DeleteGroup(ctx, &apiv1.DeleteGroupRequest{Group: "web"})
			},
			"CreateInstance": func(ctx context.Context) (proto.Message, error) {
				return blue.CreateInstance(ctx, &apiv1.CreateInstanceRequest{Tenant: "default", Group: "web", Id: newRequestID(t)})
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
		k.awaitAck(k.sendReport()) // the session is unaffected
		got, err := w.admin().GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		require.Equal(t, string(nstance.Ready), got.GetInstance().GetState())
	})
	t.Run("they are not listed", func(t *testing.T) {
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
	t.Run("their events are not shown", func(t *testing.T) {
		watch := w.watch(blue, &apiv1.WatchInstanceEventsRequest{})
		require.Equal(t, []string{string(mine)}, watch.snapshot())
		k.sendNotice(reclaimNotice("e1", 2*time.Minute))
		w.awaitEvent(nstance.EventReplacementRequested, "")
		_, err := blue.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(mine)})
		require.NoError(t, err)
		require.Equal(t, "blue", watch.nextEvent().GetTenant())
	})
	t.Run("its own objects are shown", func(t *testing.T) {
		_, err := blue.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(mine)})
		require.NoError(t, err)
		_, err = blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "db", Size: &size})
		require.NoError(t, err)
	})
	t.Run("an administrator sees all", func(t *testing.T) {
		groups, err := w.admin().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		require.Len(t, groups.GetGroups(), 2)
	})
}
