package server

import (
	"context"
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
)

// A tuner puts in force what reloads change of the settings that a term works
// with: create_rate, request_timeout, default_drain_timeout, breaker and gc at
// once, health_interval when all agents have learned it.
type tuner struct {
	t    *term
	wake chan struct{} // has room for one: another health_interval may be in force

	mu       sync.Mutex       // orders what the reconciler is told; held only for work in memory
	interval time.Duration    // that agents are expected to report at: never less than any of them knows
	applied  reconcile.Tuning // what the reconciler was told
}

func newTuner(t *term) *tuner {
	shard := t.conf.Shard
	return &tuner{t: t, wake: make(chan struct{}, 1), interval: shard.HealthInterval, applied: tuning(shard, shard.HealthInterval)}
}

// tune puts the settings of the configuration in force.
func (u *tuner) tune() {
	u.mu.Lock()
	defer u.mu.Unlock()
	shard := u.t.server.config.InForce().Shard
	if shard.HealthInterval != u.interval {
		u.signal()
	}
	u.interval = max(u.interval, shard.HealthInterval) // reports that come too often do no harm
	u.apply(shard)
}

// learned has agents expected to report at the interval that all of them know now,
// unless the configuration has another one again.
func (u *tuner) learned(interval time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if shard := u.t.server.config.InForce().Shard; shard.HealthInterval == interval {
		u.interval = interval
		u.apply(shard)
	}
}

// apply tells the reconciler what has changed. It needs the lock.
func (u *tuner) apply(shard config.Shard) {
	want := tuning(shard, u.interval)
	if want == u.applied {
		return
	}
	if err := u.t.reconciler.Tune(want); err != nil {
		u.t.log.Error("settings of the accepted configuration not applied", "err", err) // of a configuration that was checked
		return
	}
	u.applied = want
}

func (u *tuner) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

func tuning(shard config.Shard, interval time.Duration) reconcile.Tuning {
	return reconcile.Tuning{
		HealthInterval: interval, DrainTimeout: shard.DefaultDrainTimeout, MaxUnhealthy: shard.Breaker.MaxUnhealthy,
		GC:       reconcile.GC{Interval: shard.GC.Interval, RegistrationTimeout: shard.GC.RegistrationTimeout},
		Provider: provider.Tuning{Timeout: shard.RequestTimeout, Rate: shard.CreateRate.PerSecond, Burst: shard.CreateRate.Burst},
	}
}

// run has agents learn another interval until ctx ends. A newer interval ends the
// round.
func (u *tuner) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-u.wake:
			interval := u.t.server.config.InForce().Shard.HealthInterval
			if u.t.agents.Reconnect(interval, func(d time.Duration) bool { return u.pause(ctx, d) }) {
				u.learned(interval)
			}
		}
	}
}

// pause returns false when ctx has ended or there is a newer interval.
func (u *tuner) pause(ctx context.Context, d time.Duration) bool {
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-u.wake:
		u.signal() // for run
		return false
	case <-wait.C:
		return true
	}
}
