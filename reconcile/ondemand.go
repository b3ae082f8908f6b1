package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// An OnDemandRequest asks for one instance outside of its group's size.
type OnDemandRequest struct {
	ID         nstance.InstanceID // chosen by the caller: of the definition's kind, its time at most 5 min from now
	Group      nstance.GroupKey   // that it belongs to
	Definition nstance.Definition // what it is made from
	Digest     string             // of what was asked for: the same ID with another digest is another request
	Reason     string             // for the journal: why, or who asked
	DryRun     bool               // only check

	// BootstrapData is the name of what its user data has as such. The group's is not
	// used.
	BootstrapData string

	// LoadBalancers are joined in place of the group's. Empty: those of the group,
	// also when they change.
	LoadBalancers []string

	// Admit may refuse a new instance; tenants is how many instances on demand its
	// tenant has. It is called under the reconciler's lock and must
	// not block. Nil: it does not.
	Admit func(tenants int) error
}

// maxIDAge is how far the time in an ID of a caller may be from this server's.
const maxIDAge = 5 * time.Minute

// sameAs fails with Conflict unless m is what req asks for. The error tells nothing
// about the instance, which may be another tenant's.
func (m *member) sameAs(req OnDemandRequest) error {
	if m.rec.OnDemand && m.group.key == req.Group && m.rec.Request == req.Digest {
		return nil
	}
	return errIDTaken(req.ID)
}

func errIDTaken(id nstance.InstanceID) error {
	return &nstance.Error{Code: nstance.Conflict, Field: "id", Msg: fmt.Sprintf("instance %s exists for another request", id), Remedy: "make a new ID"}
}

// checkRequest returns the group of a request for a new instance, or why it is
// refused.
func (s *shard) checkRequest(req OnDemandRequest, now time.Time) (*group, error) {
	g := s.groups[req.Group]
	_, orphan := s.orphans.Get(req.ID)
	switch off := req.ID.Time().Sub(now); {
	case g != nil && !g.defined() && g.configured.spec.Pending != "" && !g.isGone():
		return nil, nstance.Errorf(nstance.Unavailable, "group %s has no definition yet: %s", req.Group, g.configured.spec.Pending)
	case g == nil || !g.defined() || g.isGone():
		return nil, errNoGroup(req.Group)
	case req.ID.Kind() != req.Definition.Kind:
		return nil, nstance.FieldError("id", fmt.Sprintf("make one that begins with %s", req.Definition.Kind), "instances of group %s are of kind %s, not %s", req.Group, req.Definition.Kind, req.ID.Kind())
	case off > maxIDAge || off < -maxIDAge:
		return nil, nstance.FieldError("id", "make a new one, and check the clock", "its time is %s from now, more than %s", off.Round(time.Second), maxIDAge)
	case g.spec.Removing:
		return nil, nstance.Errorf(nstance.Conflict, "group %s is being removed", req.Group)
	case orphan || s.hasRecord(req.ID):
		return nil, errIDTaken(req.ID)
	case !s.usedIDs[req.ID].IsZero():
		return nil, &nstance.Error{Code: nstance.Conflict, Field: "id", Msg: fmt.Sprintf("instance %s is gone", req.ID), Remedy: "make a new ID"}
	}
	if err := s.thawed(req.Group); err != nil {
		return nil, err
	}
	if req.Admit == nil {
		return g, nil
	}
	return g, req.Admit(s.onDemand(req.Group.Tenant))
}

// onDemand counts the instances on demand of a tenant.
func (s *shard) onDemand(tenant nstance.TenantID) (n int) {
	for _, m := range s.members {
		if m.rec.OnDemand && m.rec.Tenant == tenant && m.state != nstance.Failed {
			n++
		}
	}
	return n
}

// requestAnotherGrant has m wait for another grant, which may be for another shape. Only its
// own calls are known to have made nothing: one of a former leader may still be under way.
func (s *shard) requestAnotherGrant(m *member) {
	s.places.ReturnAddress(m.subnet)
	m.createGrant = createGrant{grant: grantWanted, inFlight: m.inFlight, shape: m.shape}
	m.retryDue, m.machineCalls = time.Time{}, machineCalls{inheritedAt: m.inheritedAt}
}

