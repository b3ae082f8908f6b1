package gcp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// A history is what a zone's operations say of one machine since it was last
// made or started.
type history struct {
	insert *computepb.Operation // the latest
	cause  nstance.LossCause
	reason string // in the cloud's words; may be empty
}

// systemCauses are the types of the operations by which the cloud itself ends a
// machine. The first that is found counts: our own delete comes after a reclaim.
var systemCauses = map[string]nstance.LossCause{
	"compute.instances.preempted":                  nstance.LossReclaimed,
	"compute.instances.hostError":                  nstance.LossHost,
	"compute.instances.terminateOnHostMaintenance": nstance.LossHost,
	"compute.instances.guestTerminate":             nstance.LossGuest,
}

// history reads the operations of a machine. The filter is a regular expression
// on the target: its host differs between the API's endpoints.
func (p *Provider) history(ctx context.Context, zone, name string) (history, error) {
	all, err := p.operationList(ctx, zone, fmt.Sprintf(`targetLink eq ".*/zones/%s/instances/%s"`, zone, name))
	if err != nil {
		return history{}, err
	}
	slices.SortStableFunc(all, func(a, b *computepb.Operation) int { return startOf(b).Compare(startOf(a)) })
	return read(all), nil
}

// histories reads the operations of a machine in several zones, and returns the history of
// the zone that is making it, else of the one that was asked for it last.
func (p *Provider) histories(ctx context.Context, zones []string, name string) (history, error) {
	all := make([]history, len(zones))
	errs := make([]error, len(zones))
	inZones(zones, func(i int, zone string) { all[i], errs[i] = p.history(ctx, zone, name) })
	for _, err := range errs {
		if err != nil {
			return history{}, err
		}
	}
	return slices.MaxFunc(all, history.compare), nil
}

// compare orders histories of one machine in several zones by how much they say of it now.
func (h history) compare(o history) int {
	return cmp.Or(truth(h.starting(), o.starting()), startOf(h.insert).Compare(startOf(o.insert)), truth(h.cause != "", o.cause != ""))
}

func truth(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// read goes through operations, the latest first. An attempt before the last one
// was another machine, with another number.
func read(all []*computepb.Operation) history {
	var h history
	if i := slices.IndexFunc(all, func(op *computepb.Operation) bool { return op.GetOperationType() == "insert" }); i >= 0 {
		h.insert = all[i]
	}
	for _, op := range all {
		if h.insert.GetTargetId() != op.GetTargetId() && h.insert != nil {
			continue
		}
		kind := op.GetOperationType()
		done := op.GetStatus() == computepb.Operation_DONE
		failed := failure(op)
		cause, system := systemCauses[kind]
		switch {
		case system:
			h.add(cause, op.GetStatusMessage())
			if cause == nstance.LossReclaimed {
				return h
			}
		case kind == "insert" || kind == "start" || kind == "resume":
			if failed != nil {
				h.add(lossOf(op, failed), failed.Error()) // the machine was never made or started
			}
			if kind != "insert" && failed == nil {
				return h // what was before it does not count any more
			}
		case (kind == "delete" || kind == "stop" || kind == "suspend") && done && failed == nil:
			h.requested()
		}
	}
	return h
}

// add records a cause, before any request of ours.
func (h *history) add(cause nstance.LossCause, reason string) {
	if h.cause == "" || h.cause == nstance.LossRequested || cause == nstance.LossReclaimed {
		h.cause, h.reason = cause, reason
	}
}

func (h *history) requested() {
	if h.cause == "" {
		h.cause = nstance.LossRequested
	}
}

// starting reports whether the cloud is still making the machine, which nothing
// has ended since.
func (h *history) starting() bool {
	return h.insert != nil && h.insert.GetStatus() != computepb.Operation_DONE && h.cause == ""
}

// stillStarting is the error about a machine that the cloud has accepted and does not show
// yet.
func stillStarting(id nstance.InstanceID) error {
	return nstance.Errorf(nstance.Unavailable, "machine %s is still being made", id)
}

// lost returns the error about a machine that is absent.
func (h *history) lost(id nstance.InstanceID) error {
	if h.reason != "" {
		return nstance.Lost(h.cause, "no machine %s: %s", id, h.reason)
	}
	return nstance.Lost(h.cause, "no machine %s", id)
}

// reclaimed returns the numbers of the machines of a zone that the cloud has reclaimed, as
// long as it remembers.
func (p *Provider) reclaimed(ctx context.Context, zone string) (map[uint64]bool, error) {
	all, err := p.operationList(ctx, zone, `operationType = "compute.instances.preempted"`)
	out := map[uint64]bool{}
	for _, op := range all {
		out[op.GetTargetId()] = true
	}
	return out, err
}

// operationList returns the operations of a zone that a filter permits.
func (p *Provider) operationList(ctx context.Context, zone, filter string) ([]*computepb.Operation, error) {
	client, err := compute.NewZoneOperationsRESTClient(ctx, p.bound(ctx)...)
	if err != nil {
		return nil, err
	}
	it := client.List(ctx, &computepb.ListZoneOperationsRequest{Project: p.o.Project, Zone: zone, Filter: proto.String(filter)})
	var all []*computepb.Operation
	err = eachPage(ctx, "operations", it.InternalFetch, func() any { return it.Response }, func(page []*computepb.Operation) bool {
		all = append(all, page...)
		return true
	})
	return all, err
}

// startOf returns when an operation was accepted.
func startOf(op *computepb.Operation) time.Time {
	t, _ := time.Parse(time.RFC3339, op.GetInsertTime()) // zero: the oldest
	return t
}
