package operators

import (
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// watched is one event for watchers of instances.
type watched struct {
	event    nstance.Event
	instance *reconcile.InstanceView // in a snapshot
	renew    bool                    // no event: watchers may have to renew their certificates
}

// Publish sends an event to watchers of instances, and returns its number.
func (t *Term) Publish(e nstance.Event) nstance.Seq {
	return t.events.publish(e.Tenant, watched{event: e})
}

// KeysChanged ends the streams with certificates whose authority is gone, and asks
// watchers to renew certificates whose authority is being retired.
func (t *Term) KeysChanged(trusts func(issuer string) bool) {
	t.streams.end(func(id nstance.Identity) error {
		if trusts(id.Issuer) {
			return nil
		}
		return ports.ErrUntrusted
	})
	t.events.publishToAll(watched{renew: true}) // through the feeds: a stream has one sender
	t.groupFeeds.publishToAll(groupChange{renew: true})
}

// drainTenant is the tenant whose drains the caller carries out if it is an executor;
// empty: every tenant.
func (c caller) drainTenant() nstance.TenantID {
	if c.Role == nstance.RoleAdmin {
		return ""
	}
	return c.Tenant
}

// WatchInstanceEvents implements the RPC. A watcher carries out drains only if its
// request says so.
func (*Service) WatchInstanceEvents(req *apiv1.WatchInstanceEventsRequest, stream grpc.ServerStreamingServer[apiv1.WatchInstanceEventsResponse]) error {
	ctx, c := stream.Context(), callerOf(stream.Context())
	if req.GetDrainExecutor() {
		if req.GetGroup() != "" || req.GetInstance() != "" {
			return nstance.FieldError("drain_executor", "watch without group and instance", "an executor must see every drain")
		}
		defer c.term.Drains.AddExecutor(c.drainTenant())()
	}
	wantsGroup := c.wants(req.GetGroup())
	wantsInstance := func(id nstance.InstanceID) bool { return req.GetInstance() == "" || string(id) == req.GetInstance() }
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.term.Lease.Context(), cancel)()
	// A watcher that does not read keeps Send waiting, which ctx does not end.
	defer c.term.closeAfterTerm(stream.Context())()
	view := feed.View[watched]{
		Snapshot: c.snapshot(wantsGroup, wantsInstance), Turn: c.watchTurn(req.GetDrainExecutor()),
		Keep: func(w watched) bool {
			if w.renew {
				return c.mustRenew()
			}
			return w.instance != nil || wantsGroup(nstance.GroupKey{Tenant: w.event.Tenant, Group: w.event.Group}) && wantsInstance(w.event.Instance)
		},
	}
	if req.GetAfterSeq() != 0 && c.mustRenew() { // a resumed watch may have no Synced
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
	if c.term.Lease.Err() != nil {
		return ports.ErrTermEnded
	}
	return nil
}

// snapshot returns the wanted instances, each as it is when it is sent, so that a slow
// watcher holds no copy of them all. The number is read first: an event meanwhile may
// be both in the snapshot and among the events, never in neither.
func (c caller) snapshot(wantsGroup func(nstance.GroupKey) bool, wantsInstance func(nstance.InstanceID) bool) func() (iter.Seq[watched], nstance.Seq) {
	return func() (iter.Seq[watched], nstance.Seq) {
		seq := c.term.events.of(c).Last()
		return func(yield func(watched) bool) {
			for _, id := range c.term.Internals.InstanceIDs(wantsGroup) {
				if !wantsInstance(id) {
					continue
				}
				if v, err := c.term.Reconciler.Instance(id); err == nil && !yield(watched{instance: &v}) {
					return
				}
			}
		}, seq
	}
}

// A groupChange is one event for watchers of groups.
type groupChange struct {
	key   nstance.GroupKey
	view  *reconcile.GroupView // nil: watchers are sent the group as it is by then
	gone  bool
	renew bool // no change: watchers may have to renew their certificates
}

// GroupChanged publishes a change of a group. It is called under the reconciler's lock.
func (t *Term) GroupChanged(v reconcile.GroupView, gone bool) {
	change := groupChange{key: v.Key, gone: gone}
	if !gone && bytesSet(v.Definition) <= maxKeptChange {
		change.view = &v
	}
	t.groupFeeds.publish(v.Key.Tenant, change)
	if gone && v.Removing && v.OnDemand == 0 {
		t.Groups.ForgetSoon(v.Key)
	}
}

// maxKeptChange is how many bytes of variables and arguments a group may have for its
// changes to be kept as they were: thousands of changes are kept.
const maxKeptChange = 4 << 10

// bytesSet returns how long the variables and arguments of a definition are.
func bytesSet(d nstance.Definition) int {
	n := len(d.Args)
	for name, value := range d.Vars {
		n += len(name) + len(value)
	}
	return n
}

// groupSnapshot returns every group. The number is read first: a change meanwhile may
// be both in the snapshot and among the events, never in neither.
func (c caller) groupSnapshot() (iter.Seq[groupChange], nstance.Seq) {
	seq := c.term.groupFeeds.of(c).Last()
	return func(yield func(groupChange) bool) {
		for _, key := range c.term.Internals.GroupKeys() {
			if !yield(groupChange{key: key}) {
				return
			}
		}
	}, seq
}

// awaitGroups returns once every group is known: a snapshot must lack none.
func (t *Term) awaitGroups(ctx context.Context) error {
	ctx, cancel := t.Bound(ctx)
	defer cancel()
	return t.Groups.Await(ctx)
}

// WatchGroups implements the RPC.
func (*Service) WatchGroups(req *apiv1.WatchGroupsRequest, stream grpc.ServerStreamingServer[apiv1.WatchGroupsResponse]) error {
	c := callerOf(stream.Context())
	if err := c.term.awaitGroups(stream.Context()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(c.term.Lease.Context(), cancel)()
	// A watcher that does not read keeps Send waiting, which ctx does not end.
	defer c.term.closeAfterTerm(stream.Context())()
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
	if req.GetAfterSeq() != 0 && c.mustRenew() { // a resumed watch may have no Synced
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
	if c.term.Lease.Err() != nil {
		return ports.ErrTermEnded
	}
	return nil
}

// groupWatchMessage returns the message for an item; nil for a change of a group that
// is gone by now: another item says so.
func (t *Term) groupWatchMessage(item feed.Item[groupChange]) *apiv1.WatchGroupsResponse {
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
		if v, err = t.Reconciler.Group(key); err != nil {
			return nil
		}
	}
	if item.Kind == feed.Snapshot {
		return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Snapshot{Snapshot: t.groupMessage(v)}}
	}
	return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Changed{Changed: &apiv1.GroupChanged{Seq: seq, Group: t.groupMessage(v)}}}
}

