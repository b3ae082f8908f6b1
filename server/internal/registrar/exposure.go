package registrar

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// alarmInterval is how often one subject may raise the same alarm. Alarms in
	// between are counted, and the next one says how many there were.
	alarmInterval = time.Hour
	// maxAlarmSubjects bounds the subjects that are told apart. Subjects beyond
	// share one alarm.
	maxAlarmSubjects = 4096
	// drainTimeout bounds one attempt to drain an exposed instance.
	drainTimeout = 30 * time.Second
)

// An alarmKey tells alarms apart: the holder of a certificate, and what of it was
// misused: a nonce, a certificate, its sessions.
type alarmKey struct{ subject, object string }

// alarmLimiter merges alarms of one subject: a stolen key that is presented three
// hundred times is one alarm.
type alarmLimiter struct {
	mu     sync.Mutex
	recent map[alarmKey]*alarmCount
}

type alarmCount struct {
	since   time.Time
	skipped uint64
}

// admit returns how many alarms this one stands for; 0: it is skipped.
func (l *alarmLimiter) admit(key alarmKey, now time.Time) (count uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.recent[key]
	if c == nil && len(l.recent) >= maxAlarmSubjects {
		l.dropOld(now)
		if len(l.recent) >= maxAlarmSubjects {
			key = alarmKey{}
			c = l.recent[key]
		}
	}
	switch {
	case c == nil:
		if l.recent == nil {
			l.recent = map[alarmKey]*alarmCount{}
		}
		l.recent[key] = &alarmCount{since: now}
		return 1
	case now.Sub(c.since) < alarmInterval:
		c.skipped++
		return 0
	}
	count = c.skipped + 1
	c.since, c.skipped = now, 0
	return count
}

// dropOld needs the lock.
func (l *alarmLimiter) dropOld(now time.Time) {
	for key, c := range l.recent {
		if now.Sub(c.since) >= alarmInterval {
			delete(l.recent, key)
		}
	}
}

// Exposures has instances replaced whose key two parties hold. If the machine's
// own agent presents a superseded key, it is locked out for good; if another
// party does, it shares the machine's identity.
type Exposures struct {
	drain func(ctx context.Context, id nstance.InstanceID, reason string) (nstance.Drain, error)
	alarm func(nstance.Event)
	now   func() time.Time
	log   *slog.Logger

	alarms alarmLimiter
	wake   chan struct{} // has room for one

	mu      sync.Mutex
	pending map[nstance.InstanceID]string // reason
	drained map[nstance.InstanceID]bool
}

// NewExposures returns exposures that call drain for each instance to replace, and
// alarm for each alarm of the hour.
func NewExposures(drain func(context.Context, nstance.InstanceID, string) (nstance.Drain, error), alarm func(nstance.Event), now func() time.Time, log *slog.Logger) *Exposures {
	return &Exposures{
		drain: drain, alarm: alarm, now: now, log: log,
		wake: make(chan struct{}, 1), pending: map[nstance.InstanceID]string{}, drained: map[nstance.InstanceID]bool{},
	}
}

// Misused raises the alarm e of the registrar, once an hour for each subject.
func (x *Exposures) Misused(e nstance.Event) {
	subject, what, _ := strings.Cut(e.Reason, ": ")
	object, _, _ := strings.Cut(what, " ")
	if e.Count = x.alarms.admit(alarmKey{subject, object}, x.now()); e.Count > 0 {
		x.alarm(e)
	}
}

// Superseded has the instance of a certificate's holder replaced, whose superseded
// key was presented.
func (x *Exposures) Superseded(id nstance.Identity, reason string) {
	if id.Role == nstance.RoleAgent {
		x.add(nstance.InstanceID(id.Subject), reason)
	}
}

// Contested has an instance replaced whose session two sources take over from each
// other.
func (x *Exposures) Contested(id nstance.InstanceID, reason string) {
	now := x.now()
	if x.add(id, reason) && x.alarms.admit(alarmKey{string(id), "sessions"}, now) > 0 {
		x.alarm(nstance.Event{Time: now.UTC(), Type: nstance.EventAlarm, Code: nstance.Denied, Instance: id, Reason: reason})
	}
}

// add asks for the replacement of an instance, and reports whether that is new. It
// never blocks.
func (x *Exposures) add(id nstance.InstanceID, reason string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.drained[id] || x.pending[id] != "" {
		return false
	}
	x.pending[id] = reason
	select {
	case x.wake <- struct{}{}:
	default:
	}
	return true
}

// Forget drops a deleted instance.
func (x *Exposures) Forget(id nstance.InstanceID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.pending, id)
	delete(x.drained, id)
}

// Run drains exposed instances until ctx ends. A frozen or preserved instance
// stays, and is tried again when its key is presented again.
func (x *Exposures) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
		}
		x.mu.Lock()
		pending := x.pending
		x.pending = map[nstance.InstanceID]string{}
		x.mu.Unlock()
		for id, reason := range pending {
			x.replace(ctx, id, reason)
		}
	}
}

func (x *Exposures) replace(ctx context.Context, id nstance.InstanceID, reason string) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if _, err := x.drain(ctx, id, reason); err != nil {
		x.log.Warn("instance with a stolen key not drained, trying again when the key is used again", "instance_id", id, "code", nstance.CodeOf(err), "err", err)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drained[id] = true
}
