package history

import (
	"cmp"
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
	FailureHash  string    `json:"failure_hash,omitempty"` // of the desired definition as the latest of them failed; empty: not known
	Refusals     int       `json:"refusals,omitempty"`     // the same, whatever they were made from
	LastFailure  string    `json:"last_failure,omitempty"` // why the latest of them failed
	BackoffUntil time.Time `json:"backoff_until,omitzero"`
}

// Failed counts a create that failed. It was made from the definition with hash made; desired
// is the hash of the desired one.
func (f *Failures) Failed(made, desired, why string, now time.Time) {
	f.Refusals++
	f.LastFailure, f.FailureHash = clip.Text(why, maxReason), cmp.Or(desired, f.FailureHash)
	if made == desired {
		f.InRow++
	}
	f.BackoffUntil = now.Add(sleep.Backoff(f.Refusals, firstBackoff, maxBackoff))
}

// Succeeded forgets the failures: a member has become ready.
func (f *Failures) Succeeded() (changed bool) {
	changed = *f != Failures{}
	*f = Failures{}
	return changed
}

// Desire forgets the failures, whatever was made, if another definition is desired now: the one
// with this hash. An empty hash is not known.
func (f *Failures) Desire(hash string) (changed bool) {
	changed = f.FailureHash != "" && hash != "" && f.FailureHash != hash
	if changed {
		*f = Failures{}
	}
	return changed
}
