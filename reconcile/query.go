package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile/plan"
)

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
		return GroupView{}, errNoGroup(key)
	}
	return r.groupView(g), nil
}

// Instances returns every instance, sorted by ID.
func (r *Reconciler) Instances() []InstanceView {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]InstanceView, 0, len(r.members))
	for _, m := range r.members {
		out = append(out, r.instanceView(m))
	}
	slices.SortFunc(out, func(a, b InstanceView) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (r internals) InstanceIDs(keep func(nstance.GroupKey) bool) []nstance.InstanceID {
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

func (r internals) CountPools() map[loop.MemberPool]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[loop.MemberPool]int{}
	for _, m := range r.members {
		if m.machine.ProviderID != "" && !m.gone {
			instanceType := cmp.Or(m.machine.InstanceType, m.rec.Shape.InstanceType)
			out[loop.MemberPool{Group: m.rec.Key(), InstanceType: instanceType, Zone: cmp.Or(m.machine.Zone, m.rec.Zone), Market: m.market()}]++
		}
	}
	return out
}

func (r internals) GroupKeys() []nstance.GroupKey {
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

// Instance returns one instance. Fails with NotFound when there is none, and with
// Unavailable, beside its ID and group, while its record cannot be read: then its
// machine may run.
func (r *Reconciler) Instance(id nstance.InstanceID) (InstanceView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.lookUp(id)
	switch {
	case err == nil:
		return r.instanceView(m), nil
	case errors.Is(err, nstance.Unavailable):
		return InstanceView{ID: id, Group: r.unreadableGroup(id)}, err
	}
	return InstanceView{}, err
}

// lookUp returns a member, and fails as Instance does.
func (s *shard) lookUp(id nstance.InstanceID) (*member, error) {
	switch m := s.members[id]; {
	case m != nil:
		return m, nil
	case s.hasRecord(id):
		return nil, &nstance.Error{
			Code: nstance.Unavailable, Msg: fmt.Sprintf("the record of instance %s cannot be read: its machine may run, and is left alone", id),
			Remedy: fmt.Sprintf("an administrator sees why with nstance-admin record show %s", id),
		}
	}
	if !s.loaded {
		return nil, errUnread
	}
	return nil, nstance.Errorf(nstance.NotFound, "no instance %s", id)
}

// errUnread is the answer about what may exist.
var errUnread = nstance.Errorf(nstance.Unavailable, "the shard is not read yet")

// unreadableGroup returns the group of an instance whose record cannot be read.
func (s *shard) unreadableGroup(id nstance.InstanceID) nstance.GroupKey {
	for _, p := range s.unreadableRecords {
		if p.ID == id {
			return nstance.GroupKey{Tenant: p.Tenant, Group: p.Group}
		}
	}
	return nstance.GroupKey{}
}

// Loaded reports whether the shard's records have been read. Until then unknown
// instances and groups may exist.
func (r *Reconciler) Loaded() bool {
	select {
	case <-r.known:
		return true
	default:
		return false
	}
}

// awaitLoaded blocks until Loaded, or ctx or the term ends.
func (r *Reconciler) awaitLoaded(ctx context.Context) error {
	select {
	case <-r.known:
	case <-r.over:
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "the shard is not read yet: %w", ctx.Err())
	}
	select {
	case <-r.over:
		return nstance.Errorf(nstance.Unavailable, "this term is over")
	default:
		return nil
	}
}

func (r internals) Removable(id nstance.InstanceID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.removable(id)
	return err
}

func (s *shard) removable(id nstance.InstanceID) (*member, error) {
	m, err := s.lookUp(id)
	if err != nil {
		return nil, err
	}
	if err := s.thawed(m.group.key); err != nil {
		return nil, err
	}
	return m, s.unpreserved(m)
}

// unpreserved fails with Conflict while m is kept for inspection.
func (s *shard) unpreserved(m *member) error {
	now := s.opts.Now()
	if !s.preserved(m, now) {
		return nil
	}
	until, _ := m.keptUntil(now)
	return &nstance.Error{
		Code: nstance.Conflict, Remedy: "nstance-admin instance preserve --end " + string(m.id) + " drains and deletes it",
		Msg: fmt.Sprintf("%s is preserved until %s", m.id, until.UTC().Format(time.RFC3339)),
	}
}

func (r internals) ExpectRehearsal(ctx context.Context, ids []nstance.InstanceID, source string, within time.Duration) error {
	ctx, cancel := r.underTerm(ctx)
	defer cancel()
	until := r.opts.Now().Add(within).UTC()
	var failed []error
	for _, id := range ids {
		_, err := r.records.Update(ctx, id, func(rec *records.Instance) error {
			rec.Rehearsal = &records.Rehearsal{Source: source, Until: until}
			return nil
		})
		failed = append(failed, err)
		r.mu.Lock()
		r.withMember(id, func(m *member) {
			m.rehearsalMet = false
			r.refreshRecord(m)
		})
		r.mu.Unlock()
	}
	return errors.Join(failed...)
}

func (r internals) Rehearse(key nstance.GroupKey, ids []nstance.InstanceID, n nstance.Notice) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[key]
	if g == nil {
		return nil
	}
	now := r.opts.Now()
	v := r.view(g, now, nil)
	for i := range v.Members {
		if slices.Contains(ids, v.Members[i].ID) {
			v.Members[i].Notices = append(slices.Clone(v.Members[i].Notices), n)
		}
	}
	d := plan.Plan(v, now)
	var out []string
	for _, a := range d.Actions {
		out = append(out, a.String())
	}
	for _, h := range d.Holds {
		out = append(out, "hold "+string(h.Kind)+": "+h.Reason)
	}
	return out
}

