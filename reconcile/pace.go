package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// maxSamples is how many durations of a kind are remembered.
const maxSamples = 16

// A pace is how long things took in a group during this term.
type pace struct {
	launches []time.Duration // from the choice of an instance to its first good report
	drains   []time.Duration // from the start of a drain until the record was gone
}

func sampled(all []time.Duration, d time.Duration) []time.Duration {
	return append(all[max(0, len(all)-maxSamples+1):], d)
}

// timeLaunch notes that m, made in this term, has become ready.
func (s *shard) timeLaunch(m *member) {
	if m.rec.CreatedEpoch == s.opts.Epoch && !m.healthySince.IsZero() {
		m.group.pace.launches = sampled(m.group.pace.launches, max(0, m.healthySince.Sub(m.rec.CreatedAt)))
	}
}

// timeDrain notes that m is gone.
func (s *shard) timeDrain(m *member) {
	if m.drain != nil && !m.drain.StartedAt.IsZero() {
		m.group.pace.drains = sampled(m.group.pace.drains, max(0, s.opts.Now().Sub(m.drain.StartedAt)))
	}
}

// launch is how long a launch takes at most, and what that rests on;
// zero: not known.
func (p pace) launch(spec nstance.Group) (time.Duration, string) {
	limit := spec.Definition.LaunchTimeout
	switch {
	case len(p.launches) > 0:
		d := slices.Max(p.launches)
		return d, fmt.Sprintf("the slowest of the last %d launches took %s", len(p.launches), round(d))
	case limit > 0:
		return limit, fmt.Sprintf("no launch was seen by this leader: launch_timeout %s is the upper bound", limit)
	}
	return 0, "no launch was seen by this leader, and launch_timeout is off"
}

// drain is the same for drains.
func (p pace) drain(spec nstance.Group) (time.Duration, string) {
	switch {
	case spec.DrainTimeout <= 0:
		return 0, "nothing is drained"
	case len(p.drains) > 0:
		d := min(slices.Max(p.drains), spec.DrainTimeout)
		return d, fmt.Sprintf("the slowest of the last %d drains took %s", len(p.drains), round(d))
	}
	return spec.DrainTimeout, fmt.Sprintf("no drain was seen: drain_timeout %s is the upper bound", spec.DrainTimeout)
}

func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
