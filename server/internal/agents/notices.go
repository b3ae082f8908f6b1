package agents

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/generation"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
)

// Bounds on the notices of one instance, over all its sessions. A stolen identity
// can doom its own instance only, so all that is left to limit is the number of
// notices.
const (
	maxNotices = 32 // notices that are remembered, by event ID; then the oldest is forgotten

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

// noticeDedup holds the notices of one instance.
type noticeDedup struct {
	mu             sync.Mutex
	byEvent        map[string]*noticeState
	order          []string // event IDs, oldest first
	dooming, other *rate.Limiter
	warned         sync.Once // of notices beyond the limit
}

// A noticeState is one notice in its latest form.
type noticeState struct {
	notice     nstance.Notice
	settled    atomic.Bool          // its consequence is durable
	journalled atomic.Bool          // its event is in the journal, by this notice or that of another source
	released   []nstance.InstanceID // machines of the event; guarded by the lock of all
}

// receiveNotice passes a notice on to the reconciler. The state says what else is
// known of it.
func (a *Agents) receiveNotice(id nstance.InstanceID, state *noticeState, settled func()) {
	if !state.journalled.Swap(true) {
		a.reportDetection(id, state.notice)
	}
	a.shard.Observe(nstance.Noticed{ID: id, Notice: state.notice, Ack: func() {
		state.settled.Store(true)
		settled()
	}})
}

// receive returns the state of a notice, and whether it is new in this form. Beyond
// the limit it returns nil.
func (d *noticeDedup) receive(n nstance.Notice) (state *noticeState, isNew bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.byEvent[n.EventID]; known != nil && notice.Repeats(n, known.notice) {
		return known, false
	}
	limit := d.other
	if n.Kind.Dooms() {
		limit = d.dooming
	}
	if !limit.Allow() {
		return nil, false
	}
	state = &noticeState{notice: n, released: d.releasedOf(n.EventID)}
	state.journalled.Store(d.announced(n))
	d.put(state)
	return state, true
}

// releasedOf returns the released machines of an event; it needs the lock.
func (d *noticeDedup) releasedOf(eventID string) []nstance.InstanceID {
	if known := d.byEvent[eventID]; known != nil {
		return known.released
	}
	return nil
}

// announced reports whether another source has announced the event. It needs the lock.
func (d *noticeDedup) announced(n nstance.Notice) bool {
	for _, known := range d.byEvent {
		if !known.notice.Cancelled && notice.SameEvent(n, known.notice) {
			return true
		}
	}
	return false
}

// knows reports whether the instance sent the notice.
func (d *noticeDedup) knows(eventID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byEvent[eventID] != nil
}

// put needs the lock.
func (d *noticeDedup) put(state *noticeState) {
	id := state.notice.EventID
	if d.byEvent[id] == nil {
		if len(d.order) >= maxNotices {
			delete(d.byEvent, d.order[0])
			d.order = slices.Delete(d.order, 0, 1)
		}
		d.order = append(d.order, id)
	}
	d.byEvent[id] = state
}

// handleNotices passes on every notice whose consequence is not durable yet, and
// acknowledges the revision once no such notice is left. It returns the notices
// within the limit.
func (s *session) handleNotices(set *apiv1.StandingNotices) (accepted []nstance.Notice) {
	if set == nil {
		return nil
	}
	var unsettled atomic.Int64
	settle := func() {
		if unsettled.Add(-1) == 0 {
			s.acknowledgeNotices(set.GetRevision())
		}
	}
	unsettled.Add(1)
	defer settle()
	for _, w := range set.GetNotices()[:min(wire.MaxNotices, len(set.GetNotices()))] {
		if err := wire.CheckNotice(w, s.agents.Now()); err != nil {
			s.refuseNotice(err)
			continue
		}
		n := wire.NoticeReceived(w, s.agents.Now())
		state, isNew := s.notices.receive(n)
		switch {
		case state == nil:
			s.warnOfNotices()
			if n.Kind.Dooms() { // not acknowledged: the agent sends it again, and may drain by itself meanwhile
				unsettled.Add(1)
			}
			continue
		case isNew && slices.Contains(set.GetAcknowledged(), w.GetEventId()) && s.agents.recordIsWhole(s.id): // by a former leader
			state.settled.Store(true)
		case !state.settled.Load():
			unsettled.Add(1)
			s.agents.receiveNotice(s.id, state, settle)
		}
		accepted = append(accepted, n)
	}
	return accepted
}

// recordIsWhole reports whether the instance's record has all that was acknowledged to its agent: not
// one of before storage was restored, and not one that was made from the machine's marks.
func (a *Agents) recordIsWhole(id nstance.InstanceID) bool {
	rec := a.shard.Records().Peek(id)
	return rec != nil && rec.Reason != records.ReasonAdopted && generation.Of(rec.Epoch) == generation.Of(a.Epoch)
}

// refuseNotice raises an alarm, once in a session. The notice is acknowledged with the
// others: sending it again would change nothing, and the session goes on.
func (s *session) refuseNotice(err error) {
	if s.noticeRefused {
		return
	}
	s.noticeRefused = true
	s.agents.Journal(nstance.Event{
		Type: nstance.EventAlarm, Time: s.agents.Now().UTC(), Instance: s.id, Tenant: s.group.Tenant, Group: s.group.Group,
		Code: nstance.CodeOf(err), Reason: "notice refused: " + err.Error(),
	})
}

func (s *session) warnOfNotices() {
	s.notices.warned.Do(func() {
		s.agents.Log.Warn("too many notices of one instance, dropping the rest", "instance_id", s.id)
	})
}

// acknowledgeNotices acknowledges a revision, unless that or a later one was
// acknowledged in this session.
func (s *session) acknowledgeNotices(revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision > s.ackedRevision {
		s.ackedRevision = revision
		s.queue(acknowledgement(&apiv1.Acknowledgement{Received: &apiv1.Acknowledgement_NoticesRevision{NoticesRevision: revision}}))
	}
}

// handleReport passes on a report with its notices.
func (s *session) handleReport(number uint64, w *apiv1.HealthReport) {
	r := wire.ReportOf(s.id, number, w)
	r.Notices = s.handleNotices(w.GetNotices())
	r.TerminationNotice = wire.Urgent(r.Notices)
	s.reported(r)
	s.agents.shard.Observe(nstance.Reported{Report: s.filesReported(r)})
	s.send(acknowledgement(&apiv1.Acknowledgement{Received: &apiv1.Acknowledgement_Report{Report: number}}))
}
