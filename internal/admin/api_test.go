package admin_test

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
)

func serialOf(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	if len(info.State.PeerCertificates) == 0 {
		return ""
	}
	return pki.SerialOf(info.State.PeerCertificates[0])
}

func (w *world) RegisterOperator(_ context.Context, req *apiv1.RegisterOperatorRequest) (*apiv1.RegisterOperatorResponse, error) {
	c, err := w.keys.Nonces.Verify(req.GetNonce(), time.Now(), keyring.Expect{Cluster: cluster, Shard: shard})
	if err != nil {
		return nil, err
	}
	key, err := keyring.ParseCSR(req.GetCsr())
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if had, ok := w.used[c.JTI]; ok && had != pki.KeyFingerprint(key) {
		return nil, nstance.Errorf(nstance.Denied, "nonce has been used already, with another key")
	}
	w.used[c.JTI] = pki.KeyFingerprint(key)
	if err := w.fail["after RegisterOperator"]; err != nil {
		return nil, err
	}
	return &apiv1.RegisterOperatorResponse{Credential: w.credential(w.issue(key, c.Kind, time.Now()))}, nil
}

func (w *world) RenewCertificate(_ context.Context, req *apiv1.OperatorServiceRenewCertificateRequest) (*apiv1.OperatorServiceRenewCertificateResponse, error) {
	key, err := keyring.ParseCSR(req.GetCsr())
	if err != nil {
		return nil, err
	}
	w.did("renew " + pki.KeyFingerprint(key))
	w.mu.Lock()
	defer w.mu.Unlock()
	return &apiv1.OperatorServiceRenewCertificateResponse{Credential: w.credential(w.issue(key, nstance.RoleAdmin, time.Now()))}, nil
}

func (w *world) ListGroups(_ context.Context, req *apiv1.ListGroupsRequest) (*apiv1.ListGroupsResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := &apiv1.ListGroupsResponse{}
	for _, g := range w.groups {
		resp.Groups = append(resp.Groups, proto.CloneOf(g))
	}
	resp.Groups, resp.NextPage = page(w, resp.Groups, req.GetPage())
	return resp, nil
}

func (w *world) UpdateGroup(_ context.Context, req *apiv1.UpdateGroupRequest) (*apiv1.UpdateGroupResponse, error) {
	w.did(fmt.Sprintf("size %s/%s %d dry=%t", req.GetTenant(), req.GetGroup(), req.GetSize(), req.GetDryRun()))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = req
	i := slices.IndexFunc(w.groups, func(g *apiv1.Group) bool { return g.GetTenant() == req.GetTenant() && g.GetGroup() == req.GetGroup() })
	if i < 0 {
		return nil, nstance.Errorf(nstance.NotFound, "no group %s", req.GetGroup())
	}
	g := proto.CloneOf(w.groups[i])
	g.Size = req.GetSize()
	if !req.GetDryRun() {
		w.groups[i] = g
	}
	return &apiv1.UpdateGroupResponse{Group: g, Unchanged: w.unchanged}, nil
}

func (w *world) ListInstances(_ context.Context, req *apiv1.ListInstancesRequest) (*apiv1.ListInstancesResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := &apiv1.ListInstancesResponse{}
	for _, i := range w.instances {
		if i.GetState() != "deleted" && (req.GetGroup() == "" || i.GetGroup() == req.GetGroup()) {
			resp.Instances = append(resp.Instances, proto.CloneOf(i))
		}
	}
	slices.SortFunc(resp.Instances, func(a, b *apiv1.Instance) int { return slices.Compare([]byte(a.GetId()), []byte(b.GetId())) })
	resp.Instances, resp.NextPage = page(w, resp.Instances, req.GetPage())
	return resp, nil
}

func (w *world) find(id string) (*apiv1.Instance, error) {
	i, ok := w.instances[id]
	if !ok {
		return nil, nstance.Errorf(nstance.NotFound, "no instance %s", id)
	}
	return i, nil
}

