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
	all := r.readAll()
	out := make([]GroupView, len(all))
	for i, at := range all {
		out[i] = at.groupView()
	}
	return out
}

// Group returns one group, or NotFound.
func (r *Reconciler) Group(key nstance.GroupKey) (GroupView, error) {
	at, err := r.read(key)
	if err != nil {
		return GroupView{}, err
	}
	return at.groupView(), nil
}

// Instances returns every instance, sorted by ID.
func (r *Reconciler) Instances() []InstanceView {
	now, count := r.opts.Now(), 0
	var copies []*instancesCopy
	r.eachGroup(func(g *group) {
		copies, count = append(copies, r.copyInstances(g, g.members, now)), count+len(g.members)
	})
	out := make([]InstanceView, 0, count)
	for _, c := range copies {
		out = append(out, c.instanceViews(r.nodeProviderID)...)
	}
	slices.SortFunc(out, func(a, b InstanceView) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (r internals) InstanceIDs(keep func(nstance.GroupKey) bool) (out []nstance.InstanceID) {
	r.eachGroup(func(g *group) {
		if !keep(g.key) {
			return
		}
		for _, m := range g.members {
			out = append(out, m.id)
		}
	})
	slices.Sort(out)
	return out
}

func (r internals) CountPools() map[loop.MemberPool]int {
	out := map[loop.MemberPool]int{}
	r.eachGroup(func(g *group) {
		for _, m := range g.members {
			if m.machine.ProviderID != "" && !m.gone {
				at := m.resident()
				out[loop.MemberPool{Group: g.key, InstanceType: at.InstanceType, Zone: at.Zone, Market: at.Market}]++
			}
		}
	})
	return out
}

func (r internals) GroupKeys() (out []nstance.GroupKey) {
	r.eachGroup(func(g *group) {
		if !g.isGone() {
			out = append(out, g.key)
		}
	})
	return out
}

// Instance returns one instance. Fails with NotFound when there is none, and with
// Unavailable, beside its ID and group, while its record cannot be read: then its
// machine may run.
func (r *Reconciler) Instance(id nstance.InstanceID) (InstanceView, error) {
	var unreadable nstance.GroupKey
	v, err := r.readInstance(func() (*member, error) {
		unreadable, _ = r.unreadableGroup(id)
		return r.lookUp(id)
	})
	if errors.Is(err, nstance.Unavailable) {
		v.ID, v.Group = id, unreadable
	}
	return v, err
}

// readInstance returns the view of a member, if find returns one under the lock, and its error.
func (r *Reconciler) readInstance(find func() (*member, error)) (v InstanceView, err error) {
	now := r.opts.Now()
	var c *instancesCopy
	r.locked(func() {
		var m *member
		if m, err = find(); m != nil {
			c = r.copyInstances(m.group, []*member{m}, now)
		}
	})
	if c != nil {
		v = c.instanceViews(r.nodeProviderID)[0]
	}
	return v, err
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

// unreadableGroup returns the group of an instance whose record cannot be read, and whether
// that is so.
func (s *shard) unreadableGroup(id nstance.InstanceID) (nstance.GroupKey, bool) {
	for _, p := range s.unreadableRecords {
		if p.ID == id {
			return nstance.GroupKey{Tenant: p.Tenant, Group: p.Group}, true
		}
	}
	return nstance.GroupKey{}, false
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

func (r internals) Removable(id nstance.InstanceID) (err error) {
	r.locked(func() { _, err = r.removable(id) })
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
	until, _ := s.keptUntil(m, now)
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

func (r internals) Rehearse(key nstance.GroupKey, ids []nstance.InstanceID, n nstance.Notice) (out []string) {
	at, err := r.read(key)
	if err != nil {
		return nil
	}
	for i := range at.view.Members {
		if m := &at.view.Members[i]; slices.Contains(ids, m.ID) {
			m.Notices = append(m.Notices, n)
		}
	}
	d := plan.Plan(at.view, at.now)
	for _, a := range d.Actions {
		out = append(out, a.String())
	}
	for _, h := range d.Holds {
		out = append(out, "hold "+string(h.Kind)+": "+h.Reason)
	}
	return out
}

func (r internals) Frozen() (loop.Freeze, bool) {
	if f := r.Admin().readShard().frozen; f != nil {
		return loop.Freeze(*f), true
	}
	return loop.Freeze{}, false
}

func (r internals) FrozenGroups() map[nstance.GroupKey]bool {
	out := map[nstance.GroupKey]bool{}
	r.eachGroup(func(g *group) {
		if r.freezeOf(g) != nil {
			out[g.key] = true
		}
	})
	return out
}

func (r internals) Thawed(key nstance.GroupKey) (err error) {
	r.locked(func() { err = r.thawed(key) })
	return err
}

func (r internals) ClockRight() (right bool) {
	r.locked(func() { right = r.clockRight() })
	return right
}

// Holds returns what holds the whole shard but a freeze: pools that are avoided, and a
// clock of this server that cannot be trusted, which holds what the time in a record
// decides.
func (r *Admin) Holds() (out []HoldView) {
	at := r.readShard()
	for _, e := range at.avoided {
		out = append(out, poolHold(&e))
	}
	if at.distrust != "" {
		out = append(out, HoldView{Hold: plan.Hold{Kind: plan.HoldClock, Reason: at.distrust}, Since: at.clockSince})
	}
	return out
}

func (r internals) OnDemand(tenant nstance.TenantID) (n int) {
	r.locked(func() { n = r.onDemand(tenant) })
	return n
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

func (r internals) RuntimeHashes() map[nstance.GroupKey]string {
	out := map[nstance.GroupKey]string{}
	r.eachGroup(func(g *group) {
		if g.defined() {
			out[g.key] = g.runtime
		}
	})
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
