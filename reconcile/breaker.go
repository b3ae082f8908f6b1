package reconcile

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// minBreaker is how many silent members never trip the breaker of the shard.
const minBreaker = 2

// breaker says why silent members are not replaced at present: so many fell
// silent together, or did until now, while the provider says that they run, that
// the cause is more likely between them and this server than in each of them.
// Empty: they are.
func (s *shard) breaker(g *group, now time.Time) string {
	switch why := s.massSilence(g, now); {
	case why != "":
		return why
	case g.breakerTripped && (g.breakerHoldUntil.IsZero() || now.Before(g.breakerHoldUntil)):
		return "members that fell silent together have time to report again"
	}
	return ""
}

// massSilence says how many fell silent together, if they are many.
func (s *shard) massSilence(g *group, now time.Time) string {
	if mine, all := s.countSilent(slices.Values(g.members), now); all >= 3 && mine*2 > all {
		return fmt.Sprintf("%d of the group's %d members fell silent within one interval", mine, all)
	}
	silent, all := s.shardSilence(now)
	if silent > max(minBreaker, s.opts.MaxUnhealthy.Of(all)) {
		return fmt.Sprintf("%d of the shard's %d members fell silent within one interval", silent, all)
	}
	return ""
}

// shardSilence is silence of all members. Groups that are looked at together
// share one count.
func (s *shard) shardSilence(now time.Time) (silent, all int) {
	if c := &s.silenceCache; now.Sub(c.at) >= time.Second || now.Before(c.at) {
		c.at = now
		c.silent, c.all = s.countSilent(maps.Values(s.members), now)
	}
	return s.silenceCache.silent, s.silenceCache.all
}

// A silenceCount is how much of a shard was silent at a time.
type silenceCount struct {
	at          time.Time
	silent, all int
}

// countSilent counts the members that report, or should, and of them the most that
// fell silent within one report interval.
func (s *shard) countSilent(members iter.Seq[*member], now time.Time) (silent, all int) {
	var last []time.Time
	for m := range members {
		if m.rec.OnDemand || !m.registered() || m.gone || m.state != nstance.Booting {
			continue
		}
		all++
		if s.health.Misses(m.healthTrack, now) > 0 {
			last = append(last, m.heardOf(s.began))
		}
	}
	slices.SortFunc(last, time.Time.Compare)
	window, from := s.health.Interval+s.health.Jitter, 0
	for i, t := range last {
		for t.Sub(last[from]) > window {
			from++
		}
		silent = max(silent, i-from+1)
	}
	return silent, all
}

// recordBreaker raises an alarm when the breaker begins to hold a group. When what
// tripped it is over, it holds for another interval: the members report again one
// after another.
func (s *shard) recordBreaker(g *group, why string, now time.Time) {
	if why != "" && !g.breakerTripped {
		s.publishGroup(g, nstance.Event{Type: nstance.EventAlarm, Reason: "silent members are not replaced: " + why})
	}
	g.breakerTripped = why != ""
	switch {
	case why == "" || s.massSilence(g, now) != "":
		g.breakerHoldUntil = time.Time{}
	case g.breakerHoldUntil.IsZero():
		g.breakerHoldUntil = now.Add(s.health.Interval + s.health.Jitter)
	}
}
