// Package conformance is what the public test suites share: it bounds every call of
// the implementation under test, records what each one answered, and stops a run that
// has waited long enough.
package conformance

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// A Run is one run of a suite. It is safe for concurrent use.
type Run struct {
	limit time.Duration
	began time.Time

	mu     sync.Mutex
	wasted time.Duration // by waits that ended without success
	failed bool
}

// NewRun returns a run in which one wait takes at most limit. All waits in vain take at
// most twice that together.
func NewRun(limit time.Duration) *Run { return &Run{limit: limit, began: time.Now()} }

// Limit returns how long the next wait may take: not positive if the time of the run
// is used up.
func (r *Run) Limit() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(r.limit, 2*r.limit-r.wasted)
}

// Waste counts a wait of length d that was in vain.
func (r *Run) Waste(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wasted += d
}

// skipReason returns why the next subtest is not worth its time, or "".
func (r *Run) skipReason() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wasted >= 2*r.limit {
		return fmt.Sprintf("not checked: the subtests above waited %s in vain; repair them first", r.wasted.Round(time.Millisecond))
	}
	if d := time.Since(r.began); r.failed && d >= 2*r.limit {
		return fmt.Sprintf("not checked: a subtest above failed and the run has taken %s; repair it first", d.Round(time.Millisecond))
	}
	return ""
}

// Test runs check as a subtest and reports whether it passed. If it fails, the log
// shows the calls that came last. If the time of the run is used up, it is skipped.
func (r *Run) Test(t *testing.T, name string, check func(*testing.T, *Calls)) bool {
	t.Helper()
	return t.Run(name, func(t *testing.T) { r.check(t, check) })
}

// TestParallel is Test with a subtest that runs beside others, and has a subject of its own.
func (r *Run) TestParallel(t *testing.T, name string, check func(*testing.T, *Calls)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		r.check(t, check)
	})
}

func (r *Run) check(t *testing.T, check func(*testing.T, *Calls)) {
	if reason := r.skipReason(); reason != "" {
		t.Skip(reason)
	}
	c := &Calls{t: t, run: r}
	defer c.logIfFailed()
	check(t, c)
}

// Smoke runs the first subtest of a suite, and reports whether the others are worth
// running.
func (r *Run) Smoke(t *testing.T, check func(*testing.T, *Calls)) bool {
	t.Helper()
	passed := r.Test(t, "smoke", check)
	if !passed {
		t.Log("the smoke test failed: no other subtest was run")
	}
	return passed
}
