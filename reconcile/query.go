package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// A GroupView is the present state of a group.
type GroupView struct {
	nstance.Group
	Hash           string // desired infra hash; empty: the definition could not be read
	RuntimeHash    string // desired
	Ready          int
	Booting        int // counted, not ready yet
	Leaving        int
	Gone           int // their machine is gone, and they are not removed yet
	Stale          int
	OnDemand       int // made by request, in none of the numbers above
	SpotMarket     int // members, by the market that the provider says they are in
	OnDemandMarket int
	ReturnAt       time.Time // when an on-demand member beyond the base may go back to spot; zero: there is none
	FailedReturns  int       // to spot, in a row
	Preserved      int       // kept for inspection, in none of the numbers above
	Paused         bool
	Halted         string // why the rollout is halted; empty: it is not
	Frozen         bool   // by itself or with the shard
	FrozenAlone    bool   // by itself
	RolledBack     bool   // Group and the hashes are those of the last good definition
	LastGoodHash   string // of the definition with which all members were last ready; empty: there is none
	Failures       int    // consecutive creations from the desired definition that did not become ready
	BackoffUntil   time.Time
	Holds          []HoldView
}

// An InstanceView is the present state of an instance.
type InstanceView struct {
	Record     storage.Instance
	State      nstance.State
	Machine    nstance.Machine // as last seen; zero while there is none
	Connected  bool
	Report     nstance.Report // the last one; zero before the first
	ReportedAt time.Time
	Notices    []nstance.Notice
	Drain      *nstance.Drain
	Drifted    bool
	Silent     bool               // it has missed reports
	Unhealthy  bool               // it has missed so many, though the provider says that it runs, that it is to be replaced, or leaves for that
	Expired    bool               // it is older than its group permits, or would rather have
	Preserved  bool               // it is kept for inspection, still
	Market     nstance.MarketType // that it is in, as far as the provider says, else that it is asked for
	Runtime    string             // runtime hash that its group wants; empty: unknown
	Gone       bool
}

// Groups returns every group, sorted by key.
func (r *Reconciler) Groups() []GroupView {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]GroupView, 0, len(r.groups))
	for _, g := range r.groups {
		if !g.isGone() {
			out = append(out, r.groupView(g))
		}
	}
	slices.SortFunc(out, func(a, b GroupView) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return out
}

// Group returns one group, or NotFound.
func (r *Reconciler) Group(key nstance.GroupKey) (GroupView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[key]
	if g == nil || g.isGone() {
		return GroupView{}, nstance.Errorf(nstance.NotFound, "no group %s", key)
	}
	return r.groupView(g), nil
}

func (r *Reconciler) groupView(g *group) GroupView {
	v := GroupView{
		Group: g.spec, Hash: g.hash, RuntimeHash: g.runtime,
		Paused: g.history.Paused, Frozen: r.freezeOf(g) != nil, FrozenAlone: g.history.Frozen != nil, RolledBack: g.history.Rollback != nil,
		LastGoodHash: g.history.LastGoodHash, Failures: g.history.Failures, BackoffUntil: g.history.BackoffUntil,
		Holds: r.withPending(g, g.holds),
	}
	v.Key = g.key
	g.setMarkets(&v)
	if g.halted() {
		v.Halted = g.history.HaltReason
	}
	now := r.opts.Now()
	view := r.view(g, now, g.buffer[:0])
	g.buffer = view.Members
	n := plan.NewCensus(view, now).Counts()
	v.Ready, v.Booting, v.Leaving, v.Gone, v.Stale, v.OnDemand, v.Preserved = n.Ready, n.Booting, n.Leaving, n.Gone, n.Stale, n.OnDemand, n.Preserved
	return v
}

// Instances returns every instance, sorted by ID.
func (r *Reconciler) Instances() []InstanceView {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]InstanceView, 0, len(r.members))
	for _, m := range r.members {
		out = append(out, r.instanceView(m))
	}
	slices.SortFunc(out, func(a, b InstanceView) int { return cmp.Compare(a.Record.ID, b.Record.ID) })
	return out
}

// InstanceIDs returns the IDs of the instances whose group keep accepts, sorted.
// keep must not call the reconciler.
func (r *Reconciler) InstanceIDs(keep func(nstance.GroupKey) bool) []nstance.InstanceID {
	r.mu.Lock()
	var out []nstance.InstanceID
	for id, m := range r.members {
		if keep(m.rec.Key()) {
			out = append(out, id)
		}
	}
	r.mu.Unlock()
	slices.Sort(out)
	return out
}

