package shards

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
)

// watchInstances follows the instances. As an executor it is where drains are
// carried out for as long as it lasts.
func (s *Shard) watchInstances(ctx context.Context, api apiv1.OperatorServiceClient, executor bool) error {
	stream, err := api.WatchInstanceEvents(ctx, &apiv1.WatchInstanceEventsRequest{AfterSeq: s.after.instances, DrainExecutor: executor})
	if err != nil {
		return wire.ErrorOf(err)
	}
	found := map[nstance.InstanceID]*apiv1.Instance{}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		switch m := msg.GetMessage().(type) {
		case *apiv1.WatchInstanceEventsResponse_Snapshot:
			found[nstance.InstanceID(m.Snapshot.GetId())] = m.Snapshot
			if d := wire.DrainOf(m.Snapshot.GetDrain()); d != nil {
				s.copyInstance(nstance.InstanceID(m.Snapshot.GetId()), m.Snapshot) // it may be acknowledged before the rest arrives
				s.startDrain(ctx, *d, m.Snapshot)
			}
		case *apiv1.WatchInstanceEventsResponse_Synced:
			s.after.instances = m.Synced.GetSeq()
			s.replaceInstances(ctx, found)
			found = map[nstance.InstanceID]*apiv1.Instance{}
			s.complete(func(l *listed) { l.instances = true })
		case *apiv1.WatchInstanceEventsResponse_Event:
			s.after.instances = m.Event.GetSeq()
			s.observe(ctx, wire.EventOf(m.Event))
		case *apiv1.WatchInstanceEventsResponse_Renewal:
			s.renew(m.Renewal.GetWithin())
		}
	}
}

// watchGroups follows the groups.
func (s *Shard) watchGroups(ctx context.Context, api apiv1.OperatorServiceClient) error {
	stream, err := api.WatchGroups(ctx, &apiv1.WatchGroupsRequest{AfterSeq: s.after.groups})
	if err != nil {
		return wire.ErrorOf(err)
	}
	found := map[nstance.GroupID]*apiv1.Group{}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		switch m := msg.GetMessage().(type) {
		case *apiv1.WatchGroupsResponse_Snapshot:
			found[nstance.GroupID(m.Snapshot.GetGroup())] = m.Snapshot
		case *apiv1.WatchGroupsResponse_Synced:
			s.after.groups = m.Synced.GetSeq()
			s.replaceGroups(found)
			found = map[nstance.GroupID]*apiv1.Group{}
			s.complete(func(l *listed) { l.groups = true })
		case *apiv1.WatchGroupsResponse_Changed:
			s.after.groups = m.Changed.GetSeq()
			s.putGroup(nstance.GroupID(m.Changed.GetGroup().GetGroup()), m.Changed.GetGroup())
		case *apiv1.WatchGroupsResponse_Removed:
			s.after.groups = m.Removed.GetSeq()
			s.putGroup(nstance.GroupID(m.Removed.GetGroup()), nil)
		case *apiv1.WatchGroupsResponse_Renewal:
			s.renew(m.Renewal.GetWithin())
		}
	}
}

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errEnded
	}
	return wire.ErrorOf(err)
}

func (s *Shard) renew(within *durationpb.Duration) {
	if s.opts.Renew != nil {
		s.opts.Renew(max(within.AsDuration(), renewalSpread))
	}
}

// observe takes an event over: the drain at once, the rest by asking for the
// instance.
func (s *Shard) observe(ctx context.Context, e nstance.Event) {
	if e.Instance == "" {
		return
	}
	if s.opts.Drains != nil {
		switch e.Type {
		case nstance.EventDrainStarted, nstance.EventDrainTightened, nstance.EventDrainReassigned:
			if e.Drain != nil {
				i, _ := s.Instance(e.Instance)
				s.startDrain(ctx, *e.Drain, i)
			}
		case nstance.EventDrainCancelled, nstance.EventWakeRequested: // waking ends the drain before parking
			s.cancelDrain(ctx, e.Instance)
		case nstance.EventDeleteRequested, nstance.EventDeleted, nstance.EventMachineGone:
			_ = s.opts.Drains.End(ctx, e.Instance) // never fails
		}
	}
	if e.Type == nstance.EventDeleted {
		s.gone(e.Instance)
	}
	s.ask(e.Instance)
}

// startDrain starts the drain of an instance; i: what is known of it. Its Node has the whole
// provider ID: others may have one that ends as the cloud's own ID of the machine does.
func (s *Shard) startDrain(ctx context.Context, d nstance.Drain, i *apiv1.Instance) {
	if s.opts.Drains == nil {
		return
	}
	d.ProviderID = cmp.Or(i.GetNodeProviderId(), d.ProviderID)
	if err := s.opts.Drains.Start(ctx, d); err != nil && !errors.Is(err, nstance.Conflict) { // an older generation is over
		s.opts.Log.Warn("drain refused", "instance", d.Instance, "error", err)
	}
}

