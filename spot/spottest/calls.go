package spottest

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
)

// recorded is a detector whose calls are bounded and recorded. A watcher does that for
// its watches.
type recorded struct {
	nstance.SpotDetector
	calls *conformance.Calls
}

func (r recorded) Interruptible(ctx context.Context) (bool, error) {
	return conformance.Call(ctx, r.calls, "Interruptible()", r.SpotDetector.Interruptible)
}

// recordedCloud records what the suite does to a cloud.
type recordedCloud struct {
	cloud Cloud
	calls *conformance.Calls
}

func (r recordedCloud) done(format string, args ...any) {
	r.calls.Record("Cloud."+fmt.Sprintf(format, args...), conformance.None{}, nil)
}

func (r recordedCloud) SetSpot(spot bool) {
	r.cloud.SetSpot(spot)
	r.done("SetSpot(%t)", spot)
}

func (r recordedCloud) Reclaim(action string, deadline time.Time) {
	r.cloud.Reclaim(action, deadline)
	r.done("Reclaim(%q, %s)", action, deadline.Format(time.RFC3339))
}

func (r recordedCloud) Withdraw() {
	r.cloud.Withdraw()
	r.done("Withdraw()")
}

func (r recordedCloud) Corrupt() {
	r.cloud.Corrupt()
	r.done("Corrupt()")
}

func (r recordedCloud) Break() {
	r.cloud.Break()
	r.done("Break()")
}

func (r recordedCloud) Restore() {
	r.cloud.Restore()
	r.done("Restore()")
}

func noticeWords(n nstance.Notice) string {
	words := fmt.Sprintf("%s notice %q, action %q", n.Kind, n.EventID, n.Action)
	if !n.Deadline.IsZero() {
		words += ", deadline " + n.Deadline.Format(time.RFC3339)
	}
	if n.Cancelled {
		words += ", cancelled"
	}
	return words
}
