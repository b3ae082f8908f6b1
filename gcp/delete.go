package gcp

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// Delete implements [nstance.Provider]. It reads the machine, compares its
// marks, and deletes it by its number, which no later machine of that name has.
// While the cloud is still making the machine, its absence is no proof.
func (p *Provider) Delete(ctx context.Context, m nstance.Machine) error {
	zone, i, err := p.own(ctx, m)
	if nstance.CodeOf(err) == nstance.NotFound {
		zones := p.zones
		if zone != "" {
			zones = []string{zone}
		}
		h, readErr := p.histories(ctx, zones, string(m.ID))
		switch {
		case readErr != nil:
			return readErr
		case h.starting():
			return stillStarting(m.ID)
		}
		return h.lost(m.ID)
	}
	if err != nil {
		return err
	}
	number := strconv.FormatUint(i.GetId(), 10)
	graceful := i.GetScheduling().GetGracefulShutdown().GetEnabled()
	err = p.change(ctx, []string{"delete", number}, func(ctx context.Context, request string) (operationHandle, error) {
		q := &computepb.DeleteInstanceRequest{Project: p.o.Project, Zone: zone, Instance: number, RequestId: proto.String(request)}
		if graceful { // the machine has been drained
			q.NoGracefulShutdown = proto.Bool(true)
		}
		return p.instances.Delete(ctx, q)
	})
	if err = classify(err, p.path(zone, number), true); nstance.CodeOf(err) == nstance.Conflict { // which would say that it is another's
		return nstance.Errorf(nstance.Unavailable, "not yet: %v", err)
	}
	return err
}

// own reads a machine and refuses one that is not m. The handle of m says its zone; without
// one it is looked for in all. The zone is "" where no zone has it.
func (p *Provider) own(ctx context.Context, m nstance.Machine) (zone string, i *computepb.Instance, err error) {
	if _, err := nstance.ParseInstanceID(string(m.ID)); err != nil {
		return "", nil, err
	}
	if m.ProviderID == "" {
		zone, i, err = p.find(ctx, string(m.ID))
	} else if zone, err = p.handleZone(m); err == nil {
		i, err = p.instance(ctx, zone, string(m.ID))
	}
	if err != nil {
		return zone, nil, err
	}
	if found := p.machine(zone, i); found.ID != m.ID || found.Owner != m.Owner {
		return zone, nil, nstance.Errorf(nstance.Conflict, "machine %s is %q of %+v", m.ID, found.ID, found.Owner)
	}
	return zone, i, nil
}

// An operationHandle is what the SDK returns for a change.
type operationHandle interface {
	Proto() *computepb.Operation
}

// change makes a call with a request ID made from parts, so that a repeat while
// the first is under way is the same operation to the cloud. One that failed
// before this call is passed over, as Create does, and so is one whose failure was an
// answer before: a change that fails again and again is asked for again and again.
func (p *Provider) change(ctx context.Context, parts []string, call func(context.Context, string) (operationHandle, error)) error {
	began, first := time.Now(), requestID(parts...)
	request := p.failed.after(first)
	for replays := 0; ; replays++ {
		if err := before(ctx); err != nil {
			return err
		}
		handle, err := call(ctx, request)
		if err != nil {
			return err
		}
		op := handle.Proto()
		failed := failure(op)
		if failed == nil {
			return nil
		}
		request = requestID(append(parts[:len(parts):len(parts)], op.GetName())...)
		if replays == maxReplays || !p.older(op, began) {
			p.failed.note(first, request)
			return failed
		}
	}
}

// failedChanges remembers with which request ID a change is to be asked for after it has
// failed. It is safe for concurrent use.
type failedChanges struct {
	mu   sync.Mutex
	next map[string]string // by the first request ID
}

// maxFailedChanges bounds the memory: without it, the cloud's own has the failures.
const maxFailedChanges = 10_000

func (f *failedChanges) after(first string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.next[first], first)
}

func (f *failedChanges) note(first, next string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil || len(f.next) >= maxFailedChanges {
		f.next = map[string]string{}
	}
	f.next[first] = next
}
