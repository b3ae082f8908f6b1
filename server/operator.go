package server

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage/cache"
)

// operatorService serves nstance.v1.OperatorService.
type operatorService struct {
	apiv1.UnimplementedOperatorServiceServer
	s *Server
}

// agentService serves nstance.v1.AgentService.
type agentService struct {
	apiv1.UnimplementedAgentServiceServer
}

// Connect implements the RPC.
func (agentService) Connect(stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) error {
	c := callerOf(stream.Context())
	return c.term.agents.Connect(c.Identity, stream)
}

// RenewCertificate implements the RPC for agents.
func (agentService) RenewCertificate(ctx context.Context, req *apiv1.RenewCertificateRequest) (*apiv1.RenewCertificateResponse, error) {
	c, err := renew(ctx, req.GetCsr())
	return &apiv1.RenewCertificateResponse{Credential: c}, err
}

// RenewCertificate implements the RPC for operators and administrators.
func (operatorService) RenewCertificate(ctx context.Context, req *apiv1.OperatorServiceRenewCertificateRequest) (*apiv1.OperatorServiceRenewCertificateResponse, error) {
	c, err := renew(ctx, req.GetCsr())
	return &apiv1.OperatorServiceRenewCertificateResponse{Credential: c}, err
}

func renew(ctx context.Context, csr []byte) (*apiv1.Credential, error) {
	c := callerOf(ctx)
	cred, err := c.term.registrar.Renew(ctx, c.Identity, csr)
	if err != nil {
		return nil, err
	}
	return wire.Credential(cred), nil
}

// ListInstances implements the RPC.
func (operatorService) ListInstances(ctx context.Context, req *apiv1.ListInstancesRequest) (*apiv1.ListInstancesResponse, error) {
	c, resp := callerOf(ctx), &apiv1.ListInstancesResponse{}
	ids := c.term.reconciler.InstanceIDs(c.wants(req.GetGroup()))
	var err error
	resp.Instances, resp.NextPage, err = pageOf(req, ids, func(id nstance.InstanceID) string { return string(id) }, func(id nstance.InstanceID) *apiv1.Instance {
		v, err := c.term.reconciler.Instance(id)
		if err != nil { // it went meanwhile
			return nil
		}
		return instanceMessage(v)
	})
	return resp, err
}

// wants returns a function that reports whether the caller may see a group and
// asks for it; an empty name asks for all.
func (c caller) wants(group string) func(nstance.GroupKey) bool {
	return func(key nstance.GroupKey) bool {
		return c.sees(key.Tenant) && (group == "" || string(key.Group) == group)
	}
}

// instance returns an instance that the caller may know of.
func (c caller) instance(id string) (reconcile.InstanceView, error) {
	parsed, err := nstance.ParseInstanceID(id)
	if err != nil {
		return reconcile.InstanceView{}, err
	}
	v, err := c.term.reconciler.Instance(parsed)
	if err == nil && !c.sees(v.Record.Tenant) {
		err = nstance.Errorf(nstance.NotFound, "no instance %s", id)
	}
	return v, err
}

// GetInstance implements the RPC. An instance that is gone still has its story.
func (o operatorService) GetInstance(ctx context.Context, req *apiv1.GetInstanceRequest) (*apiv1.GetInstanceResponse, error) {
	c := callerOf(ctx)
	id, err := nstance.ParseInstanceID(req.GetId())
	if err != nil {
		return nil, err
	}
	filter := cache.Filter{Instance: id, Limit: 1000, Newest: true}
	if c.Role != nstance.RoleAdmin {
		filter.Tenant = c.Tenant
	}
	events, err := o.s.cache.Events(ctx, filter)
	if err != nil {
		return nil, err
	}
	resp := &apiv1.GetInstanceResponse{}
	for _, e := range events {
		resp.Events = append(resp.Events, wire.Event(e))
	}
	resp.Events = fittingEnd(resp.GetEvents())
	v, err := c.instance(req.GetId())
	switch {
	case err == nil:
		resp.Instance = instanceMessage(v)
		if fields, derr := c.term.reconciler.Drift(ctx, id); derr == nil { // its definition being out of reach must not hide the rest
			resp.Instance.Drift = c.changeMessages(fields)
		}
	case len(events) > 0:
		e := events[len(events)-1]
		resp.Instance = &apiv1.Instance{Id: string(id), Tenant: string(e.Tenant), Group: string(e.Group), State: string(endOf(events)), CreatedAt: wire.Time(id.Time())}
	default:
		return nil, err
	}
	return resp, nil
}

