package server

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// alarmInterval is how often one subject may raise alike alarms. Those in
	// between are counted, and the next one says how many there were.
	alarmInterval = time.Hour
	// maxAlarmSubjects bounds the subjects that are told apart. Subjects beyond
	// share one alarm.
	maxAlarmSubjects = 4096
	// exposureTimeout bounds one attempt to drain an exposed instance.
	exposureTimeout = 30 * time.Second
)

// An alarmKey is what alarms of the registrar are about: the holder of a
// certificate, and whether a nonce or a certificate was misused.
type alarmKey struct{ subject, object string }

// alarmLimiter coalesces alarms per subject: a stolen key that is shown three
// hundred times is one alarm.
type alarmLimiter struct {
	mu     sync.Mutex
	recent map[alarmKey]*alarmCount
}

type alarmCount struct {
	since   time.Time
	skipped uint64
}

// admit returns how many alike alarms this one stands for, 0 if it is to be
// skipped.
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

// misuse journals that a nonce or a certificate is in two hands, once an hour
// for each subject.
func (t *term) misuse(e nstance.Event) {
	subject, what, _ := strings.Cut(e.Reason, ": ")
	object, _, _ := strings.Cut(what, " ")
	if e.Count = t.alarms.admit(alarmKey{subject, object}, t.server.opts.Now()); e.Count > 0 {
		t.alarm(e)
	}
}

// exposures are the instances whose key two parties hold. Each is replaced: its
// own agent, if that is the one that shows a superseded key, is cut off for good,
// and if it is not, it shares the machine's identity with a stranger.
type exposures struct {
	mu   sync.Mutex
	due  map[nstance.InstanceID]string // why
	gone map[nstance.InstanceID]bool   // replacement was asked for
	wake chan struct{}
}

func newExposures() *exposures {
	return &exposures{due: map[nstance.InstanceID]string{}, gone: map[nstance.InstanceID]bool{}, wake: make(chan struct{}, 1)}
}

// add asks for the replacement of an instance, and reports whether that is new.
// It never blocks.
func (x *exposures) add(id nstance.InstanceID, why string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.gone[id] || x.due[id] != "" {
		return false
	}
	x.due[id] = why
	select {
	case x.wake <- struct{}{}:
	default:
	}
	return true
}

// forget drops an instance that has been deleted.
func (x *exposures) forget(id nstance.InstanceID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.due, id)
	delete(x.gone, id)
}

func (x *exposures) take() map[nstance.InstanceID]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	due := x.due
	x.due = map[nstance.InstanceID]string{}
	return due
}

// exposed is told of a certificate's holder whose superseded key was shown.
func (t *term) exposed(id nstance.Identity, why string) {
	if id.Role == nstance.RoleAgent {
		t.exposures.add(nstance.InstanceID(id.Subject), why)
	}
}

// contested is told of an instance whose sessions two sources take from each
// other.
func (t *term) contested(id nstance.InstanceID, why string) {
	now := t.server.opts.Now()
	if t.exposures.add(id, why) && t.alarms.admit(alarmKey{string(id), "sessions"}, now) > 0 {
		t.alarm(nstance.Event{Time: now.UTC(), Type: nstance.EventAlarm, Code: nstance.Denied, Instance: id, Reason: why})
	}
}

// replaceExposed drains exposed instances until ctx ends. One that is frozen or
// preserved stays, and is tried again when its key is shown again.
func (t *term) replaceExposed(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.exposures.wake:
		}
		for id, why := range t.exposures.take() {
			t.replace(ctx, id, why)
		}
	}
}

func (t *term) replace(ctx context.Context, id nstance.InstanceID, why string) {
	ctx, cancel := context.WithTimeout(ctx, exposureTimeout)
	defer cancel()
	if _, err := t.reconciler.Drain(ctx, id, why); err != nil {
		t.log.Warn("exposed instance not drained", "instance_id", id, "code", nstance.CodeOf(err), "err", err)
		return
	}
	t.exposures.mu.Lock()
	defer t.exposures.mu.Unlock()
	t.exposures.gone[id] = true
}
