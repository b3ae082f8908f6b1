package operators

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/reconcile"
)

// CreateInstance implements the RPC.
func (*Service) CreateInstance(ctx context.Context, req *apiv1.CreateInstanceRequest) (*apiv1.CreateInstanceResponse, error) {
	c := callerOf(ctx)
	id, err := nstance.ParseInstanceID(req.GetId())
	if err != nil {
		return nil, inField("id", err)
	}
	key, err := c.groupKey(req.GetTenant(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	o := config.Override{Vars: req.GetVars(), Market: purchaseOf(req.GetMarket())}
	if req.GetInstanceType() != "" {
		o.InstanceType = &req.InstanceType
	}
	if len(req.GetLoadBalancers()) > 0 {
		o.LoadBalancers = req.GetLoadBalancers()
	}
	if o.Args, err = config.ParseArgs(json.RawMessage(req.GetArgs())); err != nil {
		return nil, err
	}
	request := reconcile.OnDemandRequest{
		ID: id, Group: key, LoadBalancers: o.LoadBalancers, Digest: requestDigest(o), Reason: c.because(""), DryRun: req.GetDryRun(),
	}
	if err := c.defineInstance(ctx, &request, o, req.GetBootstrapData()); err != nil {
		return nil, err
	}
	v, err := c.term.Reconciler.CreateInstance(ctx, request)
	if err != nil {
		return nil, err
	}
	if v.ID == "" { // a dry run creates nothing
		v.ID, v.Group, v.OnDemand, v.State = id, key, true, nstance.Pending
	}
	return &apiv1.CreateInstanceResponse{Instance: instanceMessage(v)}, nil
}

// defineInstance completes a request with what the instance is made from. One that
// was accepted before stays accepted, whatever became of its group, and with the
// bootstrap data that it had then: tokens in it change while a client repeats its request.
func (c caller) defineInstance(ctx context.Context, req *reconcile.OnDemandRequest, o config.Override, data []byte) (err error) {
	if _, err := c.term.Reconciler.Instance(req.ID); err == nil {
		return nil
	}
	if o.BootstrapData, err = c.term.Groups.NameBootstrapData(ctx, data); err != nil {
		return err
	}
	spec, admit, err := c.term.Groups.DefineInstance(ctx, c.changer(""), req.Group, o)
	if err != nil {
		return err
	}
	req.Definition, req.BootstrapData, req.Admit = spec.Definition, spec.BootstrapData, admit
	if o.BootstrapData == "" || req.DryRun {
		return nil
	}
	return c.term.Groups.PutBootstrapData(ctx, o.BootstrapData, data)
}

// requestDigest identifies what was asked for: equal requests have equal ones. Bootstrap
// data is not part of it.
func requestDigest(o config.Override) string {
	data, err := json.Marshal(o)
	if err != nil {
		panic("operators: a request is not JSON: " + err.Error()) // its args were parsed
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// inField returns err as being about a field of the request.
func inField(field string, err error) error {
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		named := *e
		named.Field = field
		return &named
	}
	return err
}

// endOf returns the last state of an instance that is gone, and whether its events say
// that it has ended: it was deleted, or its create was refused.
func endOf(events []nstance.Event) (end nstance.State, ended bool) {
	for _, e := range events {
		switch e.Type {
		case nstance.EventCreateFailed:
			end, ended = nstance.Failed, true
		case nstance.EventCreated, nstance.EventRegistered:
			end, ended = nstance.Deleted, false
		case nstance.EventDeleted:
			ended = true
		}
	}
	return cmp.Or(end, nstance.Deleted), ended
}
