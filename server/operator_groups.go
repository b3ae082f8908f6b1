package server

import (
	"context"
	"encoding/json"
	"iter"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/server/internal/groups"
)

// ListGroups implements the RPC.
func (operatorService) ListGroups(ctx context.Context, req *apiv1.ListGroupsRequest) (*apiv1.ListGroupsResponse, error) {
	c, resp := callerOf(ctx), &apiv1.ListGroupsResponse{}
	keys := slices.DeleteFunc(c.term.reconciler.GroupKeys(), func(key nstance.GroupKey) bool { return !c.sees(key.Tenant) })
	var err error
	resp.Groups, resp.NextPage, err = pageOf(req, keys, nstance.GroupKey.String, func(key nstance.GroupKey) *apiv1.Group {
		g, err := c.term.reconciler.Group(key)
		if err != nil { // it went meanwhile
			return nil
		}
		return c.term.groupMessage(g)
	})
	return resp, err
}

// groupMessage is what is told of a group, with what only the file knows.
func (t *term) groupMessage(g reconcile.GroupView) *apiv1.Group {
	m := groupMessage(g)
	m.HasOverlay = t.groups.Overlaid(g.Key)
	return m
}

// groupKey returns the key of a group that the caller may name, whether there is
// one or not.
func (c caller) groupKey(tenant, group string) (nstance.GroupKey, error) {
	key := nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(group)}
	if key.Tenant == "" {
		key.Tenant = c.Tenant
	}
	if err := key.Group.Validate("group"); err != nil {
		return key, err
	}
	if !c.sees(key.Tenant) {
		return key, nstance.Errorf(nstance.NotFound, "no group %s", key.Group)
	}
	return key, key.Tenant.Validate("tenant")
}

// changer returns the caller as one who changes groups of its tenant.
func (c caller) changer() groups.Changer {
	if c.Role == nstance.RoleAdmin {
		return groups.Changer{Subject: c.Subject}
	}
	conf := c.term.server.config()
	budget := conf.Budget(c.Tenant)
	return groups.Changer{Subject: c.Subject, Allowance: conf.Allowance(c.Tenant), Budget: &budget}
}

// described returns a group as it stands, or for a dry run as it would be.
func (c caller) described(spec nstance.Group, dryRun bool) *apiv1.Group {
	v, err := c.term.reconciler.Group(spec.Key)
	if err == nil && !dryRun {
		return c.term.groupMessage(v)
	}
	v.Group, v.Hash, v.RuntimeHash = spec, "", "" // with the members that there are now
	v.Holds = c.term.groups.PreviewHolds(spec, v.Holds)
	m := groupMessage(v)
	m.Removing = spec.Removing
	return m
}

