package plan

import (
	"fmt"
	"time"
)

// refill is P3: the group's deficit is created in parallel. The first creates
// replace losses; the first of these name them. Losses for which nothing has been
// created yet wait for no backoff.
func (p *planner) refill() {
	need := p.need()
	urgent := min(need, len(p.unanswered))
	losses := min(need, max(urgent, p.missing()))
	if p.Unreadable > 0 {
		need = losses
	} else if p.History.Failures+p.failing > 0 {
		losses = urgent // a definition that never works would always be served before all others
	}
	for i := range urgent + p.createRoom(need-urgent) {
		if i < losses {
			p.create(ReasonReplace)
		} else {
			p.create(p.deficitReason())
		}
	}
}

// missing is how many members the group lacks of what it once was. Those that
// leave voluntarily are replaced by the rollout, and each record that cannot be
// read may be a member.
func (p *planner) missing() int {
	return min(p.size, p.History.FullAt) - p.n.counted - p.Unreadable - p.n.voluntary
}

// create asks for one member. It is created from the last good definition while
// the desired one is on hold, so that a reclaim does not import a bad image.
func (p *planner) create(reason Reason) {
	a := Action{Kind: Create, Reason: reason, Count: 1}
	a.LastGood = p.lastGood()
	a.Market = p.nextMarket(reason)
	if reason != ReasonReplace {
		p.otherCreates++
	} else {
		if p.lossCreates < len(p.unanswered) {
			a.Replaces = p.unanswered[p.lossCreates].ID
		}
		p.lossCreates++
	}
	if last := len(p.out.Actions) - 1; last >= 0 && p.out.Actions[last].alike(a) {
		p.out.Actions[last].Count++
		return
	}
	p.act(a)
}

// lastGood reports whether members are created from the last good definition.
func (c *Census) lastGood() bool {
	return c.held() && c.History.LastGoodHash != "" && c.History.LastGoodHash != c.Hash
}

// alike reports whether two creates differ in nothing.
func (a Action) alike(b Action) bool {
	return a.Kind == Create && b.Kind == Create && a.Replaces == "" && b.Replaces == "" &&
		a.Reason == b.Reason && a.Market == b.Market && a.LastGood == b.LastGood
}

// deficitReason is the reason of a create that replaces no loss.
func (p *planner) deficitReason() Reason {
	if p.n.stale > 0 || p.n.voluntary > 0 {
		return ReasonRollout
	}
	return ReasonSize
}

// createRoom returns how many of want creates that replace no sudden loss may be
// made now. After a failure none are until the backoff is over, and then one at
// a time until a member has become ready. The first failure is answered at once;
// one that follows it waits, though how long is known only when it is counted.
func (p *planner) createRoom(want int) int {
	h := &p.History
	switch {
	case want <= 0:
		return 0
	case !h.BackoffUntil.IsZero() && !p.passed(h.BackoffUntil):
		p.hold(HoldBackoff, withLastFailure("backing off after failed creates", h.LastFailure), h.BackoffUntil)
		return 0
	case h.BackoffUntil.IsZero() || h.Failures == 0:
		return want
	case p.failing > 0:
		p.hold(HoldBackoff, withLastFailure("backing off after failed creates", h.LastFailure), time.Time{})
		return 0
	}
	room := min(want, max(0, 1-p.n.unregistered-p.otherCreates))
	if room < want {
		p.hold(HoldBackoff, withLastFailure("after failed creates one at a time until a member is ready", h.LastFailure), time.Time{})
	}
	return room
}

// held reports whether nothing voluntary may be done towards the desired
// definition.
func (c *Census) held() bool { return c.History.Paused || c.halted() }

// halted reports whether the rollout to the desired hash has failed too often,
// on record or as of now. A definition with which the whole group was ready
// once halts only the replacement of members that are stale.
func (c *Census) halted() bool { return c.History.HaltedHash == c.Hash || c.tripped() }

func (c *Census) tripped() bool {
	limit := c.Group.Rollout.HaltAfter
	return limit > 0 && c.History.Failures >= limit && (c.n.stale > c.n.misplaced || c.History.LastGoodHash != c.Hash)
}

// halt is P6: it reports a halt that is not on record yet, and what stops the
// rollout.
func (p *planner) halt() {
	p.out.Halt = p.tripped() && p.History.HaltedHash != p.Hash
	if p.History.Paused {
		p.hold(HoldPaused, "the rollout is paused", time.Time{})
	}
	if p.halted() {
		p.hold(HoldHalted, "creates from the desired definition did not become ready", time.Time{})
	}
}

func (p *planner) holdf(kind HoldKind, format string, args ...any) {
	p.hold(kind, fmt.Sprintf(format, args...), time.Time{})
}

// withLastFailure adds why the latest create failed, if that is known.
func withLastFailure(text, failure string) string {
	if failure == "" {
		return text
	}
	return text + "; the latest: " + failure
}
