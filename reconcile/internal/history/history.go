// Package history is what a group remembers across plans and terms: its pause, freeze, halt and
// rollback, failed creates, the last good definition, markets, readiness and claims.
//
// A [Group] is a value that is stored as it is. What is behind its pointers is replaced, never
// changed, so that a copy can be saved while the group goes on. Methods that return changed
// report whether it has to be saved.
package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A Group is the history of one group. The zero Group has none. It is not safe for concurrent
// use.
type Group struct {
	Paused      bool      `json:"paused,omitempty"`
	PausedAt    time.Time `json:"paused_at,omitzero"`
	PauseReason string    `json:"pause_reason,omitempty"`
	Frozen      *Freeze   `json:"frozen,omitempty"`
	Rollback    *Rollback `json:"rollback,omitempty"`
	HaltedHash  string    `json:"halted_hash,omitempty"`
	HaltedAt    time.Time `json:"halted_at,omitzero"`
	HaltReason  string    `json:"halt_reason,omitempty"`
	Failures
	DrilledAt  time.Time     `json:"drilled_at,omitzero"`      // when its latest drill began, or the wait for the first one
	Reclaims   *ReclaimTimes `json:"reclaims,omitempty"`       // of spot members, as many as market.fallback_when counts; nil: none
	FallbackAt time.Time     `json:"fallback_at,omitzero"`     // when a member last was bought on demand in place of spot, or going back failed
	Returns    int           `json:"failed_returns,omitempty"` // to spot, in a row
	LastGood
	Claims  *[]Claim              `json:"claims,omitempty"`   // on stand-by members, oldest first; nil: none
	GoFirst *[]nstance.InstanceID `json:"go_first,omitempty"` // members that were named to go before others, sorted; nil: none
	Ready   *Readiness            `json:"ready,omitempty"`    // which members have been ready; nil: not known
	FullAt  int                   `json:"full_at,omitempty"`  // size at which all members were last ready, lowered with the size
}

// A Freeze forbids every change but drains in progress.
type Freeze struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// A Rollback makes the last good definition the desired one.
type Rollback struct {
	Since      time.Time `json:"since"`
	From       string    `json:"from"`       // configured infra hash; when another is configured the rollback ends
	Definition string    `json:"definition"` // digest
}

// LastGood is the definition with which all members were last ready.
type LastGood struct {
	GoodHash   string               `json:"last_good_hash,omitempty"` // empty: there is none
	GoodDigest string               `json:"last_good,omitempty"`
	Kind       nstance.InstanceKind `json:"last_good_kind,omitempty"`

	// Its timeouts; both zero: not known.
	Launch       time.Duration `json:"last_good_launch_ns,omitempty"`
	Registration time.Duration `json:"last_good_registration_ns,omitempty"`
}

// Empty reports whether g remembers nothing.
func (g *Group) Empty() bool { return *g == Group{} }

// Digests returns those of the definitions that groups may go back to.
func Digests(groups map[string]Group) (digests []string) {
	for _, g := range groups {
		if g.GoodDigest != "" {
			digests = append(digests, g.GoodDigest)
		}
		if g.Rollback != nil {
			digests = append(digests, g.Rollback.Definition)
		}
	}
	return digests
}

// Restore corrects what another leader recorded, whose clock may have been ahead by hours: no
// backoff is longer than one may be, and nothing happened later than now, if now can be trusted.
func (g *Group) Restore(now time.Time, trusted bool) {
	if !g.BackoffUntil.IsZero() {
		g.BackoffUntil = now.Add(min(g.BackoffUntil.Sub(now), maxBackoff))
	}
	if !trusted {
		return
	}
	if g.DrilledAt.After(now) {
		g.DrilledAt = now
	}
	if g.FallbackAt.After(now) {
		g.FallbackAt = now
	}
	g.Reclaims = g.Reclaims.before(now)
}

// Pause pauses the rollout. A repeat changes nothing, not even the reason.
func (g *Group) Pause(reason string, now time.Time) (changed bool) {
	if g.Paused {
		return false
	}
	g.Paused, g.PausedAt, g.PauseReason = true, now.UTC(), reason
	return true
}

// Resume ends a pause and the halt of the definition with this hash, and forgets failures.
func (g *Group) Resume(hash string) (changed bool) {
	halted := g.Halted(hash)
	if !g.Paused && !halted && g.Failures == (Failures{}) {
		return false
	}
	g.Paused, g.PausedAt, g.PauseReason = false, time.Time{}, ""
	if halted {
		g.HaltedHash, g.HaltedAt, g.HaltReason = "", time.Time{}, ""
	}
	g.Failures = Failures{}
	return true
}

// Halt halts the rollout to the definition with this hash, after failures.
func (g *Group) Halt(hash string, now time.Time) (changed bool) {
	if g.HaltedHash == hash {
		return false
	}
	g.HaltedHash, g.HaltedAt = hash, now.UTC()
	g.HaltReason = fmt.Sprintf("%d replacements in a row did not become ready", g.InRow)
	if g.LastFailure != "" {
		g.HaltReason += "; the latest: " + g.LastFailure
	}
	return true
}

// Halted reports whether the rollout to the definition with this hash is halted.
func (g *Group) Halted(hash string) bool { return g.HaltedHash != "" && g.HaltedHash == hash }

// SetReadyAt records that so many members are desired, and whether all of them are ready.
func (g *Group) SetReadyAt(size int, all bool) (changed bool) {
	before := g.FullAt
	if g.FullAt = min(g.FullAt, size); all {
		g.FullAt = size
	}
	return g.FullAt != before
}

// SetGoFirst records the members that were named to go before others.
func (g *Group) SetGoFirst(named []nstance.InstanceID) {
	g.GoFirst = nil
	if slices.Sort(named); len(named) > 0 {
		g.GoFirst = &named
	}
}

// GoesFirst reports whether a member is recorded as named.
func (g *Group) GoesFirst(id nstance.InstanceID) bool {
	return g.GoFirst != nil && slices.Contains(*g.GoFirst, id)
}
