// Package admission decides which creates may begin, and of what shape.
//
// A [Queue] holds what every group demands. Demand is level-triggered: a group
// states it anew at each plan, so nothing is lost, doubled or left over. A pass
// serves losses first, then requests for single instances, then growth; within
// each, tenants take turns, and the groups of a tenant. A request is served once
// the provider is likely to have capacity for it, then the create budget must have
// a token.
//
// A Queue is not safe for concurrent use. It reads no clock and does no I/O.
package admission

import (
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// A Class is a priority among creates.
type Class int

// The classes, first served first.
const (
	Loss    Class = iota // replaces a member that was lost
	Single               // one instance beside its group's size
	Growth               // everything else
	classes int   = iota
)

// A Request is a number of creates that permit the same shapes.
type Request struct {
	Class         Class
	Count         int    // at least 1
	Definition    string // what is made; refusals for other reasons than capacity are of one definition
	InstanceTypes []string
	Subnets       []string
	Market        nstance.Market
	Spread        *Spread // nil: the group bounds nothing
	Order         nstance.ShapeOrder
	Scores        map[string]int // by zone: how likely the cloud is to have capacity for these types, 1 to 10; nil: not known

	// Repeats is the shape of a create that the provider has throttled: it needs
	// another token, and no other shape. Nil: it is a new one.
	Repeats *Shape

	// Of the caller, for its grants: an instance that waits, or a number.
	Instance nstance.InstanceID
	Index    int

	permits string // equal for requests that permit the same shapes
}

// A Grant permits one create to begin. Until the create is known to have ended it
// counts as in flight: the caller reports that with Ended.
type Grant struct {
	Group   nstance.GroupKey
	Request Request
	Shape   Shape
	Choice  Choice
}

// Budget takes one token for a create, or says when there may be one.
type Budget func() (ok bool, next time.Time)

// A Wait says why a request is not granted yet.
type Wait struct {
	Kind   WaitKind
	Shape  Shape     // WaitCapacity, WaitAvoided: the preferred one; WaitAnswer: the one in flight
	Before Precedent // WaitBudget: what is served first
	Until  time.Time // it is tried again then; zero: not by time alone

	// Avoided names what keeps permitted shapes from being used, beside a lack of
	// capacity; empty: nothing does.
	Avoided string

	// Refused quotes what the provider says of the first shape that it refuses for another
	// reason than capacity; empty: there is none.
	Refused string
}

// A WaitKind is what a request waits for.
type WaitKind string

// The kinds of waits.
const (
	WaitCapacity WaitKind = "capacity" // every permitted shape is sold out
	WaitAnswer   WaitKind = "answer"   // to the creates in flight, which show whether there is capacity
	WaitPrices   WaitKind = "prices"   // the first ones of its instance types
	WaitBudget   WaitKind = "budget"   // the create budget is used up
	WaitAvoided  WaitKind = "avoided"  // every permitted shape is in an avoided pool
	WaitRefused  WaitKind = "refused"  // every permitted shape is refused, one of them for another reason than capacity
)

// A Precedent is what takes tokens of the create budget before a request.
type Precedent string

// The precedents; empty is none.
const (
	LossesFirst  Precedent = "losses"
	TenantsFirst Precedent = "tenants"
	GroupsFirst  Precedent = "groups"
)

// A Queue holds demand, and what is known of capacity.
type Queue struct {
	capacity  capacityCache
	refusals  refusals
	addresses addressCount
	pools     poolMemory
	avoided   []Avoidance
	lines     [classes]line
	groups    map[nstance.GroupKey]*groupQueue
	pass      uint64
	noTokens  bool      // the last pass ended for lack of tokens
	nextToken time.Time // then: when there may be one
}

// A line holds tenants with demand of one class, those first that are served next.
type line []*tenantQueue

type tenantQueue struct {
	id      nstance.TenantID
	groups  []*groupQueue // those first that are served next
	blocked uint64        // the pass in which no group of it could be served
}

type groupQueue struct {
	key      nstance.GroupKey
	requests [classes][]Request
	blocked  [classes]uint64 // the pass in which no request could be served
}

// New returns an empty queue.
func New() *Queue {
	return &Queue{capacity: capacityCache{}, refusals: refusals{}, pools: newPoolMemory(), groups: map[nstance.GroupKey]*groupQueue{}}
}

// Demand replaces what a group demands. Requests of a class are served in order.
func (q *Queue) Demand(key nstance.GroupKey, requests ...Request) {
	g := q.groups[key]
	switch {
	case g == nil && len(requests) == 0:
		return
	case g == nil:
		g = &groupQueue{key: key}
		q.groups[key] = g
	}
	had := g.requests
	for class := range g.requests {
		g.requests[class] = g.requests[class][:0:0]
	}
	for _, r := range requests {
		r.permits = r.key()
		if r.Spread != nil || r.Scores != nil { // what is preferred depends on the group
			r.permits += "\x00" + key.String()
		}
		g.requests[r.Class] = append(g.requests[r.Class], r)
	}
	for class := range g.requests {
		switch has := len(g.requests[class]) > 0; {
		case has && len(had[class]) == 0:
			q.lines[class].join(g)
		case !has && len(had[class]) > 0:
			q.lines[class].leave(g)
		}
	}
	if len(requests) == 0 {
		delete(q.groups, key)
	}
}

func (r *Request) key() string {
	return strings.Join(slices.Concat(r.InstanceTypes, []string{"\x00"}, r.Subnets,
		[]string{"\x00", string(r.Market.Type), string(r.Market.Fallback), r.Market.FallbackAfter.String(), string(r.Order)}), "\x00")
}

func (l *line) tenant(id nstance.TenantID) int {
	return slices.IndexFunc(*l, func(t *tenantQueue) bool { return t.id == id })
}

func (l *line) join(g *groupQueue) {
	i := l.tenant(g.key.Tenant)
	if i < 0 {
		i = len(*l)
		*l = append(*l, &tenantQueue{id: g.key.Tenant})
	}
	t := (*l)[i]
	t.groups = append(t.groups, g)
}

func (l *line) leave(g *groupQueue) {
	i := l.tenant(g.key.Tenant)
	t := (*l)[i]
	j := slices.Index(t.groups, g)
	if t.groups = slices.Delete(t.groups, j, j+1); len(t.groups) == 0 {
		*l = slices.Delete(*l, i, i+1)
	}
}

// A pass is one run through the queue.
type pass struct {
	*Queue
	now   time.Time
	waits [classes]map[string]*Wait // by what requests permit; refused in this pass
	next  time.Time
}

// Pass grants up to limit creates and calls begin for each. It returns when there
// may be more, which may be now; zero: not by time alone. With lossesOnly no other
// class is served: the demand of some groups is not known yet.
func (q *Queue) Pass(now time.Time, limit int, lossesOnly bool, budget Budget, begin func(Grant)) (next time.Time) {
	q.pass++
	q.noTokens = false
	p := &pass{Queue: q, now: now}
	for class := range q.lines {
		if lossesOnly && Class(class) != Loss {
			break
		}
		for {
			grant, t, g := p.first(Class(class))
			if grant == nil {
				break
			}
			if limit--; limit < 0 {
				return now
			}
			ok, nextToken := budget()
			if !ok {
				q.noTokens, q.nextToken = true, nextToken
				return earliest(p.next, nextToken)
			}
			p.serve(*grant, Class(class), t, g)
			begin(*grant)
		}
	}
	return p.next
}

// first returns the first request of a class that can be served, and whose it is.
func (p *pass) first(class Class) (*Grant, *tenantQueue, *groupQueue) {
	for _, t := range p.lines[class] {
		if t.blocked == p.pass {
			continue
		}
		for _, g := range t.groups {
			if g.blocked[class] == p.pass {
				continue
			}
			for _, r := range g.requests[class] {
				if shape, choice, wait := p.choose(&r); wait == nil {
					return &Grant{Group: g.key, Request: r, Shape: shape, Choice: choice}, t, g
				}
			}
			g.blocked[class] = p.pass
		}
		t.blocked = p.pass
	}
	return nil, nil, nil
}

// choose returns the shape for a request and why it is that one, or why it waits. What
// was refused once in a pass is refused until its end.
func (p *pass) choose(r *Request) (Shape, Choice, *Wait) {
	if r.Repeats != nil {
		wait := p.waitOfRepeat(*r.Repeats, p.now)
		if wait != nil {
			p.next = earliest(p.next, wait.Until)
		}
		return *r.Repeats, ChoiceRepeated, wait
	}
	permits := r.permits
	if len(p.refusals[r.Definition]) > 0 {
		permits += "\x00" + r.Definition
	}
	if w := p.waits[r.Class][permits]; w != nil {
		return Shape{}, "", w
	}
	shape, choice, wait := p.findShape(r, r.Class, p.now)
	if wait != nil {
		if p.waits[r.Class] == nil {
			p.waits[r.Class] = map[string]*Wait{}
		}
		p.waits[r.Class][permits] = wait
		p.next = earliest(p.next, wait.Until)
	}
	return shape, choice, wait
}

// serve takes a grant out of the demand, and puts whose turn it was last.
func (p *pass) serve(grant Grant, class Class, t *tenantQueue, g *groupQueue) {
	p.capacity.of(grant.Shape, p.now).send(p.now)
	if s := p.refusals.of(grant.Request.Definition, grant.Shape); s.stands(p.now) {
		s.retryAt = p.now.Add(s.pause) // one create shows whether it is still refused
	}
	p.TakeAddress(grant.Shape.Subnet)
	grant.Request.Spread.add(grant.Shape)
	l := &p.lines[class]
	l.leave(g)
	i := slices.IndexFunc(g.requests[class], func(r Request) bool { return r.Index == grant.Request.Index && r.Instance == grant.Request.Instance })
	if r := &g.requests[class][i]; r.Count > 1 {
		r.Count--
	} else {
		g.requests[class] = slices.Delete(g.requests[class], i, i+1)
	}
	if at := slices.Index(*l, t); at >= 0 { // it has other groups
		*l = append(slices.Delete(*l, at, at+1), t)
	}
	if len(g.requests[class]) > 0 {
		l.join(g)
	}
}

// Waits returns what a group's requests wait for, once each.
func (q *Queue) Waits(key nstance.GroupKey, now time.Time) (waits []Wait) {
	g := q.groups[key]
	if g == nil {
		return nil
	}
	for class, requests := range g.requests {
		for i := range requests {
			if w := q.waitOf(&requests[i], Class(class), now); w != nil && !slices.ContainsFunc(waits, w.same) {
				waits = append(waits, *w)
			}
		}
	}
	return waits
}

func (w *Wait) same(o Wait) bool {
	return w.Kind == o.Kind && w.Shape == o.Shape && w.Before == o.Before && w.Avoided == o.Avoided && w.Refused == o.Refused
}

func (q *Queue) waitOf(r *Request, class Class, now time.Time) *Wait {
	if r.Repeats != nil {
		if w := q.waitOfRepeat(*r.Repeats, now); w != nil {
			return w
		}
	} else if _, _, w := q.findShape(r, class, now); w != nil {
		return w
	}
	if !q.noTokens {
		return nil // it is served at once
	}
	w := &Wait{Kind: WaitBudget, Until: q.nextToken}
	switch l := q.lines[class]; {
	case class != Loss && len(q.lines[Loss]) > 0:
		w.Before = LossesFirst
	case len(l) > 1:
		w.Before = TenantsFirst
	case len(l[0].groups) > 1:
		w.Before = GroupsFirst
	}
	return w
}

// Choose returns the shape that a request would be granted if it were alone, why it
// would be that one, and whether there is capacity for it as far as is known: a shape
// that is sold out and only due to be tried again is not free.
func (q *Queue) Choose(r Request, now time.Time) (shape Shape, choice Choice, free bool) {
	shape, choice, wait := q.findShape(&r, Loss, now)
	if wait != nil {
		return wait.Shape, "", false
	}
	return shape, choice, !q.capacity.peek(shape).soldOut(now)
}

// SoldOut reports whether a shape was refused to a definition, for whatever reason, after a
// create of it was granted then.
func (q *Queue) SoldOut(definition string, shape Shape, granted, now time.Time) bool {
	s, r := q.capacity.peek(shape), q.refusals.of(definition, shape)
	return s.soldOut(now) && s.refusedAt.After(granted) || r.stands(now) && r.at.After(granted)
}

// Ended records that a granted create is not in flight any more, for whatever
// reason.
func (q *Queue) Ended(shape Shape, now time.Time) { q.capacity.of(shape, now).end(now) }

// Accepted records that the provider accepted a create that was sent then.
func (q *Queue) Accepted(shape Shape, sent, now time.Time) {
	q.capacity.of(shape, now).accept(sent, now)
}

// Refused records that the provider had no capacity for a create that was sent
// then.
func (q *Queue) Refused(shape Shape, sent, now time.Time) {
	q.capacity.of(shape, now).refuse(sent, now)
}

// Explain records the provider's answer to a create of a shape that was refused.
func (q *Queue) Explain(shape Shape, answer string, now time.Time) {
	q.capacity.of(shape, now).answer = answer
}

// Answer returns the provider's answer for the first shape of a request that is refused or
// sold out; empty: there is none.
func (q *Queue) Answer(r Request, now time.Time) string {
	shapes, _ := q.permitted(&r, r.Subnets, now)
	for _, shape := range shapes {
		if s := q.refusals.of(r.Definition, shape); s.stands(now) {
			return s.answer
		}
		if s := q.capacity[shape]; s != nil && s.soldOut(now) && s.answer != "" {
			return s.answer
		}
	}
	return ""
}

// RefusedQuota records that the account may have no more machines of this type in
// this market, whatever the subnet.
func (q *Queue) RefusedQuota(shape Shape, subnets []string, sent, now time.Time) {
	q.Refused(shape, sent, now)
	q.eachSubnet(shape, subnets, func(other Shape) { q.Refused(other, sent, now) })
}

// Lost records that a machine that was accepted found no capacity to start.
func (q *Queue) Lost(shape Shape, now time.Time) { q.capacity.of(shape, now).lose(now) }

// LostQuota records the same for lack of quota.
func (q *Queue) LostQuota(shape Shape, subnets []string, now time.Time) {
	q.Lost(shape, now)
	q.eachSubnet(shape, subnets, func(other Shape) { q.Lost(other, now) })
}

func (q *Queue) eachSubnet(shape Shape, subnets []string, do func(Shape)) {
	for _, subnet := range subnets {
		do(Shape{shape.InstanceType, subnet, shape.Market})
	}
}
