package agents

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// reconnectTime is the longest that it takes to have all agents reconnect.
	reconnectTime = time.Minute
	// maxReconnectPause is the longest pause between two of them.
	maxReconnectPause = 100 * time.Millisecond

	// Agents and watchers that are asked to renew their certificates do so spread
	// over time, about so many a second of a large fleet: each renewal is a
	// signature, a write and a reconnect.
	renewalsPerSecond = 20
	minRenewalSpread  = 5 * time.Second
	maxRenewalSpread  = 15 * time.Minute
)

// sessions are the connected agents of one term, one session each.
type sessions struct {
	observe   func(nstance.Fact)
	contested func(id nstance.InstanceID, reason string) // nil: not called
	order     sync.Mutex                                 // held from a change until it was observed: the last fact is the present state
	mu        sync.Mutex                                 // guards what follows; may be taken under the reconciler's lock
	byID      map[nstance.InstanceID]*session
	byGroup   map[nstance.GroupKey]map[nstance.InstanceID]*session
	closed    error // nil: open
}

func newSessions(observe func(nstance.Fact)) *sessions {
	return &sessions{observe: observe, byID: map[nstance.InstanceID]*session{}, byGroup: map[nstance.GroupKey]map[nstance.InstanceID]*session{}}
}

// add needs the lock.
func (l *sessions) add(s *session) {
	l.byID[s.id] = s
	if l.byGroup[s.group] == nil {
		l.byGroup[s.group] = map[nstance.InstanceID]*session{}
	}
	l.byGroup[s.group][s.id] = s
}

// remove needs the lock.
func (l *sessions) remove(s *session) {
	delete(l.byID, s.id)
	delete(l.byGroup[s.group], s.id)
	if len(l.byGroup[s.group]) == 0 {
		delete(l.byGroup, s.group)
	}
}

// begin makes s its agent's session; an older one ends.
func (l *sessions) begin(s *session) error {
	l.order.Lock()
	defer l.order.Unlock()
	l.mu.Lock()
	old, closed := l.byID[s.id], l.closed
	takeovers := s.takeOver(old, time.Now())
	if closed == nil {
		if old != nil {
			l.remove(old) // its group may differ: the record may have come later
		}
		l.add(s)
	}
	l.mu.Unlock()
	if closed != nil {
		return closed
	}
	if old != nil {
		old.cancel(errReplaced)
	}
	if takeovers >= maxTakeovers && l.contested != nil {
		l.contested(s.id, fmt.Sprintf("sessions come from %s and %s in turns: two parties hold its key", old.source, s.source))
	}
	l.observe(nstance.Connected{ID: s.id})
	return nil
}

// end removes s. The end of a session that was replaced is not observed.
func (l *sessions) end(s *session, clean bool) {
	l.order.Lock()
	defer l.order.Unlock()
	l.mu.Lock()
	current := l.byID[s.id] == s
	if current {
		l.remove(s)
	}
	l.mu.Unlock()
	if current {
		l.observe(nstance.Disconnected{ID: s.id, Clean: clean})
	}
}

func (l *sessions) get(id nstance.InstanceID) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byID[id]
}

// all returns every session.
func (l *sessions) all() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.byID))
}

// of returns the sessions of a group.
func (l *sessions) of(group nstance.GroupKey) []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.byGroup[group]))
}

func (l *sessions) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byID)
}

// visible counts the sessions of tenants that sees reports.
func (l *sessions) visible(sees func(nstance.TenantID) bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for group, all := range l.byGroup {
		if sees(group.Tenant) {
			n += len(all)
		}
	}
	return n
}

// close asks every agent to come back, ends the sessions, and admits no more.
func (l *sessions) close(reason error) {
	l.mu.Lock()
	l.closed = reason
	all := l.byID
	l.byID = map[nstance.InstanceID]*session{}
	clear(l.byGroup)
	l.mu.Unlock()
	for _, s := range all {
		s.goAway(reason)
	}
}

// Reconnect has every agent that reports at another interval come back, a few at a
// time: an agent learns the interval when its session begins. Each wait is made by
// pause, which returns false to give up. It reports whether it was completed.
func (a *Agents) Reconnect(interval time.Duration, pause func(time.Duration) bool) bool {
	var stale []*session
	for _, s := range a.sessions.all() {
		if s.reportInterval != interval {
			stale = append(stale, s)
		}
	}
	rand.Shuffle(len(stale), func(i, j int) { stale[i], stale[j] = stale[j], stale[i] })
	for i, s := range stale {
		s.goAway(errInterval)
		wait := min(reconnectTime/time.Duration(len(stale)), maxReconnectPause)
		if i == len(stale)-1 {
			wait = closeGrace // until its session has ended
		}
		if !pause(wait) {
			return false
		}
	}
	return true
}

// RenewalSpread is over which time the agents of this shard renew their
// certificates when all are asked to.
func (a *Agents) RenewalSpread() time.Duration {
	return min(max(minRenewalSpread, time.Duration(a.Count())*time.Second/renewalsPerSecond), maxRenewalSpread)
}