func (r internals) Frozen() (loop.Freeze, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen == nil {
		return loop.Freeze{}, false
	}
	return loop.Freeze(*r.frozen), true
}

func (r internals) FrozenGroups() map[nstance.GroupKey]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[nstance.GroupKey]bool{}
	for key, g := range r.groups {
		if r.freezeOf(g) != nil {
			out[key] = true
		}
	}
	return out
}

func (r internals) Thawed(key nstance.GroupKey) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.thawed(key)
}

func (r internals) ClockRight() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clockRight()
}

// Holds returns what holds the whole shard but a freeze: pools that are avoided, and a
// clock of this server that cannot be trusted, which holds what the time in a record
// decides.
func (r *Admin) Holds() (out []HoldView) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.avoided.Standing(r.reachedBy(r.opts.Now())) {
		out = append(out, poolHold(&e))
	}
	if why := r.clock.Distrust(); why != "" {
		out = append(out, HoldView{Hold: plan.Hold{Kind: plan.HoldClock, Reason: why}, Since: r.clock.Since()})
	}
	return out
}

func (r internals) OnDemand(tenant nstance.TenantID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.onDemand(tenant)
}

func (r internals) QueueAge() time.Duration { return r.queue.Age() }

func (r internals) Abilities() provider.Abilities { return r.provider.Abilities() }

func (r internals) Records() *records.Records { return r.records }

func (r internals) Await(ctx context.Context) error { return r.awaitLoaded(ctx) }

func (r internals) Runtime(id nstance.InstanceID) (loop.Runtime, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[id]
	if m == nil || !m.group.defined() {
		return loop.Runtime{}, nstance.Errorf(nstance.NotFound, "no instance %s of a group that is known", id)
	}
	return loop.Runtime{
		Machine: m.machine, Seen: m.machine.ProviderID != "", Definition: m.group.spec.Definition, Hash: m.group.runtime,
		Frozen: r.freezeOf(m.group) != nil,
	}, nil
}

func (r internals) RuntimeHash(id nstance.InstanceID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[id]; m != nil && m.group.defined() {
		return m.group.runtime
	}
	return ""
}

func (r internals) RuntimeHashes() map[nstance.GroupKey]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[nstance.GroupKey]string, len(r.groups))
	for key, g := range r.groups {
		if g.defined() {
			out[key] = g.runtime
		}
	}
	return out
}

// Events yields the events that happen after this call, in order, until ctx ends. The
// loop may take its time and call anything; several loops may run at once. One that
// falls more than 1,024 events behind goes on with the latest 1,024: Event.Seq, which
// otherwise grows by one, shows the gap. What the missed ones were about is in Instances.
func (r *Reconciler) Events(ctx context.Context) iter.Seq[nstance.Event] {
	at := r.events.Last()
	return func(yield func(nstance.Event) bool) {
		for ctx.Err() == nil {
			for item, err := range r.events.Subscribe(ctx, at, feed.View[nstance.Event]{}) {
				if err != nil { // it fell behind
					at = r.events.First()
					break
				}
				at = item.Seq
				e := item.Value
				if e.Seq = item.Seq; item.Kind == feed.Event && !yield(e) {
					return
				}
			}
		}
	}
}