// mustRenew reports whether the authority of the caller's certificate is being
// retired.
func (c caller) mustRenew() bool { return c.Issuer != c.service.Issuer() }

func (c caller) renewal() *apiv1.RenewalRequest {
	return &apiv1.RenewalRequest{Within: durationpb.New(c.term.Agents.RenewalSpread())}
}

func (c caller) askWatcher() *apiv1.WatchInstanceEventsResponse {
	return &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Renewal{Renewal: c.renewal()}}
}

func (c caller) askGroupWatcher() *apiv1.WatchGroupsResponse {
	return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Renewal{Renewal: c.renewal()}}
}

// watchMessages returns the messages for an item. A new watcher is asked to renew once
// its snapshot is complete: no later request is missed then.
func (c caller) watchMessages(item feed.Item[watched]) []*apiv1.WatchInstanceEventsResponse {
	switch {
	case item.Value.renew:
		return []*apiv1.WatchInstanceEventsResponse{c.askWatcher()}
	case item.Kind == feed.Synced && c.mustRenew():
		return []*apiv1.WatchInstanceEventsResponse{watchMessage(item), c.askWatcher()}
	}
	return []*apiv1.WatchInstanceEventsResponse{watchMessage(item)}
}

// groupWatchMessages is watchMessages for groups.
func (c caller) groupWatchMessages(item feed.Item[groupChange]) []*apiv1.WatchGroupsResponse {
	switch {
	case item.Value.renew:
		return []*apiv1.WatchGroupsResponse{c.askGroupWatcher()}
	case item.Kind == feed.Synced && c.mustRenew():
		return []*apiv1.WatchGroupsResponse{c.term.groupWatchMessage(item), c.askGroupWatcher()}
	}
	if m := c.term.groupWatchMessage(item); m != nil {
		return []*apiv1.WatchGroupsResponse{m}
	}
	return nil
}

func watchMessage(item feed.Item[watched]) *apiv1.WatchInstanceEventsResponse {
	switch item.Kind {
	case feed.Snapshot:
		return &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Snapshot{Snapshot: instanceMessage(*item.Value.instance)}}
	case feed.Synced:
		return &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Synced{Synced: &apiv1.Synced{Seq: uint64(item.Seq)}}}
	}
	e := item.Value.event
	e.Seq = item.Seq
	return &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Event{Event: wire.Event(e)}}
}
