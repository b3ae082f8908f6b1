package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// leaveWithin is how long a deletion waits for load balancers to let go of
	// the machine, once nothing else keeps it.
	leaveWithin = 30 * time.Second
	// retireWithin is how long machines are withdrawn from a load balancer that
	// is not configured any more.
	retireWithin = 5 * time.Minute
	// maxLeft is how many machines that are gone are still withdrawn from one
	// load balancer.
	maxLeft = 1000
)

// A balancer is one load balancer and what is known of its members. Nothing of
// it is durable: who should be a member follows from the records, who is one
// the provider says. It is guarded by the reconciler's lock.
type balancer struct {
	lb      nstance.LoadBalancer
	members map[string]bool            // by provider ID, as listed and changed since; nil: not known
	joining map[string]bool            // a call that may make them members has no answer yet
	left    map[string]nstance.Machine // deleted although they were members
	retired time.Time                  // since when it is not configured, or a thaw gave it more time; zero: it is

	dirty  bool // the groups that name it have changed
	whole  bool // every member of the shard is to be compared with it, not only theirs
	relist bool // its members are to be listed again
	busy   bool // somebody is at it

	attempts int
	retryAt  time.Time
	trouble  error // why the last attempt failed; nil: it did not
	since    time.Time
}

// balancers are the load balancers by name.
type balancers struct {
	by   map[string]*balancer
	wake chan struct{} // has room for one: one is dirty
}

func newBalancers() balancers {
	return balancers{by: map[string]*balancer{}, wake: make(chan struct{}, 1)}
}

// balanceWith replaces the load balancers that groups may name. It needs the
// lock.
func (r *Reconciler) balanceWith(lbs []nstance.LoadBalancer, now time.Time) {
	wanted := map[string]nstance.LoadBalancer{}
	for _, lb := range lbs {
		wanted[lb.Name] = lb
	}
	for name, b := range r.balancers.by {
		if lb, ok := wanted[name]; ok && same(lb, b.lb) {
			if !b.retired.IsZero() {
				b.retired = time.Time{}
				r.compareWhole(b)
			}
			delete(wanted, name)
			continue
		} else if ok { // the name stands for another one now
			delete(r.balancers.by, name)
			name = fmt.Sprintf("%s (was %s)", name, b.lb.ID)
			r.balancers.by[name] = b
		}
		if b.retired.IsZero() {
			b.retired, b.retryAt = now, time.Time{}
			r.compareWhole(b)
		}
	}
	for name, lb := range wanted {
		b := &balancer{lb: lb, left: r.renamed(lb)}
		r.balancers.by[name] = b
		r.compareWhole(b)
	}
}

// renamed forgets what is being retired of a load balancer that is configured
// again under another name, lest one takes out whom the other lets in. It returns
// who has still to leave it. It needs the lock.
func (r *Reconciler) renamed(lb nstance.LoadBalancer) (left map[string]nstance.Machine) {
	for name, b := range r.balancers.by {
		if !b.retired.IsZero() && same(lb, b.lb) {
			delete(r.balancers.by, name)
			left = b.left
		}
	}
	return left
}

func same(a, b nstance.LoadBalancer) bool { return a.ID == b.ID && string(a.Args) == string(b.Args) }

// rebalance has the load balancers looked at that g names: one of its members
// may have to join or leave. It needs the lock, and costs nothing where there
// are none.
func (r *Reconciler) rebalance(g *group) {
	if len(r.balancers.by) == 0 {
		return
	}
	for _, b := range r.balancers.by {
		if g.concerns(b) {
			b.dirty = true
			r.balancers.signal()
		}
	}
}

// rebalanceAll compares every member with every load balancer, after listing
// anew who is in it if so asked. It needs the lock.
func (r *Reconciler) rebalanceAll(relist bool) {
	for _, b := range r.balancers.by {
		b.relist = b.relist || relist
		r.compareWhole(b)
	}
}

// compareWhole compares every member with one load balancer. It needs the lock.
func (r *Reconciler) compareWhole(b *balancer) {
	b.dirty, b.whole = true, true
	r.balancers.signal()
}

// rewire has those load balancers looked at that g joins or leaves when it names
// these ones. It is called before it does, and needs the lock.
func (r *Reconciler) rewire(g *group, names []string) {
	if !g.desired && len(g.members) > 0 { // of its members nothing was decided so far
		r.rebalanceAll(false)
		return
	}
	for name, b := range r.balancers.by {
		if slices.Contains(g.configured.spec.Definition.LoadBalancers, name) != slices.Contains(names, name) {
			r.compareWhole(b)
		}
	}
}

func (l *balancers) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// names reports whether the members of g belong into b. What a rolled back
// group was made from does not matter: this is about machines that run.
func (g *group) names(b *balancer) bool {
	return g.desired && b.retired.IsZero() && slices.Contains(g.configured.spec.Definition.LoadBalancers, b.lb.Name)
}

// concerns reports whether members of g may have to join or leave b.
func (g *group) concerns(b *balancer) bool {
	return g.names(b) || !g.desired || g.balancers[b.lb.Name] > 0
}

// countBalancers keeps count of the load balancers that members name themselves.
func (g *group) countBalancers(m *member, by int) {
	for _, name := range m.rec.LoadBalancers {
		if g.balancers == nil {
			g.balancers = map[string]int{}
		}
		if g.balancers[name] += by; g.balancers[name] == 0 {
			delete(g.balancers, name)
		}
	}
}

// names reports whether m belongs into b: by its own request if that says so,
// else as a member of its group.
func (m *member) names(b *balancer) bool {
	if own := m.rec.LoadBalancers; len(own) > 0 {
		return b.retired.IsZero() && slices.Contains(own, b.lb.Name)
	}
	return m.group.names(b)
}