// ask has an instance asked for.
func (s *Shard) ask(id nstance.InstanceID) {
	s.mu.Lock()
	s.stale[id] = true
	s.mu.Unlock()
	s.wakeRefresh()
}

func (s *Shard) wakeRefresh() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// refresh asks for instances that have changed: one by one, or for all of
// them in one go when there are many. Those that could not be asked for are asked for again a
// moment later: whether the server answers at all, the watches find out.
func (s *Shard) refresh(ctx context.Context, api apiv1.OperatorServiceClient) error {
	for failing := false; ; {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.mu.Lock()
		ids := slices.Collect(maps.Keys(s.stale))
		clear(s.stale)
		s.mu.Unlock()
		err := s.fetchAll(ctx, api, ids)
		switch {
		case errors.Is(err, nstance.Conflict): // another server leads
			return err
		case err != nil && !failing && ctx.Err() == nil:
			s.opts.Log.Warn("instances could not be asked for: asking again", "shard", s.opts.Name, "error", err)
		}
		if failing = err != nil; failing {
			sleep.For(ctx, throttleWait)
		}
	}
}

// fetchAll asks for instances, and leaves those that fail to be asked for.
func (s *Shard) fetchAll(ctx context.Context, api apiv1.OperatorServiceClient, ids []nstance.InstanceID) error {
	if len(ids) > refreshWidth {
		found, err := listInstances(ctx, api)
		if err != nil {
			for _, id := range ids {
				s.ask(id)
			}
			return err
		}
		for _, id := range ids {
			if found[id] != nil {
				s.putInstance(id, found[id])
			}
		}
		ids = slices.DeleteFunc(ids, func(id nstance.InstanceID) bool { return found[id] != nil })
	}
	errs := make([]error, len(ids))
	var questions errgroup.Group
	questions.SetLimit(refreshWidth)
	for i, id := range ids {
		questions.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, questionLimit)
			defer cancel()
			if errs[i] = s.fetch(ctx, api, id); errs[i] != nil {
				s.ask(id)
			}
			return nil
		})
	}
	_ = questions.Wait() // never fails
	return errors.Join(errs...)
}

func (s *Shard) fetch(ctx context.Context, api apiv1.OperatorServiceClient, id nstance.InstanceID) error {
	resp, err := api.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(id)})
	state := nstance.State(resp.GetInstance().GetState()) // of one that has ended, it is remembered for a while
	switch {
	case errors.Is(err, nstance.NotFound), state == nstance.Failed:
		s.forget(ctx, id)
	case err != nil:
		return err
	case state == nstance.Deleted:
		s.gone(id)
		s.forget(ctx, id)
	case unreadable(resp.GetInstance()):
		s.markUnreadable(id, resp.GetInstance())
	default:
		s.putInstance(id, resp.GetInstance())
	}
	return nil
}

// resync lists everything from time to time.
func (s *Shard) resync(ctx context.Context, api apiv1.OperatorServiceClient) error {
	for sleep.For(ctx, sleep.Jitter(resync)) {
		instances, err := listInstances(ctx, api)
		if err != nil {
			return err
		}
		for id := range s.differing(instances) {
			s.ask(id)
		}
	}
	return ctx.Err()
}

// differing returns the instances whose copy is not as they were listed. The
// list may be older than the copy: they are asked for.
func (s *Shard) differing(listed map[nstance.InstanceID]*apiv1.Instance) map[nstance.InstanceID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[nstance.InstanceID]bool{}
	for id, i := range listed {
		out[id] = !same(s.instances[id], i)
	}
	for id := range s.instances {
		out[id] = out[id] || listed[id] == nil
	}
	maps.DeleteFunc(out, func(_ nstance.InstanceID, differs bool) bool { return !differs })
	return out
}

// same compares all that changes with an event. Reports are none.
func same(a, b *apiv1.Instance) bool {
	return a.GetState() == b.GetState() && a.GetProviderId() == b.GetProviderId() &&
		a.GetNodeProviderId() == b.GetNodeProviderId() && a.GetMarket() == b.GetMarket() &&
		a.GetInstanceType() == b.GetInstanceType() && slices.Equal(a.GetAddresses(), b.GetAddresses()) && proto.Equal(a.GetDrain(), b.GetDrain()) &&
		a.GetStandby() == b.GetStandby() && proto.Equal(a.GetWokenAt(), b.GetWokenAt()) && unreadable(a) == unreadable(b)
}

