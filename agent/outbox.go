package agent

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/wire"
)

const (
	// maxResults bounds the drain results that wait for acknowledgement; only
	// the latest generation matters to the server.
	maxResults = 4
	// resendAfter is how long a message waits for its acknowledgement before
	// it is sent again on the same stream. A stream loses nothing, but a server
	// that could not make the message durable does not acknowledge it.
	resendAfter = 5 * time.Second
	// fallbackAfter is how long a doomed machine waits for an acknowledgement
	// before the agent runs the drain hook without a command.
	fallbackAfter = 5 * time.Second
	// offlineFallback is the longest that it waits for a session after a server has
	// acknowledged the notice: the server that knew of it may be gone, and another one
	// takes over within some seconds. It is shorter if little time is left.
	offlineFallback = 15 * time.Second
)

// An outbox holds standing notices, and drain results until a server has
// acknowledged them. It outlives sessions. It is plain data, takes the present as
// an argument, and is not safe for concurrent use.
type outbox struct {
	number uint64 // of the last message of this session

	notices       []*standingNotice // oldest first; withdrawn ones until that is acknowledged
	revision      uint64            // of notices
	ackedRevision uint64
	noticesSentAt time.Time // in this session, with the present revision

	results []*drainResult // oldest first

	reportNumber uint64 // of the last report
	reportSentAt time.Time
	lastReport   time.Time // when the last acknowledged report was sent

	release release // of the events that stand or come

	offlineSince time.Time // since then there is no session; zero: there is one
}

type standingNotice struct {
	nstance.Notice
	revision  uint64 // of the set, when the notice got its present form
	firstSeen time.Time
	changedAt time.Time // since then it has its present form
	everAcked bool      // in this or an earlier form
	restored  bool      // from the file, and not observed since
}

// restoredSlack is how far the deadline of a restored notice may be from that of the
// detector: further off, the machine's clock was set between the two runs.
const restoredSlack = 2 * time.Second

type drainResult struct {
	*apiv1.DrainResult
	sentAt time.Time // in this session
}

// begin starts a session: numbers start again, the notices are due, and so is every
// result.
func (o *outbox) begin() {
	o.number, o.reportNumber, o.noticesSentAt, o.offlineSince = 0, 0, time.Time{}, time.Time{}
	for _, r := range o.results {
		r.sentAt = time.Time{}
	}
}

// end ends a session, if there is one.
func (o *outbox) end(now time.Time) {
	if o.offlineSince.IsZero() {
		o.offlineSince = now
	}
}

// observe adds a notice of the detector and reports whether it is new or changed.
// The detector alone judges its age. DetectedAt stays: an announcement is detected
// once. A withdrawn notice that is announced again is a new one.
func (o *outbox) observe(n nstance.Notice, now time.Time) bool {
	var known *standingNotice
	switch i := slices.IndexFunc(o.notices, func(s *standingNotice) bool { return s.EventID == n.EventID }); {
	case i >= 0 && o.notices[i].Cancelled && !n.Cancelled:
		known = &standingNotice{firstSeen: now}
		o.notices[i] = known
	case i >= 0:
		known = o.notices[i]
		clockSet := known.restored && !n.Deadline.IsZero() && n.Deadline.Sub(known.Deadline).Abs() > restoredSlack
		known.restored = false
		if n.DetectedAt = known.DetectedAt; notice.Repeats(n, known.Notice) && !clockSet {
			return false
		}
	case !o.hasRoom():
		return false
	default:
		known = &standingNotice{firstSeen: now}
		o.notices = append(o.notices, known)
	}
	o.revision++
	o.noticesSentAt = time.Time{}
	known.Notice, known.changedAt, known.revision = n, now, o.revision
	return true
}

// hasRoom makes room for one more notice, if necessary by dropping the oldest one
// that does not doom the machine.
func (o *outbox) hasRoom() bool {
	if len(o.notices) < wire.MaxNotices {
		return true
	}
	i := slices.IndexFunc(o.notices, func(s *standingNotice) bool { return !s.dooms() })
	if i >= 0 {
		o.notices = slices.Delete(o.notices, i, i+1)
	}
	return i >= 0
}

// result adds the result of a drain. The same generation is sent again; if there
// are too many, the oldest is dropped.
func (o *outbox) result(r *apiv1.DrainResult) {
	o.dropResult(r.GetGeneration())
	o.results = append(o.results[max(0, len(o.results)-maxResults+1):], &drainResult{DrainResult: r})
}

func (o *outbox) dropResult(generation uint64) {
	o.results = slices.DeleteFunc(o.results, func(r *drainResult) bool { return r.GetGeneration() == generation })
}

