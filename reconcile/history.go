package reconcile

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

const (
	firstBackoff = 5 * time.Second
	maxBackoff   = 5 * time.Minute

	// maxFailure is how many bytes of what the provider said of a failure are
	// kept with the group.
	maxFailure = 256
)

// shardState is the durable state of a shard and its groups: state/{shard}.json.
// Values behind its pointers are replaced, never changed.
type shardState struct {
	storage.Header
	Account string                `json:"account,omitempty"` // of the provider, in which the machines are; empty: not known
	Frozen  *freeze               `json:"frozen,omitempty"`  // the whole shard
	Groups  map[string]groupState `json:"groups"`            // by tenant/group
}

// A freeze forbids every change but drains in progress.
type freeze struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// A rollback makes the last good definition the desired one.
type rollback struct {
	Since      time.Time `json:"since"`
	From       string    `json:"from"`       // configured infra hash; when another is configured the rollback ends
	Definition string    `json:"definition"` // digest
}

// groupState is what is known of a group across plans and terms.
type groupState struct {
	Paused       bool         `json:"paused,omitempty"`
	PausedAt     time.Time    `json:"paused_at,omitzero"`
	PauseReason  string       `json:"pause_reason,omitempty"`
	Frozen       *freeze      `json:"frozen,omitempty"`
	Rollback     *rollback    `json:"rollback,omitempty"`
	HaltedHash   string       `json:"halted_hash,omitempty"`
	HaltedAt     time.Time    `json:"halted_at,omitzero"`
	HaltReason   string       `json:"halt_reason,omitempty"`
	Failures     int          `json:"failures,omitempty"`     // consecutive creations that did not become ready
	FailureHash  string       `json:"failure_hash,omitempty"` // of what they were made from; empty: not known
	Refusals     int          `json:"refusals,omitempty"`     // the same, whatever they were made from
	LastFailure  string       `json:"last_failure,omitempty"` // why the latest of them came to nothing
	BackoffUntil time.Time    `json:"backoff_until,omitzero"`
	FallbackAt   time.Time    `json:"fallback_at,omitzero"`     // when a member last was bought on demand in place of spot, or going back failed
	Returns      int          `json:"failed_returns,omitempty"` // to spot, in a row
	LastGoodHash string       `json:"last_good_hash,omitempty"`
	LastGood     string       `json:"last_good,omitempty"` // digest of the definition
	LastGoodKind nstance.Kind `json:"last_good_kind,omitempty"`
	FullAt       int          `json:"full_at,omitempty"` // size at which all members were last ready, lowered with the size

	// Of the last good definition; both zero: not known.
	LastGoodLaunch       time.Duration `json:"last_good_launch_ns,omitempty"`
	LastGoodRegistration time.Duration `json:"last_good_registration_ns,omitempty"`
}

// recordLastGood records m's definition as the last good one.
func (s *groupState) recordLastGood(m *member) {
	s.LastGoodHash, s.LastGood, s.LastGoodKind = m.rec.InfraHash, m.rec.Definition, m.id.Kind()
	s.LastGoodLaunch, s.LastGoodRegistration = m.rec.LaunchTimeout, m.rec.RegistrationTimeout
}

func (g *group) plan() plan.History {
	s := &g.history
	return plan.History{
		Paused: s.Paused, HaltedHash: s.HaltedHash, Failures: s.Failures, LastFailure: s.LastFailure,
		BackoffUntil: s.BackoffUntil, LastGoodHash: s.LastGoodHash,
		ReturnAt: g.returnAt(), FullAt: s.FullAt,
	}
}

// failedToBecomeReady counts a failed creation, unless capacity was the reason, and
// records why it failed.
func (r *Reconciler) failedToBecomeReady(m *member, why string) {
	m.answered, m.creationFailed = true, true
	h := &m.group.history
	h.Refusals++
	h.LastFailure = clip.Text(why, maxFailure)
	if m.rec.InfraHash == m.group.hash {
		h.Failures++
		h.FailureHash = m.group.hash
	}
	wait := maxBackoff
	if h.Refusals < 7 {
		wait = min(firstBackoff<<(h.Refusals-1), maxBackoff)
	}
	h.BackoffUntil = r.opts.Now().Add(wait)
	r.queue.add(m.group.key, false) // which then waits until then
	r.saveSoon()
}

// clearFailures clears the failed creations and the backoff after them.
func (s *groupState) clearFailures() {
	s.Failures, s.FailureHash, s.Refusals, s.LastFailure, s.BackoffUntil = 0, "", 0, "", time.Time{}
}

// A ledger counts the changes of what state/{shard}.json holds, so that the
// caller that made one can wait until it is durable.
type ledger struct {
	wake  chan struct{} // has room for one: there is something to save
	edits uint64        // changes so far; guarded by the reconciler's lock, as what follows
	tried uint64        // of them, those that the last attempt to save held
	saved uint64        // of them, those that are durable
	err   error         // of the last attempt
}