// DeleteInstance implements the RPC.
func (operatorService) DeleteInstance(ctx context.Context, req *apiv1.DeleteInstanceRequest) (*apiv1.DeleteInstanceResponse, error) {
	c := callerOf(ctx)
	v, err := c.instance(req.GetId())
	if err == nil && req.GetDryRun() {
		err = c.term.reconciler.Removable(v.Record.ID)
	}
	if err != nil || req.GetDryRun() {
		return &apiv1.DeleteInstanceResponse{}, err
	}
	return &apiv1.DeleteInstanceResponse{}, c.term.reconciler.Delete(ctx, v.Record.ID, c.because(""), req.GetNoDrain())
}

// DrainInstance implements the RPC.
func (operatorService) DrainInstance(ctx context.Context, req *apiv1.DrainInstanceRequest) (*apiv1.DrainInstanceResponse, error) {
	c := callerOf(ctx)
	v, err := c.instance(req.GetId())
	if err == nil && req.GetDryRun() {
		err = c.term.reconciler.Removable(v.Record.ID)
	}
	if err != nil || req.GetDryRun() {
		return &apiv1.DrainInstanceResponse{}, err
	}
	d, err := c.term.reconciler.Drain(ctx, v.Record.ID, c.because(req.GetReason()))
	return &apiv1.DrainInstanceResponse{Drain: wire.Drain(&d)}, err
}

// AcknowledgeDrained implements the RPC.
func (operatorService) AcknowledgeDrained(ctx context.Context, req *apiv1.AcknowledgeDrainedRequest) (*apiv1.AcknowledgeDrainedResponse, error) {
	c := callerOf(ctx)
	v, err := c.instance(req.GetId())
	if err != nil {
		return nil, err
	}
	err = c.term.drains.Acknowledge(ctx, nstance.Ack{
		Instance: v.Record.ID, Generation: req.GetGeneration(), By: nstance.ExecutorOperator,
		Outcome: nstance.Outcome(req.GetOutcome()), Delete: req.GetDelete(), Message: req.GetMessage(),
	})
	if errors.Is(err, nstance.NotFound) && v.State == nstance.Draining && v.Drain != nil && v.Drain.Generation == req.GetGeneration() {
		err = nstance.Errorf(nstance.Unavailable, "drain %d of %s is on record and not announced yet: repeat", req.GetGeneration(), v.Record.ID)
	}
	return &apiv1.AcknowledgeDrainedResponse{}, err
}

// Interrupt implements the RPC: a notice as the cloud would give it, through
// the same path.
func (o operatorService) Interrupt(ctx context.Context, req *apiv1.InterruptRequest) (*apiv1.InterruptResponse, error) {
	c := callerOf(ctx)
	v, err := c.instance(req.GetId())
	if err != nil {
		return nil, err
	}
	lead := 2 * time.Minute
	if req.GetNotice() != nil {
		lead = req.GetNotice().AsDuration()
	}
	if lead <= 0 || lead > time.Hour {
		return nil, nstance.FieldError("notice", "use more than 0 and at most 1h", "%s is out of range", lead)
	}
	now := o.s.opts.Now().UTC()
	n := nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Deadline: now.Add(lead), Source: rehearsalSource + c.Subject,
		EventID: "rehearsal-" + now.Format("20060102T150405.000000000"), DetectedAt: now,
	}
	resp := &apiv1.InterruptResponse{EventId: n.EventID}
	if req.GetDryRun() {
		resp.Plan = c.term.reconciler.Rehearse(v.Record.ID, n)
		return resp, nil
	}
	if err := c.term.reconciler.Thawed(v.Record.Key()); err != nil {
		return nil, err // it would be recorded and nothing would follow from it
	}
	if req.GetThroughMetadata() || o.s.opts.InterruptThroughMetadata {
		return &apiv1.InterruptResponse{}, o.s.announce(v.Record.ID, lead)
	}
	durable := make(chan struct{})
	c.term.agents.ReceiveNotice(v.Record.ID, n, func() { close(durable) })
	select {
	case <-durable:
		return resp, nil
	case <-ctx.Done():
		return resp, nstance.Errorf(nstance.Unavailable, "the notice is not durable yet: %w", ctx.Err())
	}
}