// CreateGroup implements the RPC.
func (operatorService) CreateGroup(ctx context.Context, req *apiv1.CreateGroupRequest) (*apiv1.CreateGroupResponse, error) {
	c := callerOf(ctx)
	key, err := c.groupKey(req.GetTenant(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	o := config.Override{
		Size: sizeOf(req.Size), Template: config.TemplateName(req.GetTemplate()), InstanceTypes: req.GetInstanceTypes(),
		SubnetPool: config.PoolName(req.GetSubnetPool()), Vars: req.GetVars(), LoadBalancers: req.GetLoadBalancers(),
		DrainTimeout: spanOf(req.GetDrainTimeout()), Rollout: paceOf(req.GetRollout()), Market: purchaseOf(req.GetMarket()),
	}
	if req.GetProtect() {
		o.Protect = &req.Protect
	}
	if o.Args, err = config.ParseArgs(json.RawMessage(req.GetArgs())); err != nil {
		return nil, err
	}
	spec, err := c.term.groups.Create(ctx, c.changer(), key, o, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateGroupResponse{Group: c.described(spec, req.GetDryRun())}, nil
}

// UpdateGroup implements the RPC.
func (operatorService) UpdateGroup(ctx context.Context, req *apiv1.UpdateGroupRequest) (*apiv1.UpdateGroupResponse, error) {
	c := callerOf(ctx)
	spec, unchanged, err := c.updateGroup(ctx, req)
	if err != nil {
		return nil, err
	}
	return &apiv1.UpdateGroupResponse{Group: c.described(spec, req.GetDryRun()), Unchanged: unchanged}, nil
}

// updateGroup changes a group, or only checks that, and returns what it should
// be then, and whether it should be so before.
func (c caller) updateGroup(ctx context.Context, req *apiv1.UpdateGroupRequest) (spec nstance.Group, unchanged bool, err error) {
	key, err := c.groupKey(req.GetTenant(), req.GetGroup())
	if err != nil {
		return spec, false, err
	}
	o, err := overrideOf(req)
	if err != nil {
		return spec, false, err
	}
	return c.term.groups.Update(ctx, c.changer(), key, o, req.GetDryRun())
}

// overrideOf returns what a request changes. What is present but empty gives up
// what the API said before.
func overrideOf(req *apiv1.UpdateGroupRequest) (config.Override, error) {
	o := config.Override{
		Size: sizeOf(req.Size), InstanceType: req.InstanceType, Template: config.TemplateName(req.GetTemplate()),
		SubnetPool: config.PoolName(req.GetSubnetPool()), DrainTimeout: spanOf(req.GetDrainTimeout()), Rollout: paceOf(req.GetRollout()),
		Protect: req.Protect, Market: purchaseOf(req.GetMarket()),
	}
	if req.InstanceType != nil && req.GetInstanceTypes() != nil {
		return o, nstance.FieldError("instance_types", "leave one of them out", "is given beside instance_type")
	}
	if req.GetInstanceTypes() != nil {
		o.InstanceTypes = append([]string{}, req.GetInstanceTypes().GetValues()...)
	}
	if req.GetLoadBalancers() != nil {
		o.LoadBalancers = append([]string{}, req.GetLoadBalancers().GetValues()...)
	}
	if req.GetVars() != nil {
		o.Vars = req.GetVars().GetValues()
		if o.Vars == nil {
			o.Vars = map[string]string{}
		}
	}
	for _, named := range []struct {
		field string
		value *string
	}{{"template", req.Template}, {"subnet_pool", req.SubnetPool}} {
		if named.value != nil && *named.value == "" {
			return o, nstance.FieldError(named.field, "leave it out instead", "is empty")
		}
	}
	if req.Args == nil {
		return o, nil
	}
	args, err := config.ParseArgs(json.RawMessage(req.GetArgs()))
	if args == nil {
		args = json.RawMessage("{}")
	}
	o.Args = args
	return o, err
}

func sizeOf(n *int32) *int {
	if n == nil {
		return nil
	}
	return new(int(*n))
}

func spanOf(d *durationpb.Duration) *config.Duration {
	if d == nil {
		return nil
	}
	return new(config.Duration(d.AsDuration()))
}

func paceOf(r *apiv1.Rollout) *config.Pace {
	if r == nil {
		return nil
	}
	return &config.Pace{MaxSurge: r.GetMaxSurge(), MinReady: spanOf(r.GetMinReady()), HaltAfter: sizeOf(r.HaltAfter)}
}

func purchaseOf(m *apiv1.Market) *config.Purchase {
	if m == nil {
		return nil
	}
	return &config.Purchase{
		Type: nstance.MarketType(m.GetType()), MaxPrice: config.Price(m.GetMaxPrice()),
		Fallback: nstance.MarketType(m.GetFallback()), FallbackAfter: config.Duration(m.GetFallbackAfter().AsDuration()),
		ReturnAfter: config.Duration(m.GetReturnAfter().AsDuration()), OnDemandBase: m.GetOnDemandBase(),
	}
}

// DeleteGroup implements the RPC.
func (operatorService) DeleteGroup(ctx context.Context, req *apiv1.DeleteGroupRequest) (*apiv1.DeleteGroupResponse, error) {
	c := callerOf(ctx)
	key, err := c.groupKey(req.GetTenant(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	spec, err := c.term.groups.Remove(ctx, c.changer(), key, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	return &apiv1.DeleteGroupResponse{Group: c.described(spec, req.GetDryRun())}, nil
}

// A groupChange is one thing that watchers of groups are told.
type groupChange struct {
	key   nstance.GroupKey
	view  *reconcile.GroupView // nil: watchers are sent the group as it is by then
	gone  bool
	renew bool // nothing changed, but watchers may have to renew their certificates
}

// groupChanged takes note of a change. It is called under the reconciler's lock.
func (t *term) groupChanged(v reconcile.GroupView, gone bool) {
	change := groupChange{key: v.Key, gone: gone}
	if !gone && bytesSet(v.Definition) <= maxKeptChange {
		change.view = &v
	}
	t.groupFeeds.publish(v.Key.Tenant, change)
	if gone && v.Removing && v.OnDemand == 0 {
		t.groups.ForgetSoon(v.Key)
	}
}

// maxKeptChange is how long variables and arguments of a group may be, in bytes,
// for each of its changes to be kept as it was: thousands are kept.
const maxKeptChange = 4 << 10

// bytesSet returns how long the variables and arguments of a definition are.
func bytesSet(d nstance.Definition) int {
	n := len(d.Args)
	for name, value := range d.Vars {
		n += len(name) + len(value)
	}
	return n
}

// groupSnapshot returns every group. The number is taken first: a change
// meanwhile may be both in the snapshot and among the events, never in neither.
func (c caller) groupSnapshot() (iter.Seq[groupChange], nstance.Seq) {
	seq := c.term.groupFeeds.of(c).Last()
	return func(yield func(groupChange) bool) {
		for _, key := range c.term.reconciler.GroupKeys() {
			if !yield(groupChange{key: key}) {
				return
			}
		}
	}, seq
}

// WatchGroups implements the RPC.
func (operatorService) WatchGroups(req *apiv1.WatchGroupsRequest, stream grpc.ServerStreamingServer[apiv1.WatchGroupsResponse]) error {
	c := callerOf(stream.Context())
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(c.term.granted.Context(), cancel)()
	// A watcher that does not read keeps Send waiting, which ctx does not end.
	defer c.term.hangUpAfter(stream.Context())()
	wants := c.wants(req.GetGroup())
	view := feed.View[groupChange]{
		Snapshot: c.groupSnapshot, Turn: c.watchTurn(false),
		Keep: func(w groupChange) bool {
			if w.renew {
				return c.mustRenew()
			}
			return wants(w.key)
		},
	}
	if req.GetAfterSeq() != 0 && c.mustRenew() { // where it goes on there may be no Synced
		if err := stream.Send(c.askGroupWatcher()); err != nil {
			return err
		}
	}
	for item, err := range c.term.groupFeeds.of(c).Subscribe(ctx, nstance.Seq(req.GetAfterSeq()), view) {
		if err != nil {
			return err
		}
		for _, m := range c.groupWatchMessages(item) {
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

// groupWatchMessage returns an item as it is sent; nil for a change of a group
// that is gone by now, which another item says.
func (t *term) groupWatchMessage(item feed.Item[groupChange]) *apiv1.WatchGroupsResponse {
	key, seq := item.Value.key, uint64(item.Seq)
	switch {
	case item.Kind == feed.Synced:
		return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Synced{Synced: &apiv1.Synced{Seq: seq}}}
	case item.Value.gone:
		return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Removed{Removed: &apiv1.GroupRemoved{
			Seq: seq, Tenant: string(key.Tenant), Group: string(key.Group),
		}}}
	}
	var v reconcile.GroupView
	if item.Value.view != nil {
		v = *item.Value.view
	} else {
		var err error
		if v, err = t.reconciler.Group(key); err != nil {
			return nil
		}
	}
	if item.Kind == feed.Snapshot {
		return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Snapshot{Snapshot: t.groupMessage(v)}}
	}
	return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Changed{Changed: &apiv1.GroupChanged{Seq: seq, Group: t.groupMessage(v)}}}
}
