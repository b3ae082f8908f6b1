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

// methods returns every RPC that needs a certificate.
func methods() []method {
	var out []method
	for _, d := range []grpc.ServiceDesc{apiv1.AgentService_ServiceDesc, apiv1.OperatorService_ServiceDesc} {
		agents := d.ServiceName == apiv1.AgentService_ServiceDesc.ServiceName
		for _, m := range d.Methods {
			out = append(out, method{"/" + d.ServiceName + "/" + m.MethodName, false, agents})
		}
		for _, s := range d.Streams {
			out = append(out, method{"/" + d.ServiceName + "/" + s.StreamName, true, agents})
		}
	}
	return out
}

// outcomes of a call, as far as the right to make it goes.
const (
	allowed  = "allowed"   // whatever else may be wrong with it
	kept     = "kept out"  // at the door: TLS accepts no such certificate there
	denied   = "denied"    // let in, but this RPC is not for it
	notFound = "not found" // the object does not exist, as far as the caller may know
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
		return kept
	}
	return allowed
}

// An aim is what a call is about. Which fields of it matter is the RPC's affair.
type aim struct {
	tenant   string
	group    string
	instance nstance.InstanceID
}

// A row says how an RPC is called, and what it is about. Calls change nothing:
// they are dry runs, or wrong in a way that is noticed after the right to make
// them.
type row struct {
	about   string // none, caller, group or instance
	stories bool   // an instance that is gone still has its story
	request func(a aim) proto.Message
}

// The kinds of objects. An RPC about none is one about the shard, or one that
// leaves out what the caller may not see.
const (
	none     = "none"
	oneself  = "caller"
	group    = "group"
	instance = "instance"
)

