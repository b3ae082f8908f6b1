package reconcile

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	firstBackoff = 5 * time.Second
	maxBackoff   = 5 * time.Minute
)

// shardState is the durable state of a shard's groups: state/{shard}.json.
type shardState struct {
	Groups map[string]groupState `json:"groups"` // by tenant/group
}

// groupState is what a group remembers across plans and terms.
type groupState struct {
	Paused       bool         `json:"paused,omitempty"`
	HaltedHash   string       `json:"halted_hash,omitempty"`
	HaltReason   string       `json:"halt_reason,omitempty"`
	Failures     int          `json:"failures,omitempty"` // consecutive creations that did not become ready
	Refusals     int          `json:"refusals,omitempty"` // the same, with those that capacity prevented
	BackoffUntil time.Time    `json:"backoff_until,omitzero"`
	LastGoodHash string       `json:"last_good_hash,omitempty"`
	LastGood     string       `json:"last_good,omitempty"` // digest of the definition
	LastGoodKind nstance.Kind `json:"last_good_kind,omitempty"`
}

func (s groupState) plan() History {
	return History{
		Paused: s.Paused, HaltedHash: s.HaltedHash, Failures: s.Failures,
		BackoffUntil: s.BackoffUntil, LastGoodHash: s.LastGoodHash,
	}
}

// failedToBecomeReady counts a creation that came to nothing. One that only
// capacity prevented slows the next ones down but halts no rollout.
func (r *Reconciler) failedToBecomeReady(m *member, capacity bool) {
	h := &m.group.history
	h.Refusals++
	if !capacity && m.rec.InfraHash == m.group.hash {
		h.Failures++
	}
	wait := maxBackoff
	if h.Refusals < 7 {
		wait = min(firstBackoff<<(h.Refusals-1), maxBackoff)
	}
	h.BackoffUntil = r.opts.Now().Add(wait)
	r.saveSoon()
}

func (r *Reconciler) saveSoon() {
	select {
	case r.saves <- struct{}{}:
	default:
	}
}

// saveStates writes the groups' histories whenever they changed, all of them at
// once, and again until it succeeds.
func (r *Reconciler) saveStates(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.saves:
		}
		snapshot := r.snapshotStates()
		_, err := r.states.Update(ctx, func(s *shardState) error { s.Groups = snapshot; return nil })
		if err == nil || ctx.Err() != nil {
			continue
		}
		r.log.Warn("group state not saved yet", "err", err)
		r.saveSoon()
		if !sleep(ctx, time.Second) {
			return
		}
	}
}

func (r *Reconciler) snapshotStates() map[string]groupState {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]groupState{}
	for key, g := range r.groups {
		if g.history != (groupState{}) {
			out[key.String()] = g.history
		}
	}
	return out
}

// sleep waits for d, or returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
