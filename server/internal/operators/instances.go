package operators

import (
	"context"
	"errors"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/reconcile"
)

// ListInstances implements the RPC.
func (*Service) ListInstances(ctx context.Context, req *apiv1.ListInstancesRequest) (*apiv1.ListInstancesResponse, error) {
	c, resp := callerOf(ctx), &apiv1.ListInstancesResponse{}
	ids := c.term.Internals.InstanceIDs(c.wants(req.GetGroup()))
	var err error
	resp.Instances, resp.NextPage, err = pageOf(req, ids, func(id nstance.InstanceID) string { return string(id) }, func(id nstance.InstanceID) *apiv1.Instance {
		v, err := c.term.Reconciler.Instance(id)
		if err != nil { // deleted meanwhile
			return nil
		}
		return instanceMessage(v)
	})
	return resp, err
}

// wants returns a function that reports whether the caller may see a group and asks
// for it; an empty name asks for all.
func (c caller) wants(group string) func(nstance.GroupKey) bool {
	return func(key nstance.GroupKey) bool {
		return c.sees(key.Tenant) && (group == "" || string(key.Group) == group)
	}
}

// instance returns an instance that the caller may know of. Fails as
// reconcile.Reconciler.Instance does.
func (c caller) instance(id string) (reconcile.InstanceView, error) {
	parsed, err := nstance.ParseInstanceID(id)
	if err != nil {
		return reconcile.InstanceView{}, err
	}
	v, err := c.term.Reconciler.Instance(parsed)
	if !errors.Is(err, nstance.NotFound) && !c.sees(v.Group.Tenant) {
		err = nstance.Errorf(nstance.NotFound, "no instance %s", id)
	}
	return v, err
}

// GetInstance implements the RPC. A deleted instance still has its life in the ledger, and
// events while they are in the journal.
func (o *Service) GetInstance(ctx context.Context, req *apiv1.GetInstanceRequest) (*apiv1.GetInstanceResponse, error) {
	c := callerOf(ctx)
	id, err := nstance.ParseInstanceID(req.GetId())
	if err != nil {
		return nil, err
	}
	filter := journal.Filter{Instance: id, Limit: 1000, Newest: true}
	if c.Role != nstance.RoleAdmin {
		filter.Tenant = c.Tenant
	}
	events, err := o.Events.Events(ctx, filter)
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
		resp.Instance, resp.Life = instanceMessage(v), c.openLife(id, events)
		if fields, derr := c.term.Reconciler.Drift(ctx, id); derr == nil { // an unreadable definition must not hide the rest
			resp.Instance.Drift = c.changeMessages(fields)
		}
	case errors.Is(err, nstance.Unavailable):
		resp.Instance = formerMessage(v.ID, v.Group)
		resp.Instance.Conditions = []string{wire.Unreadable}
	default:
		return resp, o.describeEnded(ctx, c, id, events, resp, err)
	}
	return resp, nil
}

// describeEnded adds an instance without a record to an answer, from the ledger and from
// its events. It fails with missing where neither knows that it has ended.
func (o *Service) describeEnded(ctx context.Context, c caller, id nstance.InstanceID, events []nstance.Event, resp *apiv1.GetInstanceResponse, missing error) error {
	end, ended := endOf(events)
	life, problems, err := o.endedLife(ctx, c, id)
	resp.Life, resp.Problems = life, problems
	switch {
	case life != nil:
		resp.Instance = endedInstance(life)
	case ended:
		resp.Instance = formerMessage(id, nstance.GroupKey{Tenant: events[0].Tenant, Group: events[0].Group})
	case err != nil:
		return err
	default:
		return missing
	}
	if ended {
		resp.Instance.State = string(end)
	}
	return nil
}

// formerMessage returns what is known of an instance without a readable record.
func formerMessage(id nstance.InstanceID, group nstance.GroupKey) *apiv1.Instance {
	return &apiv1.Instance{Id: string(id), Tenant: string(group.Tenant), Group: string(group.Group), CreatedAt: wire.Time(id.Time())}
}

// DeleteInstance implements the RPC.
func (*Service) DeleteInstance(ctx context.Context, req *apiv1.DeleteInstanceRequest) (*apiv1.DeleteInstanceResponse, error) {
	c := callerOf(ctx)
	v, err := c.instance(req.GetId())
	if err == nil && req.GetDryRun() {
		err = c.term.Internals.Removable(v.ID)
	}
	if err != nil || req.GetDryRun() {
		return &apiv1.DeleteInstanceResponse{}, err
	}
	return &apiv1.DeleteInstanceResponse{}, c.term.Reconciler.Delete(ctx, v.ID, c.because(""), req.GetNoDrain())
}

// DrainInstance implements the RPC.
func (*Service) DrainInstance(ctx context.Context, req *apiv1.DrainInstanceRequest) (*apiv1.DrainInstanceResponse, error) {
	c := callerOf(ctx)
	v, err := c.instance(req.GetId())
	if err == nil && req.GetDryRun() {
		err = c.term.Internals.Removable(v.ID)
	}
	if err != nil || req.GetDryRun() {
		return &apiv1.DrainInstanceResponse{}, err
	}
	d, err := c.term.Reconciler.Drain(ctx, v.ID, c.because(req.GetReason()))
	return &apiv1.DrainInstanceResponse{Drain: wire.Drain(&d)}, err
}

// AcknowledgeDrained implements the RPC.
func (*Service) AcknowledgeDrained(ctx context.Context, req *apiv1.AcknowledgeDrainedRequest) (*apiv1.AcknowledgeDrainedResponse, error) {
	c := callerOf(ctx)
	v, err := c.instance(req.GetId())
	if err != nil {
		return nil, err
	}
	err = c.term.Drains.Acknowledge(ctx, nstance.Ack{
		Instance: v.ID, Generation: req.GetGeneration(), By: nstance.ExecutorOperator,
		Outcome: nstance.Outcome(req.GetOutcome()), Delete: req.GetDelete(), Message: req.GetMessage(),
	})
	if errors.Is(err, nstance.NotFound) && v.State == nstance.Draining && v.Drain != nil && v.Drain.Generation == req.GetGeneration() {
		err = nstance.Errorf(nstance.Unavailable, "drain %d of %s is on record and not announced yet: repeat", req.GetGeneration(), v.ID)
	}
	return &apiv1.AcknowledgeDrainedResponse{}, err
}