// next returns the next message that is due, or nil and the time until the next
// one is (zero: when something changes).
func (o *outbox) next(now time.Time) (m *apiv1.ConnectRequest, wait time.Duration) {
	if len(o.notices) > 0 && (o.noticesSentAt.IsZero() || o.ackedRevision < o.revision) {
		if wait = untilResend(o.noticesSentAt, now); wait == 0 {
			return o.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Notices{Notices: o.wireNotices(now)}}), 0
		}
	}
	for _, r := range o.results {
		left := untilResend(r.sentAt, now)
		if left == 0 {
			r.sentAt = now
			return o.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_DrainResult{DrainResult: r.DrainResult}}), 0
		}
		wait = sooner(wait, left)
	}
	return nil, wait
}

// untilResend returns zero for a message that is due.
func untilResend(sentAt, now time.Time) time.Duration {
	if sentAt.IsZero() {
		return 0
	}
	return max(0, sentAt.Add(resendAfter).Sub(now))
}

// sooner returns the shorter of two waits; zero is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// send numbers a message of this session.
func (o *outbox) send(m *apiv1.ConnectRequest) *apiv1.ConnectRequest {
	o.number++
	m.Number = o.number
	return m
}

// sendReport numbers a report with the standing notices in it.
func (o *outbox) sendReport(r nstance.Report, now time.Time) *apiv1.ConnectRequest {
	w := wire.Report(r)
	if len(o.notices) > 0 {
		w.Notices = o.wireNotices(now)
	}
	m := o.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: w}})
	o.reportNumber, o.reportSentAt = m.GetNumber(), now
	return m
}

// wireNotices returns what is sent of the notices now.
func (o *outbox) wireNotices(now time.Time) *apiv1.StandingNotices {
	o.noticesSentAt = now
	set := &apiv1.StandingNotices{Revision: o.revision}
	for _, s := range o.notices {
		set.Notices = append(set.Notices, wire.NoticeAt(s.Notice, s.clock(now)))
		if s.revision <= o.ackedRevision {
			set.Acknowledged = append(set.Acknowledged, s.EventID)
		}
	}
	return set
}

// clock returns the present by the clock of the notice's times. It adds the elapsed
// time, so it is right even if the clock was set meanwhile.
func (s *standingNotice) clock(now time.Time) time.Time {
	return s.changedAt.Round(0).Add(now.Sub(s.changedAt))
}

// sendGoodbye numbers the session's last message.
func (o *outbox) sendGoodbye(reason string) *apiv1.ConnectRequest {
	return o.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Goodbye{Goodbye: &apiv1.Goodbye{Reason: reason}}})
}

// standing returns every notice that was not withdrawn.
func (o *outbox) standing() (all []nstance.Notice) {
	for _, s := range o.notices {
		if !s.Cancelled {
			all = append(all, s.Notice)
		}
	}
	return all
}

// ack records an acknowledgement. A withdrawn notice and a result are removed by
// it; a standing notice stays.
func (o *outbox) ack(a *apiv1.Acknowledgement) {
	switch received := a.GetReceived().(type) {
	case *apiv1.Acknowledgement_Report:
		if received.Report == o.reportNumber {
			o.lastReport = o.reportSentAt
		}
	case *apiv1.Acknowledgement_NoticesRevision:
		o.ackNotices(received.NoticesRevision)
	case *apiv1.Acknowledgement_DrainGeneration:
		o.dropResult(received.DrainGeneration)
	}
}

// ackNotices records that a revision, and all before it, were acknowledged.
func (o *outbox) ackNotices(revision uint64) {
	o.ackedRevision = max(o.ackedRevision, min(revision, o.revision))
	for _, s := range o.notices {
		s.everAcked = s.everAcked || s.revision <= o.ackedRevision
	}
	o.notices = slices.DeleteFunc(o.notices, func(s *standingNotice) bool { return s.Cancelled && s.revision <= o.ackedRevision })
}

// A dueNotice is a notice for which the hook is to run, and how long that may take.
type dueNotice struct {
	nstance.Notice
	left time.Duration
}

func (s *standingNotice) due(now time.Time) dueNotice {
	return dueNotice{s.Notice, fallbackTime(s.Notice, s.clock(now))}
}

// overdue returns a notice that dooms the machine, that no drain has answered, and that no
// server has acknowledged in time, or with which no server is connected any more: whether it
// was acknowledged by one, and whether a drain had begun when this agent was restarted, the
// machine must be drained. Without such a notice it returns nil and the time until there may
// be one (zero: when something changes).
func (o *outbox) overdue(now time.Time, answered []string) (due *dueNotice, wait time.Duration) {
	for _, s := range o.notices {
		if !s.dooms() || slices.Contains(answered, s.EventID) || s.everAcked && o.offlineSince.IsZero() {
			continue
		}
		left := s.firstSeen.Add(fallbackAfter).Sub(now)
		if s.everAcked {
			patience := min(offlineFallback, max(fallbackTime(s.Notice, s.clock(now))/4, fallbackAfter))
			left = max(left, o.offlineSince.Add(patience).Sub(now))
		}
		if left <= 0 {
			n := s.due(now)
			return &n, 0
		}
		wait = sooner(wait, left)
	}
	return nil, wait
}

func (s *standingNotice) dooms() bool { return s.Kind.Dooms() && !s.Cancelled }
