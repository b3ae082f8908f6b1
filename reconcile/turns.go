package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// turns is the order in which waiting creates are taken from the create budget:
// those that answer a loss before all others, and among equals one tenant after
// the other. What is one tenant's goes round in the same way. A create is granted
// to whoever asks for it while there is one for everybody who comes before, too;
// so the order costs nothing while the budget serves all.
//
// What a group waits for is known from its last pass, and counts until the next
// one. It needs the reconciler's lock.
type turns struct {
	losses line
	others line
	clock  uint64
}

// A claim is a part of what a group wants made, with a turn of its own.
type claim struct {
	group nstance.GroupKey
	kind  claimKind
}

type claimKind int

const (
	claimLoss     claimKind = iota // replacements of sudden losses
	claimSize                      // everything else that the group wants by itself
	claimOnDemand                  // what was asked for beside its size
)

// A line is those who wait together.
type line struct {
	waiting int // creates
	tenants map[nstance.TenantID]*tenantTurn
}

type tenantTurn struct {
	turn
	claims map[claim]*turn
}

// A turn is somebody's place among others. Each round serves one create of each
// who waits; whoever came first goes first in it.
type turn struct {
	round   int // of the next create
	since   uint64
	waiting int // creates
}

// before returns how many of t's creates come before the nth of o, from 0.
func (t *turn) before(o *turn, n int) int {
	rounds := o.round + n - t.round
	if t.since < o.since {
		rounds++
	}
	return min(max(rounds, 0), t.waiting)
}

// sooner reports whether the next create of t comes before that of o.
func (t *turn) sooner(o *turn) bool {
	return t.round < o.round || t.round == o.round && t.since < o.since
}

func (t *turns) line(c claim) *line {
	if c.kind == claimLoss {
		return &t.losses
	}
	return &t.others
}

// A queued says what comes before a create.
type queued struct {
	losses  int // that are replaced first
	tenants int // creates of other tenants
	own     int // creates of the same tenant
}

func (q queued) all() int { return q.losses + q.tenants + q.own }

// reason says what keeps a create from being made now.
func (q queued) reason() string {
	const empty = "the create budget is used up"
	switch {
	case q.losses > 0:
		return empty + ": replacements of lost instances go first"
	case q.tenants > 0:
		return empty + ": tenants take turns"
	case q.own > 0:
		return empty + ": other creates of the tenant go first"
	}
	return empty
}

// ahead returns what comes before the nth create of c, from 0. Whoever asks
// settles in the end.
func (t *turns) ahead(c claim, n int) (q queued) {
	l := t.line(c)
	if c.kind != claimLoss {
		q.losses = t.losses.waiting
	}
	if len(l.tenants) == 0 {
		q.own = n
		return q
	}
	tenant, own := t.join(l, c)
	q.own = n
	for other, o := range tenant.claims {
		if other != c {
			q.own += o.before(own, n)
		}
	}
	for id, o := range l.tenants {
		if id != c.group.Tenant {
			q.tenants += o.before(&tenant.turn, q.own)
		}
	}
	return q
}

// join gives c a place in the present round, behind those who are there.
func (t *turns) join(l *line, c claim) (*tenantTurn, *turn) {
	tenant := l.tenants[c.group.Tenant]
	if tenant == nil {
		tenant = &tenantTurn{turn: t.newTurn(earliestTurn(l.tenants)), claims: map[claim]*turn{}}
		if l.tenants == nil {
			l.tenants = map[nstance.TenantID]*tenantTurn{}
		}
		l.tenants[c.group.Tenant] = tenant
	}
	own := tenant.claims[c]
	if own == nil {
		fresh := t.newTurn(earliestTurn(tenant.claims))
		own = &fresh
		tenant.claims[c] = own
	}
	return tenant, own
}

func (t *turns) newTurn(first *turn) turn {
	t.clock++
	fresh := turn{since: t.clock}
	if first != nil {
		fresh.round = first.round
	}
	return fresh
}

// took notes that a create of c was granted.
func (t *turns) took(c claim) {
	if tenant := t.line(c).tenants[c.group.Tenant]; tenant != nil && tenant.claims[c] != nil {
		tenant.round++
		tenant.claims[c].round++
	}
}

// settle says how many creates of c wait from now on. With none it leaves, and
// comes back as a newcomer.
func (t *turns) settle(c claim, waiting int) {
	l := t.line(c)
	if present := l.tenants[c.group.Tenant]; waiting == 0 && (present == nil || present.claims[c] == nil) {
		return
	}
	tenant, own := t.join(l, c)
	more := waiting - own.waiting
	own.waiting += more
	tenant.waiting += more
	l.waiting += more
	if own.waiting == 0 {
		delete(tenant.claims, c)
	}
	if len(tenant.claims) == 0 {
		delete(l.tenants, c.group.Tenant)
	}
}

// first returns the group whose turn it is, if any waits.
func (t *turns) first() (nstance.GroupKey, bool) {
	for _, l := range []*line{&t.losses, &t.others} {
		if l.waiting > 0 {
			_, tenant := soonest(l.tenants)
			c, _ := soonest(tenant.claims)
			return c.group, true
		}
	}
	return nstance.GroupKey{}, false
}

// at lets a tenant's turn and a claim's be compared alike.
func (t *turn) at() *turn { return t }

// soonest returns who comes first among some.
func soonest[K comparable, T interface{ at() *turn }](among map[K]T) (key K, first T) {
	var best *turn
	for k, t := range among {
		if best == nil || t.at().sooner(best) {
			key, first, best = k, t, t.at()
		}
	}
	return key, first
}

func earliestTurn[K comparable, T interface{ at() *turn }](among map[K]T) *turn {
	if len(among) == 0 {
		return nil
	}
	_, first := soonest(among)
	return first.at()
}

// take takes the nth create of c, from 0, from the create budget, or returns
// why it waits. It needs the lock.
func (r *Reconciler) take(c claim, n int, now time.Time) *plan.Hold {
	q := r.turns.ahead(c, n)
	ok, retryAt := r.provider.Reserve(now, q.all())
	if !ok {
		return &plan.Hold{Kind: plan.HoldBudget, Reason: q.reason(), Until: retryAt}
	}
	r.turns.took(c)
	return nil
}

// wakeNext has the group planned whose turn it is, once there is a create for
// it. That of the present pass comes again by itself. It needs the lock.
func (r *Reconciler) wakeNext(present nstance.GroupKey, now time.Time) {
	key, ok := r.turns.first()
	if !ok || key == present {
		return
	}
	if at := r.provider.Next(now); at.After(now) {
		r.queue.addAt(key, at)
		return
	}
	r.queue.add(key, false)
}
