package reconcile

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/silence"
)

// massSilence says how many members of g or of the shard fell silent together, if they are many.
func (s *shard) massSilence(g *group, now time.Time) string {
	if why := s.countSilent(slices.Values(g.members), now).InGroup(); why != "" {
		return why
	}
	return s.shardSilence(now).InShard(s.opts.MaxUnhealthy)
}

// shardSilence counts all members. Groups that are looked at together share one count.
func (s *shard) shardSilence(now time.Time) silence.Count {
	count, known := s.silence.Get(now)
	if !known {
		count = s.countSilent(maps.Values(s.members), now)
		s.silence.Set(now, count)
	}
	return count
}

// countSilent counts members that report, or should.
func (s *shard) countSilent(members iter.Seq[*member], now time.Time) silence.Count {
	all, last := 0, []time.Time(nil)
	for m := range members {
		if m.rec.OnDemand || !m.shouldReport() {
			continue
		}
		all++
		if s.health.Misses(m.healthTrack, now) > 0 {
			last = append(last, m.heardOf(s.began))
		}
	}
	return silence.Together(last, all, s.health.Interval+s.health.Jitter)
}

// recordBreaker raises an alarm when the breaker begins to hold a group.
func (s *shard) recordBreaker(g *group, why string, now time.Time) {
	mass := ""
	if why != "" {
		mass = s.massSilence(g, now)
	}
	if g.breaker.Record(why, mass, s.health.Interval+s.health.Jitter, now) {
		s.publishGroup(g, nstance.Event{Type: nstance.EventAlarm, Reason: "silent members are not replaced: " + why})
	}
}
