package reconcile

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

const (
	// firstLaunches is how many creates may be under way before the first of
	// them has been answered: a shortage costs so many calls, and capacity one
	// answer's time, after which all others may go.
	firstLaunches = 4
	// mostLaunches is where the doubling ends.
	mostLaunches = 1 << 20
	// firstPause and longestPause are the pauses between two attempts while
	// everything is sold out: few calls a minute from the first, and capacity
	// that returns is found within one.
	firstPause   = 10 * time.Second
	longestPause = time.Minute
)

// A launch is the budget for creates that permit the same shapes, whichever
// group they are for. It doubles with each one that succeeds, or after a shortage
// grows by one: what comes back may be a little. It halves with each that the
// provider has no capacity for; while all those shapes are sold out it lets one
// attempt through at a time, and doubles the pauses between them. It needs the
// reconciler's lock.
type launch struct {
	window  int       // creates that may be without an answer
	open    int       // creates that are
	heard   time.Time // when the window last changed
	short   time.Time // when the provider last had no capacity
	probeAt time.Time // next attempt while everything is sold out
	pause   time.Duration
	shut    time.Time // until when everything counts as sold out, whatever the capacity memory says
	waiting map[nstance.GroupKey]bool
}

// launches are the budgets by the shapes that they are for.
type launches map[string]*launch

// of returns the budget for a definition, made when it is first asked for.
func (l launches) of(def nstance.Definition, now time.Time) *launch {
	key := strings.Join(slices.Concat(slices.Sorted(slices.Values(def.InstanceTypes)), []string{""},
		slices.Sorted(slices.Values(def.Subnets)), []string{"", string(def.Market.Type), string(def.Market.Fallback)}), "\x00")
	b := l[key]
	if b == nil {
		for old, o := range l {
			if o.idle(now) {
				delete(l, old)
			}
		}
		b = &launch{window: firstLaunches, pause: firstPause, waiting: map[nstance.GroupKey]bool{}}
		l[key] = b
	}
	return b
}

// idle reports whether a budget has nothing to remember.
func (b *launch) idle(now time.Time) bool {
	return b.open == 0 && len(b.waiting) == 0 && now.Sub(b.heard) > 2*rememberFor && now.After(b.shut)
}

// A pass says that a create may be made.
type pass struct {
	ok    bool
	probe bool      // although everything is sold out
	until time.Time // refused until then; zero: until an answer comes

	probeAt time.Time // the budget's, as they were before
	pause   time.Duration
}

// admit takes one create from the budget. Free says that some shape may be had;
// urgent creates, which answer a loss, then wait for no other's answer.
func (b *launch) admit(free, urgent bool, now time.Time) pass {
	if now.Sub(b.heard) > rememberFor {
		b.window = firstLaunches
	}
	switch {
	case !free || now.Before(b.shut):
		if now.Before(b.probeAt) {
			return pass{until: b.probeAt}
		}
		p := pass{ok: true, probe: true, probeAt: b.probeAt, pause: b.pause}
		b.pause = min(2*b.pause, longestPause)
		b.probeAt = now.Add(b.pause)
		b.open++
		return p
	case urgent || b.open < b.window:
		b.open++
		return pass{ok: true}
	}
	return pass{}
}

// succeeded and those below take the end of a create that was admitted.
func (b *launch) succeeded(now time.Time) {
	b.open--
	more := b.window
	if now.Sub(b.short) < rememberFor {
		more = 1
	}
	b.heard, b.window = now, min(b.window+more, mostLaunches)
	b.shut, b.probeAt, b.pause = time.Time{}, time.Time{}, firstPause
}

// failed takes a refusal for lack of capacity or quota.
func (b *launch) failed(now time.Time) {
	b.open--
	b.tighten(now)
}

// tighten halves the window: there is a shortage.
func (b *launch) tighten(now time.Time) {
	b.heard, b.short, b.window, b.probeAt = now, now, max(b.window/2, 1), now.Add(b.pause)
}

// ended takes any other end.
func (b *launch) ended() { b.open-- }

// returned takes back a pass that nothing was done with. An attempt while
// everything is sold out is then still due: else whoever waits for the create
// budget whenever one is, would never make any.
func (b *launch) returned(p pass) {
	b.open--
	if p.probe {
		b.probeAt, b.pause = p.probeAt, p.pause
	}
}

// errSoldOut keeps a create from being asked for: since it was planned, every
// shape that it permits has sold out. Nothing of it is durable.
var errSoldOut error = &nstance.Error{Code: nstance.Capacity, Msg: "every permitted shape has sold out meanwhile"}

// launchable takes a create for g, from a definition that need not be the group's,
// from its budget, and returns the pass with the budget that is to hear of its end.
func (r *Reconciler) launchable(g *group, def nstance.Definition, urgent bool, now time.Time) (pass, *launch) {
	b := r.launches.of(def, now)
	_, free := r.shelf.choose(def, def.Subnets, r.subnets.full(now), now)
	p := b.admit(free, urgent, now)
	if !p.ok {
		b.waiting[g.key] = true
	}
	return p, b
}

// launchHold says why creates wait.
func launchHold(p pass) plan.Hold {
	if p.until.IsZero() {
		return plan.Hold{Kind: plan.HoldCapacity, Reason: "waiting for the provider's answer to the first creates of these shapes"}
	}
	return plan.Hold{Kind: plan.HoldCapacity, Reason: "every shape that the group permits is sold out: one attempt at a time", Until: p.until}
}

// launched tells m's budget how the first attempt at its create ended.
func (r *Reconciler) launched(m *member, err error) {
	b := m.launch
	if b == nil {
		return
	}
	m.launch = nil
	now := r.opts.Now()
	switch {
	case err == nil:
		b.succeeded(now)
	case errors.Is(err, errSoldOut):
		b.ended()
		b.shut = now.Add(b.pause) // what was planned on does not hold: no faster than a probe
	case errors.Is(err, nstance.Quota), errors.Is(err, nstance.Capacity):
		b.failed(now)
	default:
		b.ended()
	}
	for key := range b.waiting {
		r.queue.add(key, false)
		delete(b.waiting, key)
	}
}
