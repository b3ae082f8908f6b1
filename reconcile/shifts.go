package reconcile

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// shiftMemory is how long a zone of which the cloud does not say when its shift ends is
// avoided after the last answer.
const shiftMemory = 15 * time.Minute

// recordShifts replaces what the cloud avoids.
func (r *Reconciler) recordShifts(shifts []nstance.ZoneShift) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setShifts(shifts, r.opts.Now())
}

func (s *shard) setShifts(shifts []nstance.ZoneShift, now time.Time) {
	s.shiftsReadAt = now
	var all []AvoidedPool
	for _, shift := range shifts {
		p := s.shiftedPool(shift, now)
		if p.validate() == nil && s.stands(&p, now) && !containsPool(all, p.Pool) && len(all) < maxAvoided {
			all = append(all, p)
		}
	}
	if slices.Equal(all, s.shifted) {
		return
	}
	for _, p := range s.shifted {
		if !containsPool(all, p.Pool) {
			s.publishReleased(p, now, "the cloud has ended it")
		}
	}
	for i := range all {
		if !containsPool(s.shifted, all[i].Pool) {
			s.publishShard(nstance.Event{Type: nstance.EventHoldStarted, Reason: all[i].hold().text()})
		}
	}
	s.shifted = all
	s.avoidPools()
}

// shiftedPool returns what a zone that is shifted away from means. It began when it was
// first read, if the cloud does not say when.
func (s *shard) shiftedPool(shift nstance.ZoneShift, now time.Time) AvoidedPool {
	p := AvoidedPool{Pool: Pool{Zone: shift.Zone}, Since: shift.Since.UTC(), Until: shift.Until.UTC(), Reason: cmp.Or(clip.Text(shift.Reason, maxReason), "zonal shift"), Cloud: true}
	if i := slices.IndexFunc(s.shifted, func(a AvoidedPool) bool { return a.Pool == p.Pool }); i >= 0 && p.Since.IsZero() {
		p.Since = s.shifted[i].Since
	}
	if p.Since.IsZero() {
		p.Since = now.UTC()
	}
	return p
}

func containsPool(all []AvoidedPool, p Pool) bool {
	return slices.ContainsFunc(all, func(a AvoidedPool) bool { return a.Pool == p })
}

// readable returns what the cloud avoids, without what was not read for too long, and has
// no end of its own.
func (s *shard) readable(now time.Time) (out []AvoidedPool) {
	for _, p := range s.shifted {
		if p.Until.IsZero() && s.reached(s.shiftsReadAt.Add(shiftMemory), now) {
			s.publishReleased(p, now, "the cloud could not be asked for "+shiftMemory.String())
			continue
		}
		out = append(out, p)
	}
	return out
}