// knowsBalancers reports whether it is known which load balancers m names.
func (m *member) knowsBalancers() bool { return m.group.desired || len(m.rec.LoadBalancers) > 0 }

// A stance says where a member stands towards a load balancer.
type stance int

const (
	stay stance = iota // as it is, in or out
	join
	leave
)

// stance returns what m should do about b. It joins with its first good report
// and leaves when it begins to go or is preserved; in between a bad report changes
// nothing, for load balancers have health checks of their own. Of a member that
// nobody has heard of yet nothing is decided, and a freeze lets nobody in, nor out
// who does not go.
func (r *Reconciler) stance(m *member, b *balancer) stance {
	switch {
	case m.machine.ProviderID == "":
		return stay
	case m.state.Leaving(), m.gone, m.preserve != nil:
		return leave
	case r.freezeOf(m.group) != nil:
		return stay
	case m.knowsBalancers() && !m.names(b), !b.retired.IsZero():
		return leave
	case m.names(b) && m.state == nstance.Booting && m.registered() && !m.goodSince.IsZero():
		return join
	}
	return stay
}

// A shift is who has to join and to leave one load balancer.
type shift struct {
	join, leave []nstance.Machine
}

// shift compares b's members with those that it should have. Members that are
// not this shard's are left alone. It needs the lock.
func (r *Reconciler) shift(b *balancer) shift {
	var s shift
	take := func(m *member) {
		switch in := b.members[m.machine.ProviderID]; r.stance(m, b) {
		case join:
			if !in {
				s.join = append(s.join, m.machine)
			}
		case leave:
			if in {
				s.leave = append(s.leave, m.machine)
			}
		case stay:
		}
	}
	for _, g := range r.groups {
		if b.whole || g.concerns(b) {
			for _, m := range g.members {
				take(m)
			}
		}
	}
	for id, m := range b.left {
		if b.members[id] {
			s.leave = append(s.leave, m)
		} else {
			delete(b.left, id)
		}
	}
	byID := func(a, b nstance.Machine) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(s.join, byID)
	slices.SortFunc(s.leave, byID)
	return s
}

// detained reports whether a freeze is all that keeps a member in b. It needs the
// lock.
func (r *Reconciler) detained(b *balancer) bool {
	for _, m := range r.members {
		id := m.machine.ProviderID
		if r.freezeOf(m.group) != nil && id != "" && (b.members == nil || b.members[id]) && r.stance(m, b) == stay {
			return true
		}
	}
	return false
}

// thawBalancers does what a freeze has put off. It needs the lock.
func (r *Reconciler) thawBalancers() {
	for _, b := range r.balancers.by {
		if !b.retired.IsZero() {
			b.retired = r.opts.Now()
		}
	}
	r.rebalanceAll(false)
}

// attached returns the names of the load balancers that may still send traffic
// to m, sorted. One whose members are not known counts, whatever m's group names
// by now. One that is not configured any more does not count. It needs the lock.
func (r *Reconciler) attached(m *member) (names []string) {
	id := m.machine.ProviderID
	if id == "" || m.gone || len(r.balancers.by) == 0 || r.provider.Abilities().Balancers == nil {
		return nil
	}
	for name, b := range r.balancers.by {
		unknown := b.members == nil && m.registered()
		if b.retired.IsZero() && (b.members[id] || b.joining[id] || unknown) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// released reports whether m may be deleted as far as load balancers go: none
// sends traffic to it any more, or they have had long enough.
func (r *Reconciler) released(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := r.attached(m)
	now := r.opts.Now()
	switch {
	case m.released || len(names) == 0:
		m.released = true
		return true
	case m.leaveBy.IsZero():
		m.leaveBy = now.Add(leaveWithin)
		r.rebalance(m.group)
		return false
	case now.Before(m.leaveBy):
		return false
	}
	m.released = true
	r.say(m, nstance.Event{Type: nstance.EventAlarm, Reason: fmt.Sprintf("deleted although it could not be withdrawn from %s within %s", strings.Join(names, ", "), leaveWithin)})
	for _, name := range names {
		b := r.balancers.by[name]
		if b.left == nil {
			b.left = map[string]nstance.Machine{}
		}
		if len(b.left) < maxLeft {
			b.left[m.machine.ProviderID] = m.machine
		}
	}
	return true
}

// letGo lets the deletions go on that waited for these machines. It needs the
// lock.
func (r *Reconciler) letGo(machines []nstance.Machine) {
	for _, mach := range machines {
		if m := r.members[mach.ID]; m != nil && m.step == stepDelete && !m.running {
			m.retryAt = time.Time{}
			r.queue.add(m.group.key, true)
		}
	}
}

// balancerAttention needs the lock.
func (r *Reconciler) balancerAttention() (out []Attention) {
	for name, b := range r.balancers.by {
		if b.trouble != nil {
			out = append(out, Attention{
				Kind: AttentionBalancer, Subject: "load balancer " + name, Since: b.since,
				Why: fmt.Sprintf("load balancer %s is not up to date since %s: %v", name, b.since.UTC().Format(time.RFC3339), b.trouble),
			})
		}
	}
	if len(r.balancers.by) > 0 && r.provider.Abilities().Balancers == nil {
		out = append(out, Attention{
			Kind: AttentionBalancer, Subject: "shard", Remedy: "remove them from the configuration",
			Why: "the provider cannot change load balancers: no machine joins " + strings.Join(slices.Sorted(maps.Keys(r.balancers.by)), ", "),
		})
	}
	return out
}
