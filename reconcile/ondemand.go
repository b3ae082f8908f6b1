package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// An OnDemandRequest asks for one instance outside of its group's size.
type OnDemandRequest struct {
	ID         nstance.InstanceID // chosen by the caller: of the definition's kind, its time at most 5 min from now
	Group      nstance.GroupKey   // that it belongs to
	Definition nstance.Definition // what it is made from
	Digest     string             // of what was asked for: the same ID with another digest is another request
	Reason     string             // for the journal: why, or who asked
	DryRun     bool               // only check

	// LoadBalancers are joined in place of the group's. Empty: those of the group,
	// also when they change.
	LoadBalancers []string

	// Admit may refuse a new instance; tenants is how many instances on demand its
	// tenant has. It is called under the reconciler's lock and must
	// not block. Nil: it does not.
	Admit func(tenants int) error
}

// A requestState is what is known of an instance on demand until it has a machine.
type requestState struct {
	requestedDefinition *nstance.Definition // what it is made from
	requestReason       string              // of the request
	needsNewToken       bool                // its token made a machine that is gone: the next create needs another one
	refusedWith         error               // why its create was definitely refused; also of others
}

// maxIDAge is how far the time in an ID of a caller may be from this server's.
const maxIDAge = 5 * time.Minute

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
// shapes, until the definition's launch timeout.
func (r *Reconciler) CreateInstance(ctx context.Context, req OnDemandRequest) (InstanceView, error) {
	m, err := r.acceptRequest(req)
	if err != nil || m == nil {
		return InstanceView{}, err
	}
	err = r.await(ctx, func() bool {
		_, durable := r.records.Get(m.id)
		return durable || m.refusedWith != nil || r.members[m.id] != m
	})
	r.mu.Lock()
	defer r.mu.Unlock()
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
	return r.instanceView(m), err
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
		return nil, nstance.Errorf(nstance.Unavailable, "the shard is not read yet")
	}
	if m := r.members[req.ID]; m != nil {
		return m, m.sameAs(req)
	}
	now := r.opts.Now()
	g, err := r.checkRequest(req, now)
	if err != nil || req.DryRun {
		return nil, err
	}
	m := &member{id: req.ID, state: nstance.Pending, step: stepCreate, requestState: requestState{requestedDefinition: &req.Definition, requestReason: req.Reason}, rec: storage.Instance{
		ID: req.ID, Tenant: req.Group.Tenant, Group: req.Group.Group, OnDemand: true, Reason: string(plan.ReasonOnDemand), Request: req.Digest,
		CreatedAt: now.UTC().Truncate(time.Millisecond), CreatedEpoch: r.opts.Epoch, InfraHash: w.hash, RuntimeHash: w.runtime, LoadBalancers: slices.Clone(req.LoadBalancers),
		LaunchTimeout: req.Definition.LaunchTimeout, RegistrationTimeout: req.Definition.RegistrationTimeout,
	}}
	r.addMember(g, m)
	r.queue.add(g.key, false)
	return m, nil
}

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
// refused. It needs the lock.
func (r *Reconciler) checkRequest(req OnDemandRequest, now time.Time) (*group, error) {
	g := r.groups[req.Group]
	switch off := req.ID.Time().Sub(now); {
	case g != nil && !g.defined() && g.configured.spec.Pending != "" && !g.isGone():
		return nil, nstance.Errorf(nstance.Unavailable, "group %s has no definition yet: %s", req.Group, g.configured.spec.Pending)
	case g == nil || !g.defined() || g.isGone():
		return nil, nstance.Errorf(nstance.NotFound, "no group %s", req.Group)
	case req.ID.Kind() != req.Definition.Kind:
		return nil, nstance.FieldError("id", fmt.Sprintf("make one that begins with %s", req.Definition.Kind), "instances of group %s are of kind %s, not %s", req.Group, req.Definition.Kind, req.ID.Kind())
	case off > maxIDAge || off < -maxIDAge:
		return nil, nstance.FieldError("id", "make a new one, and check the clock", "its time is %s from now, more than %s", off.Round(time.Second), maxIDAge)
	case g.spec.Removing:
		return nil, nstance.Errorf(nstance.Conflict, "group %s is being removed", req.Group)
	case r.isOrphan(req.ID) || r.hasRecord(req.ID):
		return nil, errIDTaken(req.ID)
	case !r.usedIDs[req.ID].IsZero():
		return nil, &nstance.Error{Code: nstance.Conflict, Field: "id", Msg: fmt.Sprintf("instance %s is gone", req.ID), Remedy: "make a new ID"}
	}
	if err := r.thawed(req.Group); err != nil {
		return nil, err
	}
	if req.Admit == nil {
		return g, nil
	}
	return g, req.Admit(r.onDemand(req.Group.Tenant))
}

func (r *Reconciler) isOrphan(id nstance.InstanceID) bool {
	_, ok := r.orphans.Get(id)
	return ok
}

