package reconcile

import (
	"cmp"
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/provider"
)

// Tuning holds the Options that can be changed while a Reconciler runs. Zero values
// mean the defaults given there.
type Tuning struct {
	HealthInterval time.Duration
	DrainTimeout   time.Duration
	MaxUnhealthy   nstance.Count
	GC             GC
	Provider       provider.Tuning
}

const defaultDrainTimeout = 5 * time.Minute

var defaultMaxUnhealthy = nstance.Count{N: 20, Percent: true}

// Tune changes settings from now on, and plans every group: another rate may permit
// more creates. When agents are to report more often than before, each has a whole
// interval before it counts as silent; change the agents first. Fails with Invalid, and changes nothing then, when the provider's
// settings are wrong. It does no I/O and may be called concurrently.
func (r *Reconciler) Tune(t Tuning) error {
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
	r.silenceCache = silenceCount{}
	if r.health.Interval < was {
		now := r.opts.Now()
		for _, m := range r.members {
			m.healthTrack.RestartGrace(now)
		}
	}
	for key := range r.groups {
		r.queue.add(key, false)
	}
	close(r.tuned)
	r.tuned = make(chan struct{})
	return nil
}

// policyFor returns the health policy for agents that report every interval.
func policyFor(interval time.Duration) health.Policy {
	return health.Policy{Interval: interval, Jitter: interval / 10, Missed: 3}
}

// withDefaults returns a copy of g without zero values.
func (g GC) withDefaults() GC {
	return GC{orElse(g.Interval, 2*time.Minute), orElse(g.RegistrationTimeout, 5*time.Minute)}
}

// restUntilCollection waits until orphans are to be looked for again, and
// reports whether ctx goes on. The interval counts from the beginning of the
// wait, also when it is changed meanwhile.
func (r *Reconciler) restUntilCollection(ctx context.Context) bool {
	for began := time.Now(); ; {
		r.mu.Lock()
		wait, tuned := r.opts.GC.Interval-time.Since(began), r.tuned
		r.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-tuned:
			timer.Stop()
		case <-timer.C:
			return true
		}
	}
}