func (w *world) GetInstance(_ context.Context, req *apiv1.GetInstanceRequest) (*apiv1.GetInstanceResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := w.find(req.GetId())
	if err != nil {
		return nil, err
	}
	story := w.stories[req.GetId()]
	return &apiv1.GetInstanceResponse{Instance: proto.CloneOf(i), Life: w.life, Problems: w.unread, Events: slices.Clone(story[max(0, len(story)-1000):])}, nil
}

func (w *world) GetConsoleOutput(_ context.Context, req *apiv1.GetConsoleOutputRequest) (*apiv1.GetConsoleOutputResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.find(req.GetId()); err != nil {
		return nil, err
	}
	return &apiv1.GetConsoleOutputResponse{Output: w.console}, nil
}

func (w *world) DeleteInstance(_ context.Context, req *apiv1.DeleteInstanceRequest) (*apiv1.DeleteInstanceResponse, error) {
	w.did(fmt.Sprintf("delete %s drain=%t dry=%t", req.GetId(), !req.GetNoDrain(), req.GetDryRun()))
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.find(req.GetId())
	return &apiv1.DeleteInstanceResponse{}, err
}

func (w *world) DrainInstance(_ context.Context, req *apiv1.DrainInstanceRequest) (*apiv1.DrainInstanceResponse, error) {
	w.did(fmt.Sprintf("drain %s because=%q dry=%t", req.GetId(), req.GetReason(), req.GetDryRun()))
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := w.find(req.GetId())
	if err != nil || req.GetDryRun() {
		return &apiv1.DrainInstanceResponse{}, err
	}
	now := time.Now()
	return &apiv1.DrainInstanceResponse{Drain: &apiv1.Drain{
		Instance: i.GetId(), Tenant: i.GetTenant(), Group: i.GetGroup(), Generation: 1, StartedAt: wire.Time(now),
		Deadline: wire.Time(now.Add(5 * time.Minute)), Executor: "operator", Causes: []*apiv1.Cause{{Kind: "request", Message: req.GetReason()}},
	}}, nil
}

func (w *world) AcknowledgeDrained(_ context.Context, req *apiv1.AcknowledgeDrainedRequest) (*apiv1.AcknowledgeDrainedResponse, error) {
	w.did(fmt.Sprintf("acknowledge %s generation=%d %s delete=%t %q", req.GetId(), req.GetGeneration(), req.GetOutcome(), req.GetDelete(), req.GetMessage()))
	return &apiv1.AcknowledgeDrainedResponse{}, nil
}

func (w *world) Interrupt(_ context.Context, req *apiv1.InterruptRequest) (*apiv1.InterruptResponse, error) {
	who, ids := req.GetId(), []string{req.GetId()}
	if req.GetGroup() != "" {
		who, ids = fmt.Sprintf("%d of %s/%s force=%t %s", req.GetCount(), req.GetTenant(), req.GetGroup(), req.GetForce(), req.GetKind()), []string{string(webA), string(webB)}
	}
	w.did(fmt.Sprintf("interrupt %s notice=%s dry=%t", who, req.GetNotice().AsDuration(), req.GetDryRun()))
	w.mu.Lock()
	then := w.onInject
	w.mu.Unlock()
	resp := &apiv1.InterruptResponse{EventId: "rehearsal-1"}
	if req.GetThroughMetadata() {
		resp.EventId = "" // the agent names the notice
	}
	if req.GetGroup() != "" {
		resp.Instances = ids
	}
	for _, id := range ids {
		if req.GetDryRun() {
			resp.Plan = append(resp.Plan, "create (replace) for "+id, "drain "+id)
		} else if then != nil {
			then(id, resp.GetEventId())
		}
	}
	return resp, nil
}

func (w *world) GetConfigStatus(context.Context, *apiv1.GetConfigStatusRequest) (*apiv1.GetConfigStatusResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return proto.CloneOf(w.config), nil
}

func (w *world) RefreshConfig(_ context.Context, req *apiv1.RefreshConfigRequest) (*apiv1.RefreshConfigResponse, error) {
	w.did(fmt.Sprintf("refresh dry=%t", req.GetDryRun()))
	return &apiv1.RefreshConfigResponse{Digest: "sha256:def", Changed: !w.unchanged}, nil
}