// rows has one for each RPC that needs a client's certificate, served or coming.
var rows = map[string]row{
	"AgentService/Connect":          {about: oneself, request: func(aim) proto.Message { return &apiv1.ConnectRequest{} }},
	"AgentService/RenewCertificate": {about: oneself, request: func(aim) proto.Message { return &apiv1.RenewCertificateRequest{} }},

	"OperatorService/ListGroups":          {about: none, request: func(aim) proto.Message { return &apiv1.ListGroupsRequest{} }},
	"OperatorService/WatchGroups":         {about: none, request: func(aim) proto.Message { return &apiv1.WatchGroupsRequest{} }},
	"OperatorService/ListInstances":       {about: none, request: func(aim) proto.Message { return &apiv1.ListInstancesRequest{} }},
	"OperatorService/ListEvents":          {about: none, request: func(aim) proto.Message { return &apiv1.ListEventsRequest{} }},
	"OperatorService/ListInterruptions":   {about: none, request: func(aim) proto.Message { return &apiv1.ListInterruptionsRequest{} }},
	"OperatorService/WatchInstanceEvents": {about: none, request: func(aim) proto.Message { return &apiv1.WatchInstanceEventsRequest{} }},
	"OperatorService/Plan":                {about: none, request: func(aim) proto.Message { return &apiv1.PlanRequest{} }},
	"OperatorService/GetConfigStatus":     {about: none, request: func(aim) proto.Message { return &apiv1.GetConfigStatusRequest{} }},
	"OperatorService/GetConfig":           {about: none, request: func(aim) proto.Message { return &apiv1.GetConfigRequest{} }},
	"OperatorService/RefreshConfig":       {about: none, request: func(aim) proto.Message { return &apiv1.RefreshConfigRequest{} }},
	"OperatorService/ConfirmConfig": {about: none, request: func(aim) proto.Message {
		return &apiv1.ConfirmConfigRequest{Digest: "sha256:0", DryRun: true}
	}},
	"OperatorService/GetShardStatus":   {about: none, request: func(aim) proto.Message { return &apiv1.GetShardStatusRequest{} }},
	"OperatorService/Freeze":           {about: none, request: func(aim) proto.Message { return &apiv1.FreezeRequest{DryRun: true} }},
	"OperatorService/Thaw":             {about: none, request: func(aim) proto.Message { return &apiv1.ThawRequest{DryRun: true} }},
	"OperatorService/GetRecord":        {about: none, request: func(aim) proto.Message { return &apiv1.GetRecordRequest{Key: "lease/s1.json"} }},
	"OperatorService/RepairRecord":     {about: none, request: func(aim) proto.Message { return &apiv1.RepairRecordRequest{DryRun: true} }},
	"OperatorService/ListKeys":         {about: none, request: func(aim) proto.Message { return &apiv1.ListKeysRequest{} }},
	"OperatorService/RotateKey":        {about: none, request: func(aim) proto.Message { return &apiv1.RotateKeyRequest{Name: "nonce", Step: "begin", DryRun: true} }},
	"OperatorService/ListOperators":    {about: none, request: func(aim) proto.Message { return &apiv1.ListOperatorsRequest{} }},
	"OperatorService/RevokeOperator":   {about: none, request: func(aim) proto.Message { return &apiv1.RevokeOperatorRequest{DryRun: true} }},
	"OperatorService/ListOrphans":      {about: none, request: func(aim) proto.Message { return &apiv1.ListOrphansRequest{} }},
	"OperatorService/AdoptOrphan":      {about: none, request: func(aim) proto.Message { return &apiv1.AdoptOrphanRequest{DryRun: true} }},
	"OperatorService/DeleteOrphan":     {about: none, request: func(aim) proto.Message { return &apiv1.DeleteOrphanRequest{DryRun: true} }},
	"OperatorService/RenewCertificate": {about: none, request: func(aim) proto.Message { return &apiv1.OperatorServiceRenewCertificateRequest{} }},
	"OperatorService/CreateGroup": {about: none, request: func(aim) proto.Message {
		return &apiv1.CreateGroupRequest{Group: "new", Template: "vm", DryRun: true}
	}},

	"OperatorService/UpdateGroup": {about: group, request: func(a aim) proto.Message {
		size := int32(1)
		return &apiv1.UpdateGroupRequest{Tenant: a.tenant, Group: a.group, Size: &size, DryRun: true}
	}},
	"OperatorService/DeleteGroup": {about: group, request: func(a aim) proto.Message {
		return &apiv1.DeleteGroupRequest{Tenant: a.tenant, Group: a.group, DryRun: true}
	}},
	"OperatorService/PauseGroup": {about: group, request: func(a aim) proto.Message {
		return &apiv1.PauseGroupRequest{Tenant: a.tenant, Group: a.group, DryRun: true}
	}},
	"OperatorService/ResumeGroup": {about: group, request: func(a aim) proto.Message {
		return &apiv1.ResumeGroupRequest{Tenant: a.tenant, Group: a.group, DryRun: true}
	}},
	"OperatorService/RollbackGroup": {about: group, request: func(a aim) proto.Message {
		return &apiv1.RollbackGroupRequest{Tenant: a.tenant, Group: a.group, DryRun: true}
	}},
	"OperatorService/CreateInstance": {about: group, request: func(a aim) proto.Message {
		return &apiv1.CreateInstanceRequest{Tenant: a.tenant, Group: a.group, Id: string(freshID()), DryRun: true}
	}},

	"OperatorService/GetInstance": {about: instance, stories: true, request: func(a aim) proto.Message {
		return &apiv1.GetInstanceRequest{Id: string(a.instance)}
	}},
	"OperatorService/GetConsoleOutput": {about: instance, request: func(a aim) proto.Message {
		return &apiv1.GetConsoleOutputRequest{Id: string(a.instance)}
	}},
	"OperatorService/DeleteInstance": {about: instance, request: func(a aim) proto.Message {
		return &apiv1.DeleteInstanceRequest{Id: string(a.instance), DryRun: true}
	}},
	"OperatorService/DrainInstance": {about: instance, request: func(a aim) proto.Message {
		return &apiv1.DrainInstanceRequest{Id: string(a.instance), DryRun: true}
	}},
	"OperatorService/PreserveInstance": {about: instance, request: func(a aim) proto.Message {
		return &apiv1.PreserveInstanceRequest{Id: string(a.instance), DryRun: true}
	}},
	"OperatorService/AcknowledgeDrained": {about: instance, request: func(a aim) proto.Message {
		return &apiv1.AcknowledgeDrainedRequest{Id: string(a.instance), Generation: 77, Outcome: "drained"}
	}},
	"OperatorService/Interrupt": {about: instance, request: func(a aim) proto.Message {
		return &apiv1.InterruptRequest{Id: string(a.instance), DryRun: true}
	}},
}

