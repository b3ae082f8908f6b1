package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// shardState is the durable state of a shard and its groups: state/{shard}.json.
// Values behind its pointers are replaced, never changed.
type shardState struct {
	records.Header
	Account string                `json:"account,omitempty"` // of the provider, in which the machines are; empty: not known
	Frozen  *freeze               `json:"frozen,omitempty"`  // the whole shard
	Avoided []AvoidedPool         `json:"avoided,omitempty"` // by request
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
	Paused       bool                  `json:"paused,omitempty"`
	PausedAt     time.Time             `json:"paused_at,omitzero"`
	PauseReason  string                `json:"pause_reason,omitempty"`
	Frozen       *freeze               `json:"frozen,omitempty"`
	Rollback     *rollback             `json:"rollback,omitempty"`
	HaltedHash   string                `json:"halted_hash,omitempty"`
	HaltedAt     time.Time             `json:"halted_at,omitzero"`
	HaltReason   string                `json:"halt_reason,omitempty"`
	Failures     int                   `json:"failures,omitempty"`     // consecutive creations that did not become ready
	FailureHash  string                `json:"failure_hash,omitempty"` // of what they were made from; empty: not known
	Refusals     int                   `json:"refusals,omitempty"`     // the same, whatever they were made from
	LastFailure  string                `json:"last_failure,omitempty"` // why the latest of them came to nothing
	BackoffUntil time.Time             `json:"backoff_until,omitzero"`
	DrilledAt    time.Time             `json:"drilled_at,omitzero"`      // when its latest drill began, or the wait for the first one
	Reclaims     *reclaimTimes         `json:"reclaims,omitempty"`       // of spot members, as many as market.fallback_when counts; nil: none
	FallbackAt   time.Time             `json:"fallback_at,omitzero"`     // when a member last was bought on demand in place of spot, or going back failed
	Returns      int                   `json:"failed_returns,omitempty"` // to spot, in a row
	LastGoodHash string                `json:"last_good_hash,omitempty"`
	LastGood     string                `json:"last_good,omitempty"` // digest of the definition
	LastGoodKind nstance.InstanceKind  `json:"last_good_kind,omitempty"`
	Claims       *[]Claim              `json:"claims,omitempty"`   // on stand-by members, oldest first
	GoFirst      *[]nstance.InstanceID `json:"go_first,omitempty"` // members that were named to go before others, sorted
	Ready        *readiness            `json:"ready,omitempty"`    // which members have been ready; nil: not known
	FullAt       int                   `json:"full_at,omitempty"`  // size at which all members were last ready, lowered with the size

	// Of the last good definition; both zero: not known.
	LastGoodLaunch       time.Duration `json:"last_good_launch_ns,omitempty"`
	LastGoodRegistration time.Duration `json:"last_good_registration_ns,omitempty"`
}

// reclaimTimes are times of reclaims, the latest last.
type reclaimTimes []time.Time

// recordLastGood records m's definition as the last good one.
func (s *groupState) recordLastGood(m *member) {
	s.LastGoodHash, s.LastGood, s.LastGoodKind = m.rec.InfraHash, m.rec.Definition, m.id.Kind()
	s.LastGoodLaunch, s.LastGoodRegistration = m.rec.LaunchTimeout, m.rec.RegistrationTimeout
}

// clearFailures clears the failed creations and the backoff after them.
func (s *groupState) clearFailures() {
	s.Failures, s.FailureHash, s.Refusals, s.LastFailure, s.BackoffUntil = 0, "", 0, "", time.Time{}
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

const (
	firstBackoff = 5 * time.Second
	maxBackoff   = 5 * time.Minute

	// maxFailure is how many bytes of what the provider said of a failure are
	// kept with the group.
	maxFailure = 256
)

// bounded is the end of a backoff that another leader wrote, no later than a
// backoff may be: that leader's clock may have been ahead by hours, and this
// one's may be behind, or set.
func bounded(until, now time.Time) time.Time {
	if until.IsZero() {
		return until
	}
	return now.Add(min(until.Sub(now), maxBackoff))
}