func (w *world) ConfirmConfig(_ context.Context, req *apiv1.ConfirmConfigRequest) (*apiv1.ConfirmConfigResponse, error) {
	w.did(fmt.Sprintf("confirm %s dry=%t", req.GetDigest(), req.GetDryRun()))
	return &apiv1.ConfirmConfigResponse{}, nil
}

func (w *world) PreserveInstance(_ context.Context, req *apiv1.PreserveInstanceRequest) (*apiv1.PreserveInstanceResponse, error) {
	w.did(fmt.Sprintf("preserve %s for=%s dry=%t", req.GetId(), req.GetDuration().AsDuration(), req.GetDryRun()))
	return &apiv1.PreserveInstanceResponse{Instance: &apiv1.Instance{Id: req.GetId(), PreservedUntil: wire.Time(time.Now().Add(req.GetDuration().AsDuration()))}}, nil
}

// ListEvents serves one page, the newest or oldest first as asked.
func (w *world) ListEvents(_ context.Context, req *apiv1.ListEventsRequest) (*apiv1.ListEventsResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*apiv1.Event
	for _, story := range w.stories {
		all = append(all, story...)
	}
	slices.SortFunc(all, func(a, b *apiv1.Event) int { return cmp.Compare(a.GetSeq(), b.GetSeq()) })
	if req.GetNewest() {
		slices.Reverse(all)
	}
	after, _ := strconv.ParseUint(req.GetPage(), 10, 64)
	resp := &apiv1.ListEventsResponse{}
	for _, e := range all {
		seen := req.GetPage() != "" && (e.GetSeq() <= after) != req.GetNewest() && e.GetSeq() != after || req.GetPage() != "" && e.GetSeq() == after
		other := req.GetInstance() != "" && e.GetInstance() != req.GetInstance() || req.GetTenant() != "" && e.GetTenant() != req.GetTenant() ||
			req.GetGroup() != "" && e.GetGroup() != req.GetGroup() || len(req.GetTypes()) > 0 && !slices.Contains(req.GetTypes(), e.GetType())
		switch {
		case seen || other:
		case len(resp.Events) == min(int(req.GetLimit()), w.pageSize):
			resp.NextPage = strconv.FormatUint(resp.Events[len(resp.Events)-1].GetSeq(), 10)
			return resp, nil
		default:
			resp.Events = append(resp.Events, proto.CloneOf(e))
		}
	}
	return resp, nil
}

func (w *world) ListActions(_ context.Context, req *apiv1.ListActionsRequest) (*apiv1.ListActionsResponse, error) {
	all := []*apiv1.Action{
		{At: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)), By: "admin-1", Role: "admin", Tenant: "default", Method: "Freeze", Request: `{"reason":"audit"}`, Code: "unavailable", Error: "storage is slow"},
		{At: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), By: "operator-1", Role: "operator", Tenant: "blue", Method: "PauseGroup", Request: `{"group":"db"}`, Omitted: 7},
	}
	if req.GetPage() == "" {
		return &apiv1.ListActionsResponse{Actions: all[:1], NextPage: "2", Problems: []string{"ledger/eu1a/x: line 3"}}, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := &apiv1.ListActionsResponse{Actions: all[1:], Problems: []string{"ledger/eu1a/x: line 3"}}
	if w.endless {
		resp.NextPage = req.GetPage()
	}
	return resp, nil
}

