package operators

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/reconcile"
)

// maxInterrupted is how many instances one call interrupts.
const maxInterrupted = 1000

// Interrupt implements the RPC: a notice as the cloud would give it, through
// the same path.
func (o *Service) Interrupt(ctx context.Context, req *apiv1.InterruptRequest) (*apiv1.InterruptResponse, error) {
	c := callerOf(ctx)
	key, ids, err := c.interrupted(req)
	if err != nil {
		return nil, err
	}
	warning := 2 * time.Minute
	if req.GetNotice() != nil {
		warning = req.GetNotice().AsDuration()
	}
	n, err := rehearsedNotice(req.GetKind(), warning, o.Now().UTC())
	if err != nil {
		return nil, err
	}
	n.Source = notice.RehearsalSource + c.Subject
	resp := &apiv1.InterruptResponse{EventId: n.EventID}
	for _, id := range ids {
		resp.Instances = append(resp.Instances, string(id))
	}
	if req.GetDryRun() {
		resp.Plan = c.term.Internals.Rehearse(key, ids, n)
		return resp, nil
	}
	if err := c.term.Internals.Thawed(key); err != nil {
		return nil, err // the notice would be recorded without effect
	}
	if req.GetThroughMetadata() || o.InterruptThroughMetadata {
		resp.EventId = ""
		if err := c.term.Internals.ExpectRehearsal(ctx, ids, n.Source, warning); err != nil {
			return nil, err
		}
		return resp, o.announceAll(ids, n.Kind, warning)
	}
	return resp, c.term.receiveAll(ctx, ids, n)
}

// Drill interrupts members of a group as its configuration says. It begins once it is known
// which, and how.
func (t *Term) Drill(ctx context.Context, key nstance.GroupKey, d config.Drill) error {
	g, err := t.Reconciler.Group(key)
	if err != nil {
		return err
	}
	ids, err := t.oldestReady(g, max(1, d.Count.Of(g.Size)), false)
	if err != nil {
		return err
	}
	n, err := rehearsedNotice(string(d.Kind), d.Notice, t.service.Now().UTC())
	if err != nil {
		return err
	}
	n.Source = notice.RehearsalSource + "drill"
	if err := t.Internals.BeginDrill(ctx, key, d.Every); err != nil {
		return err
	}
	return t.receiveAll(ctx, ids, n)
}

// interrupted returns which instances a request names, all of one group.
func (c caller) interrupted(req *apiv1.InterruptRequest) (nstance.GroupKey, []nstance.InstanceID, error) {
	switch {
	case req.GetGroup() == "" && (req.GetCount() != 0 || req.GetTenant() != ""):
		return nstance.GroupKey{}, nil, nstance.FieldError("group", "name one, or leave count and tenant out", "is missing")
	case req.GetGroup() == "":
		v, err := c.instance(req.GetId())
		return v.Group, []nstance.InstanceID{v.ID}, err
	case req.GetId() != "":
		return nstance.GroupKey{}, nil, nstance.FieldError("id", "name an instance or a group", "is set beside group")
	case req.GetCount() < 0 || req.GetCount() > maxInterrupted:
		return nstance.GroupKey{}, nil, nstance.FieldError("count", fmt.Sprintf("use 1 to %d", maxInterrupted), "%d is out of range", req.GetCount())
	}
	g, err := c.existing(req.GetTenant(), req.GetGroup())
	if err != nil {
		return g.Key, nil, err
	}
	ids, err := c.term.oldestReady(g, int(max(1, req.GetCount())), req.GetForce())
	return g.Key, ids, err
}

// oldestReady returns the members of a group that have been there longest, of those
// that are ready and count in its size. Fails with Conflict if a real loss should not be added to what the
// group lacks already.
func (t *Term) oldestReady(g reconcile.GroupView, count int, force bool) ([]nstance.InstanceID, error) {
	var ready []reconcile.InstanceView
	for _, id := range t.Internals.InstanceIDs(func(key nstance.GroupKey) bool { return key == g.Key }) {
		if v, err := t.Reconciler.Instance(id); err == nil && v.State == nstance.Ready && !v.OnDemand && !v.Standby && !v.Preserved {
			ready = append(ready, v)
		}
	}
	remedy := "wait until it has them, or use force"
	switch {
	case len(ready) == 0:
		return nil, &nstance.Error{Code: nstance.Conflict, Msg: fmt.Sprintf("group %s has no ready members", g.Key), Remedy: "wait until it has some"}
	case force:
	case len(ready) < g.Size:
		return nil, &nstance.Error{Code: nstance.Conflict, Msg: fmt.Sprintf("group %s is not healthy: %d of %d members are ready", g.Key, len(ready), g.Size), Remedy: remedy}
	case count > g.Size:
		return nil, &nstance.Error{Code: nstance.Conflict, Msg: fmt.Sprintf("count %d is more than the size of group %s, %d", count, g.Key, g.Size), Remedy: "use a smaller count, or force for all of them"}
	}
	slices.SortFunc(ready, func(a, b reconcile.InstanceView) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	var ids []nstance.InstanceID
	for _, v := range ready[:min(count, len(ready))] {
		ids = append(ids, v.ID)
	}
	return ids, nil
}

// rehearsedNotice returns a notice of a kind that clouds announce, such that what it
// announces happens after warning.
func rehearsedNotice(kind string, warning time.Duration, now time.Time) (nstance.Notice, error) {
	if warning <= 0 || warning > time.Hour {
		return nstance.Notice{}, nstance.FieldError("notice", "use more than 0 and at most 1h", "%s is out of range", warning)
	}
	n := nstance.Notice{Kind: nstance.NoticeKind(kind), EventID: "rehearsal-" + now.Format("20060102T150405.000000000"), DetectedAt: now}
	switch n.Kind {
	case nstance.Reclaim, "":
		n.Kind, n.Action, n.Deadline = nstance.Reclaim, "terminate", now.Add(warning)
	case nstance.Rebalance:
	case nstance.Maintenance:
		n.NotBefore = now.Add(warning)
	default:
		return n, nstance.FieldError("kind", "use reclaim, rebalance or maintenance", "%.64q is none", kind)
	}
	return n, nil
}

// announceAll publishes reclaims on the machines' metadata services.
func (o *Service) announceAll(ids []nstance.InstanceID, kind nstance.NoticeKind, after time.Duration) error {
	if kind != nstance.Reclaim {
		return nstance.FieldError("kind", "use reclaim", "metadata services of this server announce no %s", kind)
	}
	for _, id := range ids {
		if err := o.Announce(id, after); err != nil {
			return err
		}
	}
	return nil
}

// receiveAll has the notice received for each instance, and returns when all of them
// are durable.
func (t *Term) receiveAll(ctx context.Context, ids []nstance.InstanceID, n nstance.Notice) error {
	durable := make(chan struct{}, len(ids))
	for _, id := range ids {
		t.Agents.ReceiveNotice(id, n, func() { durable <- struct{}{} })
	}
	for i := range ids {
		select {
		case <-durable:
		case <-ctx.Done():
			return nstance.Errorf(nstance.Unavailable, "%d of %d notices are not durable yet: %w", len(ids)-i, len(ids), ctx.Err())
		}
	}
	return nil
}
