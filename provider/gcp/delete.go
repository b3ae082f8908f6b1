package gcp

import (
	"context"
	"strconv"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// Delete implements [nstance.Provider]. It reads the machine, compares its
// marks, and deletes it by its number, which no later machine of that name has.
// While the cloud is still making the machine, its absence is no proof.
func (p *Provider) Delete(ctx context.Context, m nstance.Machine) error {
	i, err := p.own(ctx, m)
	if nstance.CodeOf(err) == nstance.NotFound {
		h, readErr := p.history(ctx, string(m.ID))
		switch {
		case readErr != nil:
			return readErr
		case h.starting():
			return nstance.Errorf(nstance.Unavailable, "machine %s is still being made", m.ID)
		}
		return h.lost(m.ID)
	}
	if err != nil {
		return err
	}
	number := strconv.FormatUint(i.GetId(), 10)
	graceful := i.GetScheduling().GetGracefulShutdown().GetEnabled()
	err = p.change(ctx, []string{"delete", number}, func(ctx context.Context, request string) (operationHandle, error) {
		q := &computepb.DeleteInstanceRequest{Project: p.o.Project, Zone: p.zone, Instance: number, RequestId: proto.String(request)}
		if graceful { // the machine has been drained
			q.NoGracefulShutdown = proto.Bool(true)
		}
		return p.instances.Delete(ctx, q)
	})
	return classify(err, p.path(number), true)
}

// own reads a machine and refuses one that is not m.
func (p *Provider) own(ctx context.Context, m nstance.Machine) (*computepb.Instance, error) {
	if _, err := nstance.ParseInstanceID(string(m.ID)); err != nil {
		return nil, err
	}
	if m.ProviderID != "" && m.ProviderID != p.handle(string(m.ID)) {
		return nil, nstance.Errorf(nstance.Conflict, "machine %s has the handle %.128q", m.ID, m.ProviderID)
	}
	i, err := p.instance(ctx, string(m.ID))
	if err != nil {
		return nil, err
	}
	if found := p.machine(i); found.ID != m.ID || found.Owner != m.Owner {
		return nil, nstance.Errorf(nstance.Conflict, "machine %s is %q of %+v", m.ID, found.ID, found.Owner)
	}
	return i, nil
}

// An operationHandle is what the SDK returns for a change.
type operationHandle interface {
	Proto() *computepb.Operation
}

// change makes a call with a request ID made from parts, so that a repeat while
// the first is under way is the same operation to the cloud. One that failed
// before this call is passed over, as Create does.
func (p *Provider) change(ctx context.Context, parts []string, call func(context.Context, string) (operationHandle, error)) error {
	began := time.Now()
	for replays := 0; ; replays++ {
		if err := before(ctx); err != nil {
			return err
		}
		handle, err := call(ctx, requestID(parts...))
		if err != nil {
			return err
		}
		op := handle.Proto()
		failed := failure(op)
		if failed == nil || replays == maxReplays || !startOf(op).Before(began.Add(-clockSkew)) {
			return failed
		}
		parts = append(parts[:len(parts):len(parts)], op.GetName())
	}
}
