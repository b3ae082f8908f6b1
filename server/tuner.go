package server

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/config"
)

const (
	// retellWithin is the longest that it takes to tell all agents of another
	// health_interval: each must connect anew for it.
	retellWithin = time.Minute
	// retellPause is the longest pause between two of them.
	retellPause = 100 * time.Millisecond
)

// A tuner puts in force what reloads change of the settings that a term works
// with: create_rate, request_timeout, default_drain_timeout, breaker and gc at
// once, health_interval when all agents have been told.
type tuner struct {
	t    *term
	wake chan struct{} // has room for one: another health_interval may be in force

	mu     sync.Mutex       // orders what the reconciler is told; held only in memory work
	judged time.Duration    // the interval that agents are judged by; never less than one that any of them was told
	now    reconcile.Tuning // what the reconciler was told
}

func newTuner(t *term) *tuner {
	shard := t.conf.Shard
	return &tuner{t: t, wake: make(chan struct{}, 1), judged: shard.HealthInterval, now: tuning(shard, shard.HealthInterval)}
}

// tune has the configuration in force take effect.
func (u *tuner) tune() {
	u.mu.Lock()
	defer u.mu.Unlock()
	shard := u.t.server.config().Shard
	if shard.HealthInterval != u.judged {
		u.signal()
	}
	u.judged = max(u.judged, shard.HealthInterval) // who reports too often does no harm
	u.apply(shard)
}

// told has agents judged by the interval that all of them know now, unless there
// is another one again.
func (u *tuner) told(interval time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if shard := u.t.server.config().Shard; shard.HealthInterval == interval {
		u.judged = interval
		u.apply(shard)
	}
}

// apply tells the reconciler what is new to it. It needs the lock.
func (u *tuner) apply(shard config.Shard) {
	want := tuning(shard, u.judged)
	if want == u.now {
		return
	}
	if err := u.t.reconciler.Tune(want); err != nil {
		u.t.log.Error("settings not in force", "err", err) // of a configuration that was checked
		return
	}
	u.now = want
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

// run tells agents of another interval until ctx ends.
func (u *tuner) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-u.wake:
			u.retell(ctx, u.t.server.config().Shard.HealthInterval)
		}
	}
}

// retell has every agent that was told another interval come back to hear this
// one, a few at a time, and then judges by it. A newer one ends it.
func (u *tuner) retell(ctx context.Context, interval time.Duration) {
	stale := u.stale(interval)
	for i, s := range stale {
		s.goAway(errRhythm)
		pause := min(retellWithin/time.Duration(len(stale)), retellPause)
		if i == len(stale)-1 {
			pause = closeGrace // then the last of them is away
		}
		if !u.rest(ctx, pause) {
			return
		}
	}
	u.told(interval)
}

// stale returns the sessions whose agents were told something else, in random
// order.
func (u *tuner) stale(interval time.Duration) (out []*session) {
	for _, s := range u.t.sessions.all() {
		if s.rhythm != interval {
			out = append(out, s)
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// rest returns false when ctx has ended or there is something newer to tell.
func (u *tuner) rest(ctx context.Context, pause time.Duration) bool {
	wait := time.NewTimer(pause)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-u.wake:
		u.signal() // run looks again
		return false
	case <-wait.C:
		return true
	}
}

// begun looks at a session that all can find now: what it was told may have
// been overtaken, and whoever tells the others have missed it.
func (u *tuner) begun(s *session) {
	if s.rhythm != u.t.server.config().Shard.HealthInterval {
		s.goAway(errRhythm)
	}
}