// unreadable reports whether the shard could not read the record of an instance.
func unreadable(i *apiv1.Instance) bool { return slices.Contains(i.GetConditions(), wire.Unreadable) }

func listInstances(ctx context.Context, api apiv1.OperatorServiceClient) (map[nstance.InstanceID]*apiv1.Instance, error) {
	out := map[nstance.InstanceID]*apiv1.Instance{}
	for page, err := range pages(ctx, api) {
		if err != nil {
			return nil, err
		}
		for _, i := range page {
			out[nstance.InstanceID(i.GetId())] = i
		}
	}
	return out, nil
}

func pages(ctx context.Context, api apiv1.OperatorServiceClient) iter.Seq2[[]*apiv1.Instance, error] {
	return func(yield func([]*apiv1.Instance, error) bool) {
		req := &apiv1.ListInstancesRequest{}
		for {
			resp, err := api.ListInstances(ctx, req)
			if !yield(resp.GetInstances(), err) || err != nil || resp.GetNextPage() == "" {
				return
			}
			req.Page = resp.GetNextPage()
		}
	}
}

// replaceInstances takes a complete snapshot over. What is not in it is asked for:
// it may be gone, or its record cannot be read.
func (s *Shard) replaceInstances(ctx context.Context, found map[nstance.InstanceID]*apiv1.Instance) {
	s.mu.Lock()
	missing := maps.Clone(s.instances)
	maps.Copy(s.instances, found)
	s.mu.Unlock()
	for id, i := range found {
		delete(missing, id)
		if s.opts.Drains != nil && i.GetDrain() == nil { // the event that said so was lost
			s.cancelDrain(ctx, id)
		}
		s.instanceChanged(id, i)
	}
	for id := range missing {
		s.ask(id)
	}
}

// cancelDrain withdraws the mirrored drain of an instance.
func (s *Shard) cancelDrain(ctx context.Context, id nstance.InstanceID) {
	if d, ok := s.opts.Drains.Of(id); ok {
		_ = s.opts.Drains.Cancel(ctx, id, d.Generation) // never fails
	}
}

func (s *Shard) putInstance(id nstance.InstanceID, i *apiv1.Instance) {
	s.copyInstance(id, i)
	s.instanceChanged(id, i)
}

func (s *Shard) copyInstance(id nstance.InstanceID, i *apiv1.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[id] = i
}

// markUnreadable keeps the copy of an instance whose record the shard cannot read: its
// machine may run.
func (s *Shard) markUnreadable(id nstance.InstanceID, answer *apiv1.Instance) {
	if former, ok := s.Instance(id); ok {
		conditions := answer.GetConditions()
		answer = proto.CloneOf(former)
		answer.Conditions = conditions
	}
	s.putInstance(id, answer)
}

// forget drops the copy of an instance that the shard does not have any more.
func (s *Shard) forget(ctx context.Context, id nstance.InstanceID) {
	s.mu.Lock()
	former := s.instances[id]
	delete(s.instances, id)
	s.mu.Unlock()
	if s.opts.Drains != nil {
		_ = s.opts.Drains.End(ctx, id) // never fails
	}
	s.instanceChanged(id, former)
}

// gone is called when the shard says that it has deleted an instance, which it says
// only when the provider has confirmed that there is no machine.
func (s *Shard) gone(id nstance.InstanceID) {
	s.mu.Lock()
	last := s.instances[id]
	s.mu.Unlock()
	if s.opts.Gone != nil && last != nil {
		s.opts.Gone(id, last.GetNodeProviderId())
	}
}

func (s *Shard) instanceChanged(id nstance.InstanceID, i *apiv1.Instance) {
	if s.opts.InstanceChanged != nil {
		s.opts.InstanceChanged(id, nstance.GroupID(i.GetGroup()))
	}
}

func (s *Shard) replaceGroups(found map[nstance.GroupID]*apiv1.Group) {
	s.mu.Lock()
	changed := maps.Clone(s.groups)
	maps.Copy(changed, found)
	s.groups = maps.Clone(found)
	s.mu.Unlock()
	for id := range changed {
		s.groupChanged(id)
	}
}

func (s *Shard) putGroup(id nstance.GroupID, g *apiv1.Group) {
	s.mu.Lock()
	if g == nil {
		delete(s.groups, id)
	} else {
		s.groups[id] = g
	}
	s.mu.Unlock()
	s.groupChanged(id)
}

func (s *Shard) groupChanged(id nstance.GroupID) {
	if s.opts.GroupChanged != nil {
		s.opts.GroupChanged(id)
	}
}
