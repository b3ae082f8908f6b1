package agents

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nstance-go/nstance"
)

// Bounds on the notices of one instance, over all its sessions. A stolen identity
// can doom its own instance only, so all that is left to limit is the number of
// notices.
const (
	maxNotices     = 32 // notices that are remembered, by event ID; then the oldest is forgotten
	maxPendingAcks = 8  // numbers under which a repeated notice is acknowledged

	// So many notices, with their changes, are passed on at once, and one more after
	// each interval. Notices that doom the machine are counted separately: other
	// notices must not use up the room for a reclaim.
	noticeBurst    = 32
	noticeInterval = time.Minute
)

// noticeBook holds the notices of a term by instance, until the instance is deleted.
type noticeBook struct {
	mu         sync.Mutex
	byInstance map[nstance.InstanceID]*noticeDedup
}

func (b *noticeBook) of(id nstance.InstanceID) *noticeDedup {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.byInstance[id]
	if d == nil {
		if b.byInstance == nil {
			b.byInstance = map[nstance.InstanceID]*noticeDedup{}
		}
		d = &noticeDedup{byEvent: map[string]*noticeState{}, dooming: newNoticeLimiter(), other: newNoticeLimiter()}
		b.byInstance[id] = d
	}
	return d
}

func (b *noticeBook) forget(id nstance.InstanceID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.byInstance, id)
}

func newNoticeLimiter() *rate.Limiter {
	return rate.NewLimiter(rate.Every(noticeInterval), noticeBurst)
}

// noticeDedup holds the notices of one instance. A repeated notice is not passed on.
type noticeDedup struct {
	mu             sync.Mutex
	byEvent        map[string]*noticeState
	order          []string // event IDs, oldest first
	dooming, other *rate.Limiter
	exceeded       bool // a notice was dropped
	warned         sync.Once
}

// A noticeState is one notice in its latest form.
type noticeState struct {
	notice      nstance.Notice
	sent        bool         // in a message of its own, which wants an acknowledgement
	pendingAcks []pendingAck // until its consequence is durable
	settled     bool         // its consequence is durable
}

type pendingAck struct {
	session *session
	number  uint64
}

// receive handles the notice of a message: fresh is a new one to pass on; otherwise
// ack says whether the message is acknowledged at once, or with the message that it
// repeats.
func (d *noticeDedup) receive(s *session, number uint64, n nstance.Notice) (fresh *noticeState, ack bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	pending := pendingAck{s, number}
	known := d.byEvent[n.EventID]
	switch {
	case known != nil && repeats(known.notice, n) && known.sent:
		if !known.settled {
			known.pendingAcks = append(known.pendingAcks[max(0, len(known.pendingAcks)-maxPendingAcks+1):], pending)
		}
		return nil, known.settled
	case known != nil && repeats(known.notice, n):
		known.sent, known.pendingAcks = true, []pendingAck{pending}
		return known, false
	case !d.admit(n):
		return nil, true
	}
	fresh = &noticeState{notice: n, sent: true, pendingAcks: []pendingAck{pending}}
	d.put(fresh)
	return fresh, false
}

// receiveReported reports whether a notice in a report is passed on.
func (d *noticeDedup) receiveReported(n nstance.Notice) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.byEvent[n.EventID]; known != nil && repeats(known.notice, n) {
		return true
	}
	return d.putNew(n)
}

// receiveProvided reports whether a notice of the provider, which wants no
// acknowledgement, is passed on.
func (d *noticeDedup) receiveProvided(n nstance.Notice) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.byEvent[n.EventID]; known != nil && repeats(known.notice, n) {
		return false
	}
	return d.putNew(n)
}

// putNew needs the lock.
func (d *noticeDedup) putNew(n nstance.Notice) bool {
	if !d.admit(n) {
		return false
	}
	d.put(&noticeState{notice: n})
	return true
}

// admit needs the lock.
func (d *noticeDedup) admit(n nstance.Notice) bool {
	limit := d.other
	if n.Kind.Dooms() {
		limit = d.dooming
	}
	ok := limit.Allow()
	d.exceeded = d.exceeded || !ok
	return ok
}

// put needs the lock.
func (d *noticeDedup) put(fresh *noticeState) {
	id := fresh.notice.EventID
	if d.byEvent[id] == nil {
		if len(d.order) >= maxNotices {
			delete(d.byEvent, d.order[0])
			d.order = slices.Delete(d.order, 0, 1)
		}
		d.order = append(d.order, id)
	}
	d.byEvent[id] = fresh
}

// settle acknowledges every message that carried the notice.
func (d *noticeDedup) settle(state *noticeState) {
	d.mu.Lock()
	pending := state.pendingAcks
	state.pendingAcks, state.settled = nil, true
	d.mu.Unlock()
	for _, p := range pending {
		p.session.acknowledge(p.number)
	}
}

// beginSession has unsettled notices passed on again when a new session repeats
// them: the reconciler may have dropped them.
func (d *noticeDedup) beginSession() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, known := range d.byEvent {
		known.sent = known.sent && known.settled
	}
}

func (d *noticeDedup) limitExceeded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.exceeded
}

// repeats reports whether n adds nothing to known. Deadlines only tighten.
func repeats(known, n nstance.Notice) bool {
	return known.Kind == n.Kind && known.Action == n.Action && known.Source == n.Source && known.Cancelled == n.Cancelled &&
		!n.Tightens(known) && known.NotBefore.Equal(n.NotBefore)
}

// handleNotice passes on what is new, and acknowledges it once its consequence is
// durable.
func (s *session) handleNotice(number uint64, n nstance.Notice) {
	fresh, ack := s.notices.receive(s, number, n)
	switch {
	case fresh != nil:
		s.agents.ReceiveNotice(s.id, n, func() { s.notices.settle(fresh) })
	case ack:
		s.acknowledge(number)
	}
	if s.notices.limitExceeded() {
		s.notices.warned.Do(func() {
			s.agents.Log.Warn("too many notices of one instance, the rest is dropped", "instance_id", s.id)
		})
	}
}

// handleReport passes on a report, without notices beyond the limit.
func (s *session) handleReport(r nstance.Report) {
	r.Notices = slices.DeleteFunc(r.Notices, func(n nstance.Notice) bool { return !s.notices.receiveReported(n) })
	s.agents.shard.Observe(nstance.Reported{Report: s.filesReported(r)})
}