func (w *world) ListInterruptions(_ context.Context, req *apiv1.ListInterruptionsRequest) (*apiv1.ListInterruptionsResponse, error) {
	if req.GetEventId() != "" && req.GetEventId() != "e1" {
		return &apiv1.ListInterruptionsResponse{}, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reclaims != nil {
		return &apiv1.ListInterruptionsResponse{Interruptions: w.reclaims}, nil
	}
	at := func(s int) *timestamppb.Timestamp {
		return wire.Time(time.Now().Add(time.Duration(s-3600) * time.Second))
	}
	return &apiv1.ListInterruptionsResponse{Interruptions: []*apiv1.Interruption{{
		EventId: "e1", Tenant: "default", Group: "web", Instance: string(webB), Notice: &apiv1.Notice{Kind: "reclaim", Source: "aws/spot", Deadline: at(120)},
		DetectedAt: at(0), ReceivedAt: at(0), ReplacementRequestedAt: at(0), Replacement: string(webA), DrainStartedAt: at(1), DrainedAt: at(30),
		DrainOutcome: "failed",
	}}}, nil
}

func (w *world) GetInterruptionRates(_ context.Context, req *apiv1.GetInterruptionRatesRequest) (*apiv1.GetInterruptionRatesResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &apiv1.GetInterruptionRatesResponse{Since: req.GetSince(), Until: timestamppb.New(cmp.Or(wire.TimeOf(req.GetUntil()), time.Now())), Rates: w.rates, Problems: w.unread}, nil
}

func (w *world) GetRecord(_ context.Context, req *apiv1.GetRecordRequest) (*apiv1.GetRecordResponse, error) {
	return &apiv1.GetRecordResponse{Key: req.GetKey(), Version: "7", Data: []byte("{\"format\": "), Error: "unexpected end of JSON input"}, nil
}

func (w *world) RepairRecord(_ context.Context, req *apiv1.RepairRecordRequest) (*apiv1.RepairRecordResponse, error) {
	w.did(fmt.Sprintf("repair %s@%s %q remove=%t dry=%t", req.GetKey(), req.GetVersion(), req.GetData(), req.GetRemove(), req.GetDryRun()))
	return &apiv1.RepairRecordResponse{Version: "8"}, nil
}

func (w *world) GetShardStatus(context.Context, *apiv1.GetShardStatusRequest) (*apiv1.GetShardStatusResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.onStatus != nil {
		w.onStatus()
	}
	resp := &apiv1.GetShardStatusResponse{
		Cluster: string(cluster), Shard: string(shard), Leader: true, Epoch: 7, Groups: int32(len(w.groups)), Instances: int32(len(w.instances)),
		AgentsConnected: 2, Version: "0.1.0", TermStartedAt: wire.Time(time.Now().Add(-150 * time.Minute)), Problems: w.problems,
		LeaderAddress: "server-a.example:8993", Standbys: []*apiv1.Standby{
			{Server: "x", Address: "server-b.example:8993", Version: "0.1.1", AddressFailed: true, Since: wire.Time(time.Now().Add(-time.Hour))}, {Server: "y"},
		},
		Holds: []*apiv1.Hold{{Kind: "clock", Reason: "it is wrong", Since: wire.Time(time.Now().Add(-time.Minute))}},
		Attention: []*apiv1.Attention{
			{Kind: "clock", Subject: "shard", Since: wire.Time(time.Now().Add(-time.Minute)), Why: "it is wrong", Remedy: "set it right"},
			{
				Kind: "halted", Subject: "group default/web", Tenant: "default", Group: "web", Why: "2 creations failed",
				Remedy: "nstance-admin group resume web",
			},
			{
				Kind: "short", Subject: "group blue/db", Tenant: "blue", Group: "db", Why: "0 of 1 members are ready", Acknowledged: &apiv1.AttentionAcknowledgement{
					By: "admin-1", Reason: "ticket 7", At: wire.Time(time.Now()), Until: wire.Time(time.Now().Add(4 * time.Hour)),
				},
			},
		},
		AttentionOmitted: 3, AttentionAcknowledged: 4,
	}
	if w.status != nil {
		w.status(resp)
	}
	return resp, nil
}

// endEarly ends a stream that has a deadline, as a server does whose clock is ahead.
func endEarly(ctx context.Context) error {
	if _, limited := ctx.Deadline(); limited {
		return context.DeadlineExceeded
	}
	return nil
}

func (w *world) WatchInstanceEvents(req *apiv1.WatchInstanceEventsRequest, stream grpc.ServerStreamingServer[apiv1.WatchInstanceEventsResponse]) error {
	w.mu.Lock()
	kick, err := w.kick, w.fail["WatchInstanceEvents"]
	w.mu.Unlock()
	if err = cmp.Or(err, endEarly(stream.Context())); err != nil {
		return wire.Status(err)
	}
	call := fmt.Sprintf("watch after=%t group=%q instance=%q", req.GetAfterSeq() != 0, req.GetGroup(), req.GetInstance())
	if req.GetAfterSeq() != 0 {
		w.did(call)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	go func() { // ends with ctx, which ends with the call
		select {
		case <-kick:
			cancel()
		case <-ctx.Done():
		}
	}()
	begin := func() (iter.Seq[*apiv1.Event], nstance.Seq) {
		seq := w.hub.Last()
		if req.GetAfterSeq() == 0 {
			w.did(call) // what is published from now on is not missed
		}
		return nil, seq
	}
	if m := w.renewal(stream.Context()); m != nil {
		if err := stream.Send(&apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Renewal{Renewal: m}}); err != nil {
			return err
		}
	}
	view := feed.View[*apiv1.Event]{Snapshot: begin, Keep: func(e *apiv1.Event) bool {
		return (req.GetGroup() == "" || e.GetGroup() == req.GetGroup()) && (req.GetInstance() == "" || e.GetInstance() == req.GetInstance())
	}}
	for item, err := range w.hub.Subscribe(ctx, nstance.Seq(req.GetAfterSeq()), view) {
		if err != nil {
			return wire.Status(err)
		}
		if item.Kind != feed.Event && req.GetDrainExecutor() {
			if err := w.snapshot(stream); err != nil {
				return err
			}
		}
		msg := &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Synced{Synced: &apiv1.Synced{Seq: uint64(item.Seq)}}}
		if item.Kind == feed.Event {
			e := proto.CloneOf(item.Value)
			e.Seq = uint64(item.Seq)
			msg.Message = &apiv1.WatchInstanceEventsResponse_Event{Event: e}
		}
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
	return wire.Status(nstance.Errorf(nstance.Unavailable, "this term has ended"))
}

// snapshot sends the instances that have a drain.
func (w *world) snapshot(stream grpc.ServerStreamingServer[apiv1.WatchInstanceEventsResponse]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range w.instances {
		if i.GetDrain() == nil {
			continue
		}
		m := &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Snapshot{Snapshot: proto.CloneOf(i)}}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// disconnect ends every watch.
func (w *world) disconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.kick)
	w.kick = make(chan struct{})
}

