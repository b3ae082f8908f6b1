package reconcile

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
)

// refill is P3: the group's deficit is created in parallel. The first creates
// answer losses, those of earlier passes before those of this one, and are
// labelled with them.
func (p *planner) refill() {
	need := max(0, p.size-p.n.counted)
	want := need
	if p.Unreadable > 0 {
		want = p.exactly(need)
	}
	urgent := len(p.Owed) + p.urgent
	n := min(want, urgent+p.createRoom(want-urgent))
	for i := range n {
		reason := p.plainReason()
		if i < p.losses() || p.Unreadable > 0 {
			reason = ReasonReplace
		}
		p.create(reason)
	}
}

// exactly returns how many losses are to be replaced while records of the group
// cannot be read: those of this pass, those that are owed, and earlier ones that
// nobody remembers, because another leader was to replace them. For the latter
// each unreadable record is taken for a member.
func (p *planner) exactly(need int) int {
	open := len(p.lost) + p.n.losses - p.n.replacing
	return min(need, max(p.losses(), min(need-p.Unreadable, open)))
}

// losses is how many replacements are owed.
func (p *planner) losses() int { return len(p.Owed) + len(p.lost) }

// loss returns the nth of them, from 0.
func (p *planner) loss(n int) nstance.InstanceID {
	if n < len(p.Owed) {
		return p.Owed[n]
	}
	return p.lost[n-len(p.Owed)].ID
}

// create asks for one member. It is made from the last good definition while
// the desired one is on hold, so that a reclaim does not import a bad image.
func (p *planner) create(reason Reason) {
	a := Action{Kind: Create, Reason: reason}
	if p.held() {
		a.LastGood = p.History.LastGoodHash != "" && p.History.LastGoodHash != p.Hash
	}
	a.Market = p.nextMarket(reason)
	if reason != ReasonReplace {
		p.plain++
		p.act(a)
		return
	}
	if p.owed < p.losses() {
		a.Replaces, a.Failure = p.loss(p.owed), p.owed >= len(p.Owed)+p.urgent
	}
	p.owed++
	p.act(a)
}

func (p *planner) plainReason() Reason {
	if p.n.stale > 0 || p.n.voluntary > 0 {
		return ReasonRollout
	}
	return ReasonSize
}

// createRoom returns how many of want creates that answer no sudden loss may be
// made now. After a failure none are until the backoff is over, and then one at
// a time until a member has become ready. The first failure is answered at once;
// one that follows it waits, though how long is known only when it is counted.
func (p *planner) createRoom(want int) int {
	h := &p.History
	switch {
	case want <= 0:
		return 0
	case !h.BackoffUntil.IsZero() && !p.passed(h.BackoffUntil):
		p.hold(HoldBackoff, because("creations failed: the next ones wait", h.LastFailure), h.BackoffUntil)
		return 0
	case h.BackoffUntil.IsZero() || h.Failures == 0:
		return want
	case p.failing > 0:
		p.hold(HoldBackoff, because("creations failed: the next ones wait", h.LastFailure), time.Time{})
		return 0
	}
	room := min(want, max(0, 1-p.n.unregistered-p.plain))
	if room < want {
		p.hold(HoldBackoff, because("creations failed: one at a time until a member is ready", h.LastFailure), time.Time{})
	}
	return room
}

// held reports whether nothing voluntary may be done towards the desired
// definition.
func (p *planner) held() bool { return p.History.Paused || p.halted() }

// halted reports whether the rollout to the desired hash has failed too often,
// on record or as of now. A definition with which the whole group was ready
// once halts only what would still be replaced.
func (p *planner) halted() bool { return p.History.HaltedHash == p.Hash || p.tripped() }

func (p *planner) tripped() bool {
	limit := p.Group.Rollout.HaltAfter
	return limit > 0 && p.History.Failures >= limit && (p.n.stale > p.n.misplaced || p.History.LastGoodHash != p.Hash)
}

// halt is P6: it reports a halt that is not on record yet, and what stands in a
// rollout's way.
func (p *planner) halt() {
	p.out.Halt = p.tripped() && p.History.HaltedHash != p.Hash
	if p.History.Paused {
		p.hold(HoldPaused, "somebody paused the rollout", time.Time{})
	}
	if p.halted() {
		p.hold(HoldHalted, "creations from the desired definition did not become ready", time.Time{})
	}
}

func (p *planner) holdf(kind, format string, args ...any) {
	p.hold(kind, fmt.Sprintf(format, args...), time.Time{})
}

// because adds to what is the case why the latest creation failed, if that is
// known.
func because(what, failure string) string {
	if failure == "" {
		return what
	}
	return what + "; the latest: " + failure
}
