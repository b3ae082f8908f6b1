package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// marginSamples is how many deletions are remembered of a group, marginFrom how many
	// it takes to estimate from them.
	marginSamples, marginFrom = 32, 5

	// shortestMargin and longestMargin bound what is learned.
	shortestMargin, longestMargin = 5 * time.Second, time.Minute
)

// deletionTimes are how long the latest deletions of a group took after their drains:
// withdrawal from load balancers, the durable mark, and the provider's call until it was
// accepted. What the cloud does after that it also does at its deadline.
type deletionTimes []time.Duration

func (t *deletionTimes) add(took time.Duration) {
	*t = append((*t)[max(0, len(*t)-marginSamples+1):], took)
}

// margin returns how long before the cloud's deadline a drain must end so that the
// deletion is accepted by then, in nine of ten cases and half as much again; 0: too little
// is known.
func (t deletionTimes) margin() time.Duration {
	if len(t) < marginFrom {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	p90 := sorted[(len(sorted)*9-1)/10]
	return min(longestMargin, max(shortestMargin, p90*3/2)).Round(time.Millisecond)
}

// deletionBegan records that m is to be deleted after its drain.
func (s *shard) deletionBegan(m *member) {
	if m.deleteBegan == 0 && m.drain != nil && !m.gone {
		m.deleteBegan = s.clock.Elapsed()
	}
}

// deletionAccepted records that the provider has accepted it.
func (s *shard) deletionAccepted(m *member) {
	if m.deleteBegan > 0 && !m.deleteAccepted {
		m.group.deletions.add(s.clock.Elapsed() - m.deleteBegan)
	}
}

// prepareDrain sets what the leader knows about the end of the drain for a notice, when it
// receives it: later knowledge must not move a deadline.
func (m *member) prepareDrain(n *nstance.Notice) {
	n.Warning, n.Margin = 0, m.group.deletions.margin()
	if n.Kind == nstance.Reclaim && n.Deadline.IsZero() {
		n.Warning = m.machine.ReclaimWarning
	}
}