// GroupKeys returns the key of every group, in the order of Groups.
func (r *Reconciler) GroupKeys() []nstance.GroupKey {
	r.mu.Lock()
	var out []nstance.GroupKey
	for key, g := range r.groups {
		if !g.isGone() {
			out = append(out, key)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(out, func(a, b nstance.GroupKey) int { return cmp.Compare(a.String(), b.String()) })
	return out
}

// Instance returns one instance, or NotFound.
func (r *Reconciler) Instance(id nstance.InstanceID) (InstanceView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[id]
	if m == nil {
		return InstanceView{}, nstance.Errorf(nstance.NotFound, "no instance %s", id)
	}
	return r.instanceView(m), nil
}

func (r *Reconciler) instanceView(m *member) InstanceView {
	v := InstanceView{
		Record: m.rec, State: m.state, Machine: m.machine, Connected: m.connected, Report: m.report, ReportedAt: m.reportAt,
		Notices: slices.Clone(m.notices), Drain: m.drain, Gone: m.gone, Runtime: m.group.runtime, Market: m.market(),
	}
	now := r.opts.Now()
	mv := r.memberView(m.group, m, now)
	c := plan.NewCensus(plan.View{Group: m.group.spec, Hash: m.group.hashOrUnknown(), Members: []plan.Member{mv}, Clock: r.clock.Distrust()}, now)
	v.State, v.Drifted, v.Expired, v.Preserved = c.Status(&mv), c.Drifted(&mv), c.Expired(&mv), mv.Preserved
	v.Silent = mv.Silent && m.state == nstance.Booting && !m.gone
	v.Unhealthy = mv.Unhealthy || m.drain != nil && plan.IncludesCause(m.drain.Causes, nstance.CauseUnhealthy)
	return v
}

// Joined makes durable that an instance has registered, and has it counted. It is for
// programs without a Registrar, which does the same. Repeating it changes nothing.
// Fails with NotFound, and with Unavailable or Ambiguous when it may be repeated.
func (r *Reconciler) Joined(ctx context.Context, id nstance.InstanceID) error {
	_, err := r.records.Update(ctx, id, func(rec *storage.Instance) error {
		if rec.RegisteredAt.IsZero() {
			rec.RegisteredAt = r.opts.Now().UTC()
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.Observe(nstance.Registered{ID: id})
	return nil
}

// Loaded reports whether the shard's records have been read. Until then unknown
// instances and groups may exist.
func (r *Reconciler) Loaded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loaded
}

// Drain requests that an instance is drained and then deleted, and returns once that
// cause of the drain is durable, or the deletion where there is nothing to drain. It
// may be draining already. A managed instance is replaced, unless its group has no
// definition. Fails as Removable does, and with Unavailable when ctx ends first: then
// it may still happen.
func (r *Reconciler) Drain(ctx context.Context, id nstance.InstanceID, reason string) (nstance.Drain, error) {
	err := r.request(ctx, id, reason, false)
	if err != nil {
		return nstance.Drain{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[id]; m != nil && m.rec.Drain != nil {
		return *m.rec.Drain, nil
	}
	return nstance.Drain{Instance: id}, nil // nothing to drain: it is being deleted
}

// Delete requests that an instance is deleted, after a drain unless noDrain. It
// returns once that is durable. A managed instance is replaced. Fails as Drain
// does.
func (r *Reconciler) Delete(ctx context.Context, id nstance.InstanceID, reason string, noDrain bool) error {
	return r.request(ctx, id, reason, noDrain)
}

// Removable returns nil if Drain and Delete would begin now. Else NotFound, or
// Conflict when a freeze forbids it or the instance is preserved.
func (r *Reconciler) Removable(id nstance.InstanceID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.removable(id)
	return err
}

// removable needs the lock.
func (r *Reconciler) removable(id nstance.InstanceID) (*member, error) {
	m := r.members[id]
	if m == nil {
		return nil, nstance.Errorf(nstance.NotFound, "no instance %s", id)
	}
	if err := r.thawed(m.group.key); err != nil {
		return nil, err
	}
	return m, r.unpreserved(m)
}

// unpreserved fails with Conflict while m is kept for inspection. It
// needs the lock.
func (r *Reconciler) unpreserved(m *member) error {
	if !r.preserved(m, r.opts.Now()) {
		return nil
	}
	return &nstance.Error{
		Code: nstance.Conflict, Remedy: "nstance-admin instance preserve --end " + string(m.id) + " drains and deletes it",
		Msg: fmt.Sprintf("%s is preserved until %s", m.id, m.preserve.Until.UTC().Format(time.RFC3339)),
	}
}

func (r *Reconciler) request(ctx context.Context, id nstance.InstanceID, reason string, noDrain bool) error {
	r.mu.Lock()
	m, err := r.removable(id)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	fresh := m.removalCause == nil
	if fresh {
		m.removalCause = &nstance.Cause{Kind: nstance.CauseRequest, Message: reason}
	}
	if fresh || noDrain && !m.skipDrain {
		r.publish(m, nstance.Event{Type: nstance.EventRemovalRequested, Reason: removalReason(reason, noDrain)})
	}
	m.skipDrain = m.skipDrain || noDrain
	m.drainEnded = m.drainEnded || noDrain && m.state == nstance.Draining
	r.queue.add(m.group.key, true)
	r.mu.Unlock()
	var kept error // it may be preserved before it begins to go
	if err := r.await(ctx, func() bool {
		if r.members[id] == nil || m.rec.Deleting != nil || m.rec.Drain != nil && !noDrain && plan.IncludesCause(m.rec.Drain.Causes, nstance.CauseRequest) {
			kept = nil
			return true
		}
		kept = r.unpreserved(m)
		return kept != nil
	}); err != nil {
		return err
	}
	return kept
}

func removalReason(reason string, noDrain bool) string {
	if noDrain {
		return "without a drain" + withMessage(reason)
	}
	return reason
}

// await blocks until done, which is called under the lock, or ctx ends.
func (r *Reconciler) await(ctx context.Context, done func() bool) error {
	for {
		r.mu.Lock()
		ok, changed := done(), r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return nstance.Errorf(nstance.Unavailable, "not durable yet: %w", ctx.Err())
		case <-changed:
		}
	}
}

// Rehearse describes what Plan would do if a notice for an instance arrived now.
// Nothing is done.
func (r *Reconciler) Rehearse(id nstance.InstanceID, n nstance.Notice) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[id]
	if m == nil {
		return nil
	}
	now := r.opts.Now()
	v := r.view(m.group, now, nil)
	for i := range v.Members {
		if v.Members[i].ID == id {
			v.Members[i].Notices = append(slices.Clone(v.Members[i].Notices), n)
		}
	}
	d := plan.Plan(v, now)
	var out []string
	for _, a := range d.Actions {
		out = append(out, a.String())
	}
	for _, h := range d.Holds {
		out = append(out, "hold "+h.Kind+": "+h.Reason)
	}
	return out
}