func newLedger() ledger { return ledger{wake: make(chan struct{}, 1)} }

func (l *ledger) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// saveSoon has the histories saved: one of them has changed. It needs the lock.
func (r *Reconciler) saveSoon() {
	r.ledger.edits++
	r.ledger.signal()
}

// saveStates writes the groups' histories whenever they changed, all of them at
// once, and again until it succeeds.
func (r *Reconciler) saveStates(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.ledger.wake:
		}
		now, edit := r.snapshotStates()
		r.records.KeepDefinitions(now.named()...)
		_, err := r.states.Update(ctx, func(s *shardState) error { s.Frozen, s.Groups = now.Frozen, now.Groups; return nil })
		r.recordSaved(edit, err)
		if err == nil || ctx.Err() != nil {
			continue
		}
		r.log.Warn("group state not saved yet", "code", nstance.CodeOf(err), "err", err)
		r.ledger.signal()
		if !sleep.For(ctx, time.Second) {
			return
		}
	}
}

// snapshotStates returns what is to be saved, and the last change that it holds.
func (r *Reconciler) snapshotStates() (shardState, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := shardState{Frozen: r.frozen, Groups: maps.Clone(r.absentGroups)}
	for key, g := range r.groups {
		if g.recorded = g.recorded || g.history != (groupState{}); g.recorded {
			out.Groups[key.String()] = g.history
		}
	}
	return out, r.ledger.edits
}

// named returns the digests of definitions.
func (s shardState) named() (digests []string) {
	for _, h := range s.Groups {
		if h.LastGood != "" {
			digests = append(digests, h.LastGood)
		}
		if h.Rollback != nil {
			digests = append(digests, h.Rollback.Definition)
		}
	}
	return digests
}

func (r *Reconciler) recordSaved(edit uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ledger.tried, r.ledger.err = edit, err
	if err == nil {
		r.ledger.saved = edit
	}
	r.wakeWaiters()
}

// wakeWaiters wakes the calls that wait for a change to be durable. It needs the lock.
func (r *Reconciler) wakeWaiters() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// durable blocks until a change is saved. It fails with Unavailable when an
// attempt to save it failed, or ctx ended first: it is in force all the same,
// and is saved later unless this leader falls before.
func (r *Reconciler) durable(ctx context.Context, edit uint64) error {
	var failed error
	err := r.await(ctx, func() bool {
		failed = nil
		if r.ledger.tried >= edit {
			failed = r.ledger.err
		}
		return failed != nil || r.ledger.saved >= edit
	})
	if err == nil && failed != nil {
		err = &nstance.Error{
			Code: nstance.Unavailable, Err: failed, Remedy: "look whether it holds, and ask again",
			Msg: fmt.Sprintf("not durable yet, it may still become so: %v", failed),
		}
	}
	return err
}

// restoreStates restores what earlier leaders recorded. It needs the lock.
func (r *Reconciler) restoreStates(states shardState, backs map[string]desiredSpec) {
	r.frozen, r.rollbackSpecs = states.Frozen, backs
	r.absentGroups = maps.Clone(states.Groups)
	if r.absentGroups == nil {
		r.absentGroups = map[string]groupState{}
	}
	for _, g := range r.groups {
		r.restoreGroup(g)
		r.resolveDesired(g)
	}
}

// restoreGroup restores what earlier leaders recorded of a group.
func (r *Reconciler) restoreGroup(g *group) {
	key := g.key.String()
	if h, ok := r.absentGroups[key]; ok {
		h.BackoffUntil = bounded(h.BackoffUntil, r.opts.Now())
		if now := r.opts.Now(); h.FallbackAt.After(now) { // by another leader's clock
			h.FallbackAt = now
		}
		g.history, g.recorded = h, true
		delete(r.absentGroups, key)
	}
	if back, ok := r.rollbackSpecs[key]; ok {
		g.rollbackSpec = &back
	}
}

// bounded is the end of a backoff that another leader wrote, no later than a
// backoff may be: that leader's clock may have been ahead by hours, and this
// one's may be behind, or set.
func bounded(until, now time.Time) time.Time {
	if until.IsZero() {
		return until
	}
	return now.Add(min(until.Sub(now), maxBackoff))
}

// drop takes a group out of memory. Its recorded state is kept in case it is
// configured again, unless it was removed. It needs the lock.
func (r *Reconciler) drop(g *group) {
	delete(r.groups, g.key)
	delete(r.unplanned, g.key)
	r.admission.Demand(g.key)
	r.publishHolds(g, nil, r.opts.Now())
	r.notifyGone(g)
	switch {
	case !g.recorded && g.history == (groupState{}):
	case g.spec.Removing:
		r.saveSoon()
	default:
		r.absentGroups[g.key.String()] = g.history
	}
}