// An interrupter is a provider that runs the metadata services of its machines
// itself, and has one of them announce that its machine is taken back.
type interrupter interface {
	Interrupt(id nstance.InstanceID, action string, after time.Duration) error
}

// announce publishes a reclaim on a machine's own metadata service. It fails with
// Conflict where the provider cannot.
func (s *Server) announce(id nstance.InstanceID, after time.Duration) error {
	if s.opts.Announce != nil {
		return s.opts.Announce(id, "terminate", after)
	}
	can, ok := s.provider.(interrupter)
	if !ok {
		return &nstance.Error{
			Code: nstance.Conflict, Field: "through_metadata", Msg: "the provider does not run its machines' metadata services",
			Remedy: "leave it out: the server is then told directly",
		}
	}
	return can.Interrupt(id, "terminate", after)
}

// GetConfigStatus implements the RPC. What is wrong with a configuration names
// groups of any tenant, and why it is held counts members of all tenants: only an
// administrator is told.
func (o operatorService) GetConfigStatus(ctx context.Context, _ *apiv1.GetConfigStatusRequest) (*apiv1.GetConfigStatusResponse, error) {
	c := callerOf(ctx)
	forAdmin := func(reason string) string {
		if c.Role != nstance.RoleAdmin {
			return "an administrator can see why"
		}
		return reason
	}
	waiting := c.term.accepts.waiting()
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	resp := &apiv1.GetConfigStatusResponse{Digest: o.s.conf.Digest(), LoadedAt: wire.Time(o.s.confAt)}
	if waiting != nil {
		resp.HeldDigest, resp.HeldAt, resp.HeldReason = waiting.Digest, wire.Time(waiting.At), forAdmin(waiting.Reason)
	}
	if o.s.refused.err != nil {
		resp.RejectedAt, resp.RejectedError = wire.Time(o.s.refused.at), forAdmin(o.s.refused.err.Error())
	}
	return resp, nil
}

// GetConfig implements the RPC.
func (o operatorService) GetConfig(context.Context, *apiv1.GetConfigRequest) (*apiv1.GetConfigResponse, error) {
	p := o.s.proposed()
	if len(p.Data) > maxRecord {
		return nil, nstance.Errorf(nstance.Invalid, "the configuration has %d bytes, more than an answer holds: read it from %s", len(p.Data), p.Name)
	}
	return &apiv1.GetConfigResponse{Name: p.Name, Digest: p.Digest, Content: p.Data}, nil
}

// ConfirmConfig implements the RPC.
func (o operatorService) ConfirmConfig(ctx context.Context, req *apiv1.ConfirmConfigRequest) (*apiv1.ConfirmConfigResponse, error) {
	c := callerOf(ctx)
	return &apiv1.ConfirmConfigResponse{}, o.s.confirm(ctx, c.term, req.GetDigest(), c.because("confirmed"), req.GetDryRun())
}

