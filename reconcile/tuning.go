package reconcile

import (
	"cmp"

	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/reconcile/internal/silence"
)

// Tune changes settings from now on, and plans every group: another rate may permit
// more creates. When agents are to report more often than before, each has a whole
// interval before it counts as silent; change the agents first. Fails with Invalid, and
// changes nothing then, when a setting is wrong. It does no I/O and may be called
// concurrently.
func (r *Admin) Tune(t Tuning) error {
	if err := t.check(); err != nil {
		return err
	}
	if err := r.provider.Tune(t.Provider); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.health.Interval
	r.opts.DrainTimeout = orElse(t.DrainTimeout, defaultDrainTimeout)
	r.opts.MaxUnhealthy, r.opts.GC = cmp.Or(t.MaxUnhealthy, defaultMaxUnhealthy), t.GC.withDefaults()
	r.orphans.SetRule(r.orphanRule())
	r.health = policyFor(orElse(t.HealthInterval, health.DefaultInterval))
	r.silence = silence.Cache{}
	if r.health.Interval < was {
		now := r.opts.Now()
		for _, m := range r.members {
			m.healthTrack.RestartGrace(now)
		}
	}
	for key := range r.groups {
		r.queue.Add(key, false)
	}
	close(r.tuned)
	r.tuned = make(chan struct{})
	return nil
}
