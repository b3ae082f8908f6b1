package operators

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/storage"
)

// GetRecord implements the RPC.
func (o *Service) GetRecord(ctx context.Context, req *apiv1.GetRecordRequest) (*apiv1.GetRecordResponse, error) {
	key, err := callerOf(ctx).term.recordKey(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	obj, err := o.Store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(obj.Data) > maxRecord {
		return nil, nstance.FieldError("key", "read it from the storage itself", "%s has %d bytes, more than an answer holds", key, len(obj.Data))
	}
	resp := &apiv1.GetRecordResponse{Key: key, Version: string(obj.Version), Data: obj.Data}
	if err := records.Readable(key, obj.Data); err != nil {
		resp.Error = err.Error()
	}
	return resp, nil
}

// maxRecord bounds what GetRecord returns, in bytes: less than gRPC's own limit
// of 4 MiB for a message.
const maxRecord = 3 << 20

// RepairRecord implements the RPC.
func (o *Service) RepairRecord(ctx context.Context, req *apiv1.RepairRecordRequest) (*apiv1.RepairRecordResponse, error) {
	c := callerOf(ctx)
	ref, err := records.ParseInstanceKey(req.GetKey())
	switch {
	case err != nil:
		return nil, nstance.FieldError("key", "repair other objects in the storage itself, while no server leads", "%.200q is no instance's record", req.GetKey())
	case ref.Shard != o.Shard:
		return nil, nstance.FieldError("key", "ask a server of that shard", "%s is a record of shard %s", req.GetKey(), ref.Shard)
	case req.GetRemove() == (len(req.GetData()) > 0):
		return nil, nstance.FieldError("data", "give the new content, or say remove", "either new content or removal must be asked for, and not both")
	}
	data := req.GetData()
	if req.GetRemove() {
		data = nil
	}
	v := storage.Version(req.GetVersion())
	if req.GetDryRun() {
		return &apiv1.RepairRecordResponse{}, records.Rehearse(ctx, o.Store, req.GetKey(), v, data)
	}
	if err := c.term.Lease.Err(); err != nil {
		return nil, ports.ErrTermEnded
	}
	now, err := records.Repair(ctx, o.Store, req.GetKey(), v, data, c.term.Lease.Epoch())
	if unread := c.term.rereadRecords(ctx); err == nil && unread != nil {
		return nil, fmt.Errorf("%s is repaired, and not in force until it is read, repeat the call for that: %w", req.GetKey(), unread)
	}
	if err != nil {
		return nil, err
	}
	did := "replaced"
	if req.GetRemove() {
		did = "removed"
	}
	c.term.Journal(nstance.Event{
		Time: o.Now().UTC(), Type: eventtype.RecordRepaired, Tenant: ref.Tenant, Group: ref.Group, Instance: ref.ID,
		Reason: did + " by " + c.Subject,
	})
	return &apiv1.RepairRecordResponse{Version: string(now)}, nil
}

// rereadRecords puts in force what is durable, also after a repair that was refused or got
// no answer: an earlier one may have landed. It repeats what fails until ctx ends.
func (t *Term) rereadRecords(ctx context.Context) error {
	for {
		if err := t.Internals.Reread(ctx); err == nil || !sleep.For(ctx, time.Second) {
			return err
		}
	}
}

// recordKey returns the key of what is asked for: an instance's record by its
// ID, or an object of this shard by its key.
func (t *Term) recordKey(ctx context.Context, name string) (string, error) {
	shard := t.service.Shard
	if id, err := nstance.ParseInstanceID(name); err == nil {
		return t.recordOf(ctx, id)
	}
	own := []string{layout.ConfigKey(shard), layout.GroupsKey(shard), layout.StateKey(shard), layout.AcceptedKey(shard), layout.AttentionKey(shard), layout.LeaseKey(shard)}
	if slices.Contains(own, name) || strings.HasPrefix(name, layout.InstancePrefix(shard)) || strings.HasPrefix(name, layout.DefinitionPrefix(shard)) {
		return name, storage.ValidateKey(name)
	}
	return "", nstance.FieldError("key", "use an instance ID, or one of "+strings.Join(own, ", ")+", "+layout.InstancePrefix(shard)+"..., "+layout.DefinitionKey(shard, "..."),
		"%.200q is not an object of this shard", name)
}

// recordOf returns the key of an instance's record, readable or not.
func (t *Term) recordOf(ctx context.Context, id nstance.InstanceID) (string, error) {
	if rec, ok := t.Internals.Records().Get(id); ok {
		return rec.Ref(t.service.Shard).Key(), nil
	}
	for entry, err := range t.service.Store.List(ctx, layout.InstancePrefix(t.service.Shard), "") {
		if err != nil {
			return "", err
		}
		if strings.HasSuffix(entry.Key, "/"+string(id)+".json") {
			return entry.Key, nil
		}
	}
	return "", nstance.Errorf(nstance.NotFound, "the shard has no record of %s", id)
}
