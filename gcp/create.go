package gcp

import (
	"context"
	"crypto/sha1"
	"fmt"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// maxReplays is how many failures of earlier calls one call passes over.
const maxReplays = 3

// Create implements [nstance.Provider]. It is one call, and returns when the
// cloud has accepted it; whether the machine came to be, Get says. The same spec
// has the same request ID, so that a repeat is the same operation to the cloud.
// That also repeats an operation that failed: then a new request ID follows,
// made from the failed operation.
//
// With several zones it first reads whether another one has the machine: one read for each.
//
// A machine whose type cannot move to another host is asked for again with that said, if
// the cloud refuses it for nothing else.
func (p *Provider) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	body, err := p.o.request(p.zone, spec)
	if err != nil {
		return nstance.Machine{}, err
	}
	zone, _, _ := p.o.splitSubnet(p.zone, spec.Subnet)
	if err := p.checkOtherZones(ctx, string(spec.ID), zone); err != nil {
		return nstance.Machine{}, err
	}
	p.maintain(ctx, zone, body)
	p.seen.add(string(spec.ID), zone)
	began := time.Now()
	request := requestID("insert", p.path(zone, string(spec.ID)), digestOf(spec))
	tried := map[string]bool{}
	for replays := 0; ; replays++ {
		if err := before(ctx); err != nil {
			return nstance.Machine{}, err
		}
		tried[request] = true
		op, err := p.instances.Insert(ctx, &computepb.InsertInstanceRequest{
			Project: p.o.Project, Zone: zone, RequestId: proto.String(request), InstanceResource: body,
		})
		if err := classify(err, "", true); err != nil {
			switch {
			case machineExists(err, p.path(zone, string(spec.ID))):
				return p.adopt(ctx, zone, spec, body, tried)
			case nstance.CodeOf(err) == nstance.Conflict: // with something else: nothing was made
				return nstance.Machine{}, nstance.Errorf(nstance.Invalid, "%v", err)
			}
			if p.cannotMove(body, err) {
				request = requestID("insert", p.path(zone, string(spec.ID)), digestOf(spec), terminateOnMaintenance)
				continue
			}
			return nstance.Machine{}, err
		}
		o := op.Proto()
		switch failed := failure(o); {
		case failed != nil && replays < maxReplays && p.older(o, began):
			request = requestID("insert", p.path(zone, string(spec.ID)), digestOf(spec), o.GetName())
		case failed != nil:
			return nstance.Machine{}, failed
		case o.GetName() == "":
			return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "the cloud named no operation")
		case o.GetStatus() == computepb.Operation_DONE:
			return p.adopt(ctx, zone, spec, body, tried)
		default:
			return p.accepted(zone, body), nil
		}
	}
}

// accepted returns the machine that the cloud is making.
func (p *Provider) accepted(zone string, body *computepb.Instance) nstance.Machine {
	m := p.machine(zone, body)
	m.Status = nstance.StatusPending
	return m
}

// adopt returns the machine that there is already under the spec's ID, if it was
// made from this spec.
func (p *Provider) adopt(ctx context.Context, zone string, spec nstance.MachineSpec, body *computepb.Instance, tried map[string]bool) (nstance.Machine, error) {
	i, err := p.instance(ctx, zone, string(spec.ID))
	if nstance.CodeOf(err) == nstance.NotFound {
		return p.adoptUnseen(ctx, zone, spec, body, tried)
	}
	if err != nil {
		return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "the machine exists and cannot be read: %w", err)
	}
	m := p.machine(zone, i)
	if m.ID != spec.ID || m.Owner != spec.Owner || i.GetLabels()[labelDigest] != digestOf(spec) {
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s exists with another owner or other parameters", spec.ID)
	}
	return m, nil
}

// adoptUnseen decides about a machine that exists, says the cloud, and that it
// does not show: not yet, or no more.
func (p *Provider) adoptUnseen(ctx context.Context, zone string, spec nstance.MachineSpec, body *computepb.Instance, tried map[string]bool) (nstance.Machine, error) {
	h, err := p.history(ctx, zone, string(spec.ID))
	if err != nil {
		return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "the machine exists and cannot be read: %w", err)
	}
	switch {
	case h.insert == nil || failure(h.insert) != nil:
		return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "machine %s exists and is not shown", spec.ID)
	case !tried[h.insert.GetClientOperationId()]:
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s is being made with other parameters", spec.ID)
	case h.starting() || h.cause == "" && p.clock.at(time.Now()).Sub(startOf(h.insert)) < consistency:
		return p.accepted(zone, body), nil
	}
	return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s existed and is gone", spec.ID)
}

// requestID makes a UUID (RFC 9562, version 5) from what a request is about.
func requestID(parts ...string) string {
	h := sha1.New() //nolint:gosec // RFC 9562 says so; it keeps nothing safe
	h.Write([]byte("nstance"))
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	b := h.Sum(nil)[:16]
	b[6], b[8] = b[6]&0x0f|0x50, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