// onDemand counts the instances on demand of a tenant. It needs the lock.
func (r *Reconciler) onDemand(tenant nstance.TenantID) (n int) {
	for _, m := range r.members {
		if m.rec.OnDemand && m.rec.Tenant == tenant && m.state != nstance.Failed {
			n++
		}
	}
	return n
}

// rememberUsedID remembers the ID of an instance on demand that is gone, until it is
// too old to be used again. It needs the lock.
func (r *Reconciler) rememberUsedID(m *member) {
	if !m.rec.OnDemand || !m.durable {
		return
	}
	now := r.opts.Now()
	for id := range r.usedIDs {
		if now.Sub(id.Time()) > 2*maxIDAge {
			delete(r.usedIDs, id)
		}
	}
	r.usedIDs[m.id] = now
}

// definition returns what decides the shape of m: its own definition, or until that
// has been read its group's.
func (m *member) definition() nstance.Definition {
	if m.requestedDefinition != nil {
		return *m.requestedDefinition
	}
	return m.group.spec.Definition
}

// lacksGrant has the create of m, whose intent is durable now, wait for a grant if
// it has none.
func (r *Reconciler) lacksGrant(m *member, rec storage.Instance) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !m.rec.OnDemand || m.grant == granted {
		return false
	}
	m.rec, m.grant = rec, grantWanted
	return true
}

// retryRefusedRequest has the create of m, an instance on demand that was refused for
// capacity or quota, repeated with another grant, and reports whether it has. It needs
// the lock.
func (r *Reconciler) retryRefusedRequest(m *member, err error) bool {
	code, now := nstance.CodeOf(err), r.opts.Now()
	if !m.rec.OnDemand || code != nstance.Capacity && code != nstance.Quota || m.rec.Deleting != nil || m.launchOver(now) {
		return false
	}
	r.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: code, Error: err.Error(), Reason: "it is tried again"})
	r.requestAnotherGrant(m)
	return true
}

// launchOver reports whether the launch timeout of m has passed.
func (m *member) launchOver(now time.Time) bool {
	by := after(m.rec.CreatedAt, m.rec.LaunchTimeout)
	return !by.IsZero() && !now.Before(by)
}

// requestAnotherGrant has m wait for another grant, which may be for another shape.
func (r *Reconciler) requestAnotherGrant(m *member) {
	m.throttled = false
	r.wantGrant(m)
	m.retryDue, m.machineCalls = time.Time{}, machineCalls{}
}

// reshape gives m, an instance on demand whose intent names another shape, the
// one that was granted. That is durable before the provider is asked for it.
func (r *Reconciler) reshape(ctx context.Context, m *member, def nstance.Definition) error {
	r.mu.Lock()
	rec, shape, retoken := m.rec, m.shape, m.needsNewToken
	wanted := m.durable && m.grant == granted && (shape != rec.Shape || retoken)
	r.mu.Unlock()
	if !wanted {
		return nil
	}
	former := rec
	rec.Shape, rec.UserDataDigest = shape, ""
	rec.Token = token(rec)
	if retoken || relaunched(former) {
		rec.Token = nextToken(former, rec)
	}
	rec, err := r.writeShape(ctx, rec, def)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m.needsNewToken, m.rec = false, rec
	return nil
}

// writeShape makes another shape durable, and the digest of the user data, which may
// contain it.
func (r *Reconciler) writeShape(ctx context.Context, next storage.Instance, def nstance.Definition) (storage.Instance, error) {
	out := Rendered{UserData: []byte(def.UserData.Content)}
	if r.opts.Bootstrap != nil {
		var err error
		if out, err = r.opts.Bootstrap.Render(ctx, &next, def); err != nil {
			return next, err
		}
	}
	sum := sha256.Sum256(out.UserData)
	rec, err := r.records.Update(ctx, next.ID, func(rec *storage.Instance) error {
		if rec.Deleting != nil {
			return errOutdated
		}
		rec.Shape, rec.Token, rec.UserDataDigest = next.Shape, next.Token, hex.EncodeToString(sum[:])
		return nil
	})
	return rec, asUnavailable(err)
}

// adoptStoredIntent compares the stored intent with the one that was to be written. A
// former leader may have written one for the same ID a moment ago, or an earlier
// attempt rendered other bytes: then the stored one counts, and the step is repeated.
func (r *Reconciler) adoptStoredIntent(m *member, meant, stands storage.Instance) error {
	switch {
	case stands.Deleting != nil:
		return errOutdated
	case stands.Definition == meant.Definition && stands.Shape == meant.Shape && stands.UserDataDigest == meant.UserDataDigest:
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m.rec, m.foundAt = stands, r.opts.Now()
	return errAgain
}

// OnDemand returns how many instances on demand a tenant has.
func (r *Reconciler) OnDemand(tenant nstance.TenantID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.onDemand(tenant)
}
