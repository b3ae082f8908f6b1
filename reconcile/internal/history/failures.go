package history

import (
	"time"

	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	firstBackoff = 5 * time.Second
	maxBackoff   = 5 * time.Minute

	// maxReason is how many bytes are kept of why a create failed.
	maxReason = 256
)

// Failures are consecutive creates that did not become ready.
type Failures struct {
	InRow        int       `json:"failures,omitempty"`     // of the desired definition
	FailureHash  string    `json:"failure_hash,omitempty"` // of that definition; empty: not known
	Refusals     int       `json:"refusals,omitempty"`     // the same, whatever they were made from
	LastFailure  string    `json:"last_failure,omitempty"` // why the latest of them failed
	BackoffUntil time.Time `json:"backoff_until,omitzero"`
}

// Failed counts a create that failed. It was made from the definition with hash made; desired
// is the hash of the desired one.
func (f *Failures) Failed(made, desired, why string, now time.Time) {
	f.Refusals++
	f.LastFailure = clip.Text(why, maxReason)
	if made == desired {
		f.InRow++
		f.FailureHash = desired
	}
	f.BackoffUntil = now.Add(sleep.Backoff(f.Refusals, firstBackoff, maxBackoff))
}

// Succeeded forgets the failures: a member has become ready.
func (f *Failures) Succeeded() (changed bool) {
	changed = f.InRow > 0 || f.Refusals > 0
	if changed {
		*f = Failures{}
	}
	return changed
}

// Desire forgets the failures of another definition than the one with this hash. An empty hash
// is not known.
func (f *Failures) Desire(hash string) (changed bool) {
	changed = f.FailureHash != "" && hash != "" && f.FailureHash != hash
	if changed {
		*f = Failures{}
	}
	return changed
}