func (w *world) ListOrphans(_ context.Context, req *apiv1.ListOrphansRequest) (*apiv1.ListOrphansResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := &apiv1.ListOrphansResponse{}
	for _, o := range w.orphans {
		resp.Orphans = append(resp.Orphans, proto.CloneOf(o))
	}
	resp.Orphans, resp.NextPage = page(w, resp.Orphans, req.GetPage())
	return resp, nil
}

func (w *world) orphan(id string) (*apiv1.Orphan, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.orphans {
		if o.GetId() == id {
			return proto.CloneOf(o), nil
		}
	}
	return nil, nstance.Errorf(nstance.NotFound, "no machine without a record is %s", id)
}

func (w *world) AdoptOrphan(_ context.Context, req *apiv1.AdoptOrphanRequest) (*apiv1.AdoptOrphanResponse, error) {
	o, err := w.orphan(req.GetId())
	if !req.GetDryRun() {
		w.did("adopt " + req.GetId())
	}
	return &apiv1.AdoptOrphanResponse{Orphan: o}, err
}

func (w *world) DeleteOrphan(_ context.Context, req *apiv1.DeleteOrphanRequest) (*apiv1.DeleteOrphanResponse, error) {
	o, err := w.orphan(req.GetId())
	if !req.GetDryRun() {
		w.did("delete orphan " + req.GetId())
		w.mu.Lock()
		defer w.mu.Unlock()
		if fail := w.fail["real DeleteOrphan "+req.GetId()]; fail != nil {
			return nil, fail
		}
	}
	return &apiv1.DeleteOrphanResponse{Orphan: o}, err
}
