// Package pace remembers how long the latest launches, drains and deletions of a group took, and
// estimates from that how long the next ones take.
package pace

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// maxSamples is how many launches and drains are remembered.
	maxSamples = 16

	// maxDeletions is how many deletions are remembered, minDeletions how many a margin
	// needs.
	maxDeletions, minDeletions = 32, 5

	// shortestMargin and longestMargin bound a margin.
	shortestMargin, longestMargin = 5 * time.Second, time.Minute
)

// A Pace is that of one group in this term. The zero Pace knows nothing. It is not safe for
// concurrent use.
type Pace struct {
	launches  []time.Duration
	drains    []time.Duration
	deletions []time.Duration
}

// Launched records a launch: from the choice of an instance to its first good report.
func (p *Pace) Launched(took time.Duration) { p.launches = sampled(p.launches, took, maxSamples) }

// Drained records a drain: from its start until the record was gone.
func (p *Pace) Drained(took time.Duration) { p.drains = sampled(p.drains, took, maxSamples) }

// Deleted records a deletion after a drain: withdrawal from load balancers, the durable mark, and
// the provider's call until it was accepted. What the cloud does after that it also does at its
// deadline.
func (p *Pace) Deleted(took time.Duration) { p.deletions = sampled(p.deletions, took, maxDeletions) }

func sampled(all []time.Duration, took time.Duration, most int) []time.Duration {
	return append(all[max(0, len(all)-most+1):], max(0, took))
}

// Margin returns how long before the cloud's deadline a drain must end so that the deletion is
// accepted by then, in nine of ten cases and half as much again; 0: too little is known.
func (p *Pace) Margin() time.Duration {
	if len(p.deletions) < minDeletions {
		return 0
	}
	sorted := slices.Sorted(slices.Values(p.deletions))
	p90 := sorted[(len(sorted)*9-1)/10]
	return min(longestMargin, max(shortestMargin, p90*3/2)).Round(time.Millisecond)
}

// Work is what is to be done in a group, and under which limits.
type Work struct {
	Creates  int // those of replacements included
	Replaced int
	Leaving  int // drained without a replacement
	Surge    int // members that are replaced together

	LaunchTimeout time.Duration // 0: none
	DrainTimeout  time.Duration // 0: nothing is drained
	MinReady      time.Duration
}

// Estimate returns how long the work takes at most, and what that rests on: creates that wait for
// nothing are made together, replacements Surge at a time, each with a launch, MinReady and a
// drain. Zero: there is nothing to do, or it is not known.
func (p *Pace) Estimate(w Work) (total time.Duration, basis string) {
	if w.Creates+w.Leaving == 0 {
		return 0, ""
	}
	var parts []string
	launch, why := p.launch(w.LaunchTimeout)
	if w.Creates > 0 {
		if launch == 0 {
			return 0, why
		}
		parts = append(parts, why)
	}
	drain, why := p.drain(w.DrainTimeout)
	if w.Replaced+w.Leaving > 0 {
		parts = append(parts, why)
	}
	launch += w.MinReady
	if w.Creates > w.Replaced {
		total += launch
	}
	if w.Leaving > 0 {
		total += drain
	}
	surge := max(1, w.Surge)
	total += time.Duration((w.Replaced+surge-1)/surge) * (launch + drain)
	return total, strings.Join(parts, "; ")
}

// launch returns how long a launch takes at most, and what that rests on; 0: not known.
func (p *Pace) launch(limit time.Duration) (time.Duration, string) {
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
func (p *Pace) drain(limit time.Duration) (time.Duration, string) {
	switch {
	case limit <= 0:
		return 0, "nothing is drained"
	case len(p.drains) > 0:
		d := min(slices.Max(p.drains), limit)
		return d, fmt.Sprintf("the slowest of the last %d drains took %s", len(p.drains), round(d))
	}
	return limit, fmt.Sprintf("no drain was seen: drain_timeout %s is the upper bound", limit)
}

func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