// retryRefusedRequest has the create of m, an instance on demand that was refused for
// capacity or quota, or for another reason while other shapes are left, repeated with
// another grant, and reports whether it has. It needs the lock.
func (s *shard) retryRefusedRequest(m *member, err error) bool {
	code, now := nstance.CodeOf(err), s.opts.Now()
	if !m.rec.OnDemand || m.rec.Deleting != nil || s.launchOver(m, now) {
		return false
	}
	refusedShape := err == m.answeredWith && s.shapesLeft(m) //nolint:errorlint // the provider's answer itself
	if code != nstance.Capacity && code != nstance.Quota && !refusedShape {
		return false
	}
	s.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: code, Error: clip.Words(err.Error()), Reason: "it is tried again"})
	s.requestAnotherGrant(m)
	return true
}

// CreateInstance creates one instance on demand, and returns once its intent is
// durable: from then on it is created, or fails with an event. It is never counted in
// its group's size, nor replaced, nor removed for being silent. It is removed when it is
// reclaimed, gone, old enough (Expiry.OnDemandAge), or on request.
//
// The same request again returns the same instance, in whatever state it is by
// then. Fails with Conflict when any instance of the shard has the ID for
// another request, or had it a moment ago, when a record that cannot be read
// has it, and when the group is frozen or being removed; with NotFound when
// there is no such group, Invalid for an ID or a definition that does not fit,
// and Unavailable when ctx ends first: then it may still happen, and the same
// request finds out.
//
// A create that the provider refuses fails the instance, with a create_failed event,
// and then it is removed. So does a change of leader before there is a machine, if the
// new leader renders other bytes. A create without capacity is repeated, with other
// shapes, until the definition's launch timeout, and so is one whose machine was accepted
// and cannot start: that machine is deleted first.
func (r *Reconciler) CreateInstance(ctx context.Context, req OnDemandRequest) (InstanceView, error) {
	m, err := r.acceptRequest(req)
	if err != nil || m == nil {
		return InstanceView{}, err
	}
	err = r.await(ctx, func() bool {
		_, durable := r.records.Get(m.id)
		return durable || m.refusedWith != nil || r.members[m.id] != m
	})
	return r.readInstance(func() (*member, error) {
		_, durable := r.records.Get(m.id)
		switch {
		case err != nil:
		case durable:
			err = m.sameAs(req) // a former leader may have written another one's
		case m.refusedWith != nil:
			err = m.refusedWith
		case r.members[m.id] != m && r.usedIDs[m.id].IsZero():
			err = nstance.Errorf(nstance.Conflict, "instance %s was given up before it was made, for a freeze", m.id)
		}
		return m, err
	})
}

// acceptRequest returns the member that a request is for: a new one, or the one that an
// earlier call has made; nil for a dry run of a new one.
func (r *Reconciler) acceptRequest(req OnDemandRequest) (*member, error) {
	if _, err := nstance.ParseInstanceID(string(req.ID)); err != nil {
		return nil, err
	}
	w, err := desiredSpecFor(nstance.Group{Definition: req.Definition})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.loaded {
		return nil, errUnread
	}
	if m := r.members[req.ID]; m != nil {
		return m, m.sameAs(req)
	}
	now := r.opts.Now()
	g, err := r.checkRequest(req, now)
	if err != nil || req.DryRun {
		return nil, err
	}
	m := &member{id: req.ID, state: nstance.Pending, stepState: stepState{step: stepCreate}, requestState: requestState{requestedDefinition: &req.Definition, requestReason: req.Reason}, rec: records.Instance{
		ID: req.ID, Tenant: req.Group.Tenant, Group: req.Group.Group, OnDemand: true, Reason: string(plan.ReasonOnDemand), Request: req.Digest,
		CreatedAt: now.UTC().Truncate(time.Millisecond), CreatedEpoch: r.opts.Epoch, InfraHash: w.hash, RuntimeHash: w.runtime, LoadBalancers: slices.Clone(req.LoadBalancers),
		BootstrapData: req.BootstrapData,
		LaunchTimeout: req.Definition.LaunchTimeout, RegistrationTimeout: req.Definition.RegistrationTimeout,
	}}
	r.addMember(g, m)
	r.queue.Add(g.key, false)
	return m, nil
}