// short is how rows calls a method.
func (m method) short() string { return strings.TrimPrefix(m.name, "/nstance.v1.") }

// call makes the RPC.
func (m method) call(t *testing.T, conn *grpc.ClientConn, req proto.Message) error {
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	if !m.streams {
		return conn.Invoke(ctx, m.name, req, &emptypb.Empty{})
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, m.name)
	if err == nil {
		err = errors.Join(stream.SendMsg(req), stream.CloseSend())
	}
	if err == nil || errors.Is(err, io.EOF) { // refused before the request was sent: why is read from the stream
		err = stream.RecvMsg(&emptypb.Empty{})
	}
	return err
}

// A role is who calls: what its certificate says, and whether it still stands.
type role struct {
	nstance.Role
	tenant nstance.TenantID
	ended  string // what its calls come to, if it does not stand any more
}

// published is the table of docs/security.md: who may call what, by the names
// that rows has. It is written by hand, apart from the server's own, so that
// a change of access must be made twice.
func published(t *testing.T) map[string][]nstance.Role {
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

// expect derives a cell from those who may make the call, and the rows.
func (r role) expect(m method, may []nstance.Role, about row, state string, object nstance.TenantID) string {
	switch {
	case r.Role == "" || r.Role == nstance.RoleServer || m.agents != (r.Role == nstance.RoleAgent):
		return kept
	case !slices.Contains(may, r.Role):
		return denied
	case r.ended != "":
		return r.ended
	case about.about == none || about.about == oneself:
		return allowed
	case state == "unknown" || r.Role != nstance.RoleAdmin && r.tenant != object:
		return notFound
	case state == "deleted" && !about.stories:
		return notFound
	}
	return allowed
}

// TestAccess looks at every cell: each RPC, by each role, about an object of each
// tenant that is live, deleted or unknown.
func TestAccess(t *testing.T) {
	w := newWorld(t, setup{size: 1, text: strings.Replace(ordinary(1), `"templates": {`, `"tenants": {"blue": {"templates": ["vm"]}, "green": {"templates": ["vm"]}}, "templates": {`, 1)})
	addrs := w.server.Addresses()
	live, deleted, agents := map[string]nstance.InstanceID{}, map[string]nstance.InstanceID{}, map[string]*holder{}
	gone := w.agent(w.machine("default")) // a certificate that outlives its instance
	for _, tenant := range []string{"default", "blue"} {
		deleted[tenant] = w.machine(nstance.TenantID(tenant))
		_, err := w.admin().DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(deleted[tenant]), NoDrain: true})
		require.NoError(t, err)
		w.await(nstance.EventDeleted, deleted[tenant])
		live[tenant] = w.nextMachine(nstance.TenantID(tenant), deleted[tenant])
		agents[tenant] = w.ready(live[tenant]).holder
		_, err = w.admin().DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(live[tenant])}) // to be acknowledged
		require.NoError(t, err)
	}
	own := w.holder()
	cert, err := w.keys.Identity.Server(zone, cluster, time.Hour, time.Now())
	require.NoError(t, err)
	own.cert = cert
	revoked := w.client(nstance.RoleOperator, "blue")
	w.revoke(revoked)

	type party struct {
		role
		conn *grpc.ClientConn // to the operators' port
		to   *grpc.ClientConn // to the agents'
	}
	dial := func(r role, h *holder) party { return party{r, h.dial(addrs.Operator), h.dial(addrs.Agent)} }
	parties := map[string]party{
		"agent":                       dial(role{Role: nstance.RoleAgent, tenant: "blue"}, agents["blue"]),
		"agent of a deleted instance": dial(role{Role: nstance.RoleAgent, tenant: "default", ended: notFound}, gone),
		"operator of default":         dial(role{Role: nstance.RoleOperator, tenant: "default"}, w.client(nstance.RoleOperator, "default")),
		"operator of blue":            dial(role{Role: nstance.RoleOperator, tenant: "blue"}, w.client(nstance.RoleOperator, "blue")),
		"operator of another tenant":  dial(role{Role: nstance.RoleOperator, tenant: "green"}, w.client(nstance.RoleOperator, "green")),
		"revoked operator":            dial(role{Role: nstance.RoleOperator, tenant: "blue", ended: denied}, revoked),
		"admin":                       dial(role{Role: nstance.RoleAdmin, tenant: "default"}, w.client(nstance.RoleAdmin, "default")),
		"server":                      dial(role{Role: nstance.RoleServer, tenant: "default"}, own),
		"nobody":                      dial(role{}, w.holder()),
	}
	groups := map[string]string{"default": "web", "blue": "db"}
	aims := func(about string) map[string]aim {
		out := map[string]aim{}
		for tenant := range groups {
			switch about {
			case group:
				out["live "+tenant] = aim{tenant: tenant, group: groups[tenant]}
				out["unknown "+tenant] = aim{tenant: tenant, group: "missing"}
			case instance:
				out["live "+tenant] = aim{instance: live[tenant]}
				out["deleted "+tenant] = aim{instance: deleted[tenant]}
				out["unknown "+tenant] = aim{instance: freshID()}
			default:
				return map[string]aim{"live ": {}}
			}
		}
		return out
	}
	table := published(t)
	for _, m := range methods() {
		t.Run(m.short(), func(t *testing.T) {
			may := table[m.short()]
			require.NotEmpty(t, may, "document in docs/security.md which role may call it; a method without a role should not exist")
			about, ok := rows[m.short()]
			require.True(t, ok, "add a row for it above")
			for name, p := range parties {
				conn := p.conn
				if m.agents {
					conn = p.to
				}
				for object, a := range aims(about.about) {
					state, tenant, _ := strings.Cut(object, " ")
					err := m.call(t, conn, about.request(a))
					require.Equal(t, p.expect(m, may, about, state, nstance.TenantID(tenant)), outcome(err),
						"%s by %s about what is %q: %v", m.short(), name, object, err)
				}
			}
		})
	}
	t.Run("every row is of an RPC", func(t *testing.T) {
		require.Len(t, rows, len(methods()))
	})
	t.Run("nothing is listed that does not exist", func(t *testing.T) {
		require.Len(t, table, len(methods())+len(apiv1.PeerService_ServiceDesc.Streams), "servers have a port of their own")
	})
	t.Run("the server's table is the published one", func(t *testing.T) {
		own := map[string][]nstance.Role{}
		for name, roles := range server.Access() {
			own[strings.TrimPrefix(name, "/nstance.v1.")] = roles
		}
		require.Equal(t, table, own, "docs/security.md and server/access.go differ")
	})
	t.Run("a method that is not listed is denied to all", func(t *testing.T) {
		admin := w.client(nstance.RoleAdmin, "default")
		for _, h := range []*holder{gone, w.client(nstance.RoleOperator, "default"), admin} {
			err := server.Admit(w.server, h.cert.Certificate[0], "/nstance.v1.OperatorService/Shutdown")
			require.ErrorIs(t, err, nstance.Denied)
		}
		require.NoError(t, server.Admit(w.server, admin.cert.Certificate[0], apiv1.OperatorService_ListGroups_FullMethodName))
	})
	t.Run("the error names the required role", func(t *testing.T) {
		_, err := w.client(nstance.RoleOperator, "default").api().Freeze(t.Context(), &apiv1.FreezeRequest{})
		require.EqualError(t, wire.ErrorOf(err), "role operator may not call Freeze (it takes an identity of role admin)")
		admin := w.client(nstance.RoleAdmin, "default")
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
				return blue.CreateInstance(ctx, &apiv1.CreateInstanceRequest{Tenant: "default", Group: "web", Id: newID(t)})
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