// GetShardStatus implements the RPC.
func (o operatorService) GetShardStatus(ctx context.Context, _ *apiv1.GetShardStatusRequest) (*apiv1.GetShardStatusResponse, error) {
	c := callerOf(ctx)
	resp := &apiv1.GetShardStatusResponse{
		Cluster: string(c.term.conf.Cluster.ID), Shard: string(c.term.conf.Shard.ID), Leader: true,
		Epoch: c.term.granted.Epoch(), AgentsConnected: int32(c.term.agents.CountVisible(c.sees)), Version: Version,
		TermStartedAt: wire.Time(c.term.began), LeaderAddress: o.s.leaderAddress(), Standbys: o.s.peers.list(),
	}
	for _, g := range c.term.reconciler.Groups() {
		if c.sees(g.Key.Tenant) {
			resp.Groups++
			resp.Instances += int32(g.Ready + g.Booting + g.Leaving + g.OnDemand)
		}
	}
	if f, frozen := c.term.reconciler.Frozen(); frozen {
		resp.Frozen, resp.FrozenAt = cmp.Or(f.Reason, "no reason was given"), wire.Time(f.Since)
		resp.Holds = append(resp.Holds, holdMessage(plan.Hold{Kind: plan.HoldFrozen, Reason: resp.GetFrozen()}, f.Since))
	}
	if h, held := c.term.reconciler.ClockHold(); held {
		resp.Holds = append(resp.Holds, holdMessage(h.Hold, h.Since))
	}
	list := c.term.attention()
	resp.Attention, resp.AttentionOmitted = attentionMessages(c, list)
	if c.Role == nstance.RoleAdmin {
		resp.Problems = fitProblems(reconcile.Problems(list))
	}
	return resp, nil
}

// drainTenant is whose drains the caller carries out if it says that it does.
func (c caller) drainTenant() nstance.TenantID {
	if c.Role == nstance.RoleAdmin {
		return ""
	}
	return c.Tenant
}

// WatchInstanceEvents implements the RPC. A watcher only looks, unless its
// request says that it carries out drains.
func (operatorService) WatchInstanceEvents(req *apiv1.WatchInstanceEventsRequest, stream grpc.ServerStreamingServer[apiv1.WatchInstanceEventsResponse]) error {
	ctx, c := stream.Context(), callerOf(stream.Context())
	if req.GetDrainExecutor() {
		if req.GetGroup() != "" || req.GetInstance() != "" {
			return nstance.FieldError("drain_executor", "watch without group and instance", "an executor must see every drain")
		}
		defer c.term.drains.AddExecutor(c.drainTenant())()
	}
	wantsGroup := c.wants(req.GetGroup())
	wantsInstance := func(id nstance.InstanceID) bool { return req.GetInstance() == "" || string(id) == req.GetInstance() }
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.term.granted.Context(), cancel)()
	// A watcher that does not read keeps Send waiting, which ctx does not end.
	defer c.term.hangUpAfter(stream.Context())()
	view := feed.View[watched]{
		Snapshot: c.snapshot(wantsGroup, wantsInstance), Turn: c.watchTurn(req.GetDrainExecutor()),
		Keep: func(w watched) bool {
			if w.renew {
				return c.mustRenew()
			}
			return w.instance != nil || wantsGroup(nstance.GroupKey{Tenant: w.event.Tenant, Group: w.event.Group}) && wantsInstance(w.event.Instance)
		},
	}
	if req.GetAfterSeq() != 0 && c.mustRenew() { // where it goes on there may be no Synced
		if err := stream.Send(c.askWatcher()); err != nil {
			return err
		}
	}
	for item, err := range c.term.events.of(c).Subscribe(ctx, nstance.Seq(req.GetAfterSeq()), view) {
		if err != nil {
			return err
		}
		for _, m := range c.watchMessages(item) {
			if err := sendInTime(stream, m); err != nil {
				return err
			}
		}
	}
	if c.term.granted.Err() != nil {
		return errTermEnded
	}
	return nil
}

// snapshot returns the instances that are wanted, each as it is when its turn
// comes, so that a watcher that is slow holds no copy of them all. The number is
// taken first: what happens meanwhile may be both in the snapshot and among the
// events, never in neither.
func (c caller) snapshot(wantsGroup func(nstance.GroupKey) bool, wantsInstance func(nstance.InstanceID) bool) func() (iter.Seq[watched], nstance.Seq) {
	return func() (iter.Seq[watched], nstance.Seq) {
		seq := c.term.events.of(c).Last()
		return func(yield func(watched) bool) {
			for _, id := range c.term.reconciler.InstanceIDs(wantsGroup) {
				if !wantsInstance(id) {
					continue
				}
				if v, err := c.term.reconciler.Instance(id); err == nil && !yield(watched{instance: &v}) {
					return
				}
			}
		}, seq
	}
}
