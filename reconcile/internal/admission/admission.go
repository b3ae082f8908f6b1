// Package admission decides which creates may begin. Package place decides where.
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
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/place"
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
	place.Request // but for Urgent, which follows from Class
	Class         Class
	Count         int // at least 1

	// Repeats is the shape of a create that the provider has throttled: it needs
	// another token, and no other shape. Nil: it is a new one.
	Repeats *place.Shape

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
	Shape   place.Shape
	Choice  place.Choice
}

// Budget takes one token for a create, or says when there may be one.
type Budget func() (ok bool, next time.Time)

// A Wait says why a request is not granted yet.
type Wait struct {
	place.Wait
	Before Precedent // WaitBudget: what is served first
}

// WaitBudget is the wait for a token: the create budget is used up.
const WaitBudget place.WaitKind = "budget"

// Reason says what a request waits for; empty: for something that ends within moments.
func (w *Wait) Reason() string {
	if w.Kind != WaitBudget {
		return w.Wait.Reason()
	}
	const empty = "the create budget is used up"
	switch w.Before {
	case LossesFirst:
		return empty + ": replacements of lost instances go first"
	case TenantsFirst:
		return empty + ": tenants take turns"
	case GroupsFirst:
		return empty + ": other creates of the tenant go first"
	}
	return empty
}

// A Precedent is what takes tokens of the create budget before a request.
type Precedent string

// The precedents; empty is none.
const (
	LossesFirst  Precedent = "losses"
	TenantsFirst Precedent = "tenants"
	GroupsFirst  Precedent = "groups"
)

// A Queue holds demand.
type Queue struct {
	places    *place.Map
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

// New returns an empty queue for creates in places.
func New(places *place.Map) *Queue {
	return &Queue{places: places, groups: map[nstance.GroupKey]*groupQueue{}}
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
		r.Urgent, r.permits = r.Class == Loss, r.Permits()
		if r.Spread != nil { // what is preferred depends on the group
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
	waits [classes]map[string]*place.Wait // by what requests permit; refused in this pass
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
func (p *pass) choose(r *Request) (place.Shape, place.Choice, *place.Wait) {
	if r.Repeats != nil {
		wait := p.places.FindSame(*r.Repeats, p.now)
		if wait != nil {
			p.next = earliest(p.next, wait.Until)
		}
		return *r.Repeats, place.ChoiceRepeated, wait
	}
	permits := r.permits
	if p.places.Refuses(r.Definition) {
		permits += "\x00" + r.Definition
	}
	if w := p.waits[r.Class][permits]; w != nil {
		return place.Shape{}, "", w
	}
	shape, choice, wait := p.places.Find(r.Request, p.now)
	if wait != nil {
		if p.waits[r.Class] == nil {
			p.waits[r.Class] = map[string]*place.Wait{}
		}
		p.waits[r.Class][permits] = wait
		p.next = earliest(p.next, wait.Until)
	}
	return shape, choice, wait
}

// serve takes a grant out of the demand, and puts whose turn it was last.
func (p *pass) serve(grant Grant, class Class, t *tenantQueue, g *groupQueue) {
	p.places.Granted(grant.Request.Request, grant.Shape, p.now)
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
		if w := q.places.FindSame(*r.Repeats, now); w != nil {
			return &Wait{Wait: *w}
		}
	} else if _, _, w := q.places.Find(r.Request, now); w != nil {
		return &Wait{Wait: *w}
	}
	if !q.noTokens {
		return nil // it is served at once
	}
	w := &Wait{Wait: place.Wait{Kind: WaitBudget, Until: q.nextToken}}
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

// earliest returns the earlier of two times that are not zero.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
