package reconcile

import "time"

const (
	// longPlan is from when a plan counts as long: one of two thousand members.
	longPlan = 4 * time.Millisecond

	// planBurst is how much time long plans may take at once.
	planBurst = 2 * longPlan
)

// A planBudget is the time that long plans may take: half of all, and a burst after other
// times.
type planBudget struct {
	left  time.Duration
	spent time.Time // when last
}

func newPlanBudget(now time.Time) planBudget { return planBudget{planBurst, now} }

// spend takes a plan that ended just now out of the budget, and returns how long the next
// one has to wait.
func (b *planBudget) spend(took time.Duration, now time.Time) (over time.Duration) {
	if took < longPlan {
		return 0
	}
	b.left = min(planBurst, b.left+now.Sub(b.spent)-took) - took
	b.spent = now
	return max(0, -b.left)
}
