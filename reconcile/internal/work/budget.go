package work

import "time"

const (
	// LongPlan is from when a plan counts as long: one of two thousand members.
	LongPlan = 4 * time.Millisecond

	// Burst is how much time long plans may take at once.
	Burst = 2 * LongPlan
)

// A Budget is the time that long plans may take: half of all, and a burst after other
// times.
type Budget struct {
	left  time.Duration
	spent time.Time // when last
}

// NewBudget returns a budget of which nothing is spent.
func NewBudget(now time.Time) Budget { return Budget{Burst, now} }

// Spend takes a plan that ended just now out of the budget, and returns how long the next
// one has to wait.
func (b *Budget) Spend(took time.Duration, now time.Time) (over time.Duration) {
	if took < LongPlan {
		return 0
	}
	b.left = min(Burst, b.left+now.Sub(b.spent)-took) - took
	b.spent = now
	return max(0, -b.left)
}
