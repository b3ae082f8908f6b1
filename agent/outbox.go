package agent

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

const (
	// maxNotices bounds the standing notices: one report can carry as many.
	maxNotices = 16
	// maxResults bounds the drain results that wait for acknowledgement; only
	// the latest generation matters to the server.
	maxResults = 4
	// maxNumbers bounds the message numbers remembered for one item.
	maxNumbers = 8
	// resendAfter is how long a message waits for its acknowledgement before
	// it is sent again on the same stream. A stream loses nothing, but a server
	// that could not make the message durable does not acknowledge it.
	resendAfter = 5 * time.Second
	// fallbackAfter is how long a doomed machine waits for an acknowledgement
	// before the agent runs the drain hook without a command.
	fallbackAfter = 5 * time.Second
)

// An outbox holds standing notices, and drain results until a server has
// acknowledged them. It outlives sessions. It is plain data, takes the present as
// an argument, and is not safe for concurrent use.
type outbox struct {
	number       uint64  // of the last message of this session
	items        []*item // oldest first
	reportNumber uint64  // of the last report
	reportSentAt time.Time
	lastReport   time.Time // when the last acknowledged report was sent
}

// An item is one message that must arrive: a notice or a drain result.
type item struct {
	notice     *nstance.Notice
	result     *apiv1.DrainResult
	firstSeen  time.Time // of a notice
	changedAt  time.Time // of a notice: since then it has its present content
	acked      bool      // the present content
	everAcked  bool      // this or an earlier content
	hookCalled bool      // without a server's command
	numbers    []uint64  // of the messages with the present content in this session
	sentAt     time.Time
}

// begin starts a session: numbers start again, and every item without
// acknowledgement is due at once.
func (o *outbox) begin() {
	o.number, o.reportNumber = 0, 0
	for _, it := range o.items {
		it.numbers, it.sentAt = nil, time.Time{}
	}
}

// observe adds a notice of the detector and reports whether it is new or changed.
// Detectors do not yield stale notices, so they are not checked for age here.
func (o *outbox) observe(n nstance.Notice, now time.Time) bool {
	if it := o.find(n.EventID); it != nil {
		return it.update(n, now)
	}
	if !o.hasRoom() {
		return false
	}
	o.items = append(o.items, &item{notice: &n, firstSeen: now, changedAt: now})
	return true
}

// update replaces a notice that changed. DetectedAt stays: an announcement is
// detected once.
func (it *item) update(n nstance.Notice, now time.Time) bool {
	n.DetectedAt = it.notice.DetectedAt
	if sameNotice(*it.notice, n) {
		return false
	}
	it.notice, it.changedAt, it.acked, it.numbers, it.sentAt = &n, now, false, nil, time.Time{}
	return true
}

func sameNotice(a, b nstance.Notice) bool {
	return a.Kind == b.Kind && a.Action == b.Action && a.Source == b.Source && a.Cancelled == b.Cancelled &&
		a.Deadline.Equal(b.Deadline) && a.NotBefore.Equal(b.NotBefore)
}

// hasRoom makes room for one more notice, if necessary by dropping the oldest one
// that does not doom the machine.
func (o *outbox) hasRoom() bool {
	return o.count(isNotice) < maxNotices || o.drop(func(it *item) bool { return isNotice(it) && !it.dooms() })
}

func (o *outbox) find(eventID string) *item {
	for _, it := range o.items {
		if it.notice != nil && it.notice.EventID == eventID {
			return it
		}
	}
	return nil
}

// result adds the result of a drain. The same generation is sent again; if there
// are too many, the oldest is dropped.
func (o *outbox) result(r *apiv1.DrainResult) {
	o.items = slices.DeleteFunc(o.items, func(it *item) bool {
		return it.result != nil && it.result.GetGeneration() == r.GetGeneration()
	})
	if o.count(isResult) >= maxResults {
		o.drop(isResult)
	}
	o.items = append(o.items, &item{result: r})
}

func isResult(it *item) bool { return it.result != nil }
func isNotice(it *item) bool { return it.notice != nil }

func (o *outbox) count(of func(*item) bool) int {
	n := 0
	for _, it := range o.items {
		if of(it) {
			n++
		}
	}
	return n
}

// drop removes the oldest item for which of is true and reports whether there was
// one.
func (o *outbox) drop(of func(*item) bool) bool {
	i := slices.IndexFunc(o.items, of)
	if i < 0 {
		return false
	}
	o.items = slices.Delete(o.items, i, i+1)
	return true
}

// next returns the next message that is due, or nil and the time until the next
// one is (zero: when something changes).
func (o *outbox) next(now time.Time) (*apiv1.ConnectRequest, time.Duration) {
	var wait time.Duration
	for _, it := range o.items {
		if it.acked {
			continue
		}
		left := time.Duration(0)
		if len(it.numbers) > 0 {
			left = it.sentAt.Add(resendAfter).Sub(now)
		}
		if left <= 0 {
			return o.send(it, now), 0
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return nil, wait
}

func (o *outbox) send(it *item, now time.Time) *apiv1.ConnectRequest {
	o.number++
	it.numbers = append(it.numbers[max(0, len(it.numbers)-maxNumbers+1):], o.number)
	it.sentAt = now
	m := &apiv1.ConnectRequest{Number: o.number}
	if it.notice != nil {
		m.Message = &apiv1.ConnectRequest_Notice{Notice: it.wire(now)}
	} else {
		m.Message = &apiv1.ConnectRequest_DrainResult{DrainResult: it.result}
	}
	return m
}

// sendReport numbers a report and adds every standing notice to it.
func (o *outbox) sendReport(r nstance.Report, now time.Time) *apiv1.ConnectRequest {
	o.number++
	o.reportNumber, o.reportSentAt = o.number, now
	w := wire.Report(r)
	for _, it := range o.standingItems() {
		w.Notices = append(w.Notices, it.wire(now))
	}
	return &apiv1.ConnectRequest{Number: o.number, Message: &apiv1.ConnectRequest_Report{Report: w}}
}

// wire returns the wire form of a notice.
func (it *item) wire(now time.Time) *apiv1.Notice { return wire.NoticeAt(*it.notice, it.clock(now)) }

// clock returns the present by the clock of the notice's times. It adds the elapsed
// time, so it is right even if the clock was set meanwhile.
func (it *item) clock(now time.Time) time.Time {
	return it.changedAt.Round(0).Add(now.Sub(it.changedAt))
}

// sendAnswer numbers a message that is not acknowledged.
func (o *outbox) sendAnswer(m *apiv1.ConnectRequest) *apiv1.ConnectRequest {
	o.number++
	m.Number = o.number
	return m
}

// sendGoodbye numbers the session's last message.
func (o *outbox) sendGoodbye(reason string) *apiv1.ConnectRequest {
	o.number++
	return &apiv1.ConnectRequest{Number: o.number, Message: &apiv1.ConnectRequest_Goodbye{Goodbye: &apiv1.Goodbye{Reason: reason}}}
}

// standing returns every notice that was not withdrawn, those that doom the
// machine first.
func (o *outbox) standing() (all []nstance.Notice) {
	for _, it := range o.standingItems() {
		all = append(all, *it.notice)
	}
	return all
}

func (o *outbox) standingItems() []*item {
	var doom, other []*item
	for _, it := range o.items {
		switch {
		case it.notice == nil || it.notice.Cancelled:
		case it.dooms():
			doom = append(doom, it)
		default:
			other = append(other, it)
		}
	}
	return append(doom, other...)
}

// ack records an acknowledgement. A withdrawn notice and a result are removed by
// it; a standing notice stays.
func (o *outbox) ack(number uint64) {
	if number != 0 && number == o.reportNumber {
		o.lastReport = o.reportSentAt
	}
	for i, it := range o.items {
		if !slices.Contains(it.numbers, number) {
			continue
		}
		it.acked, it.everAcked = true, true
		if it.result != nil || it.notice.Cancelled {
			o.items = slices.Delete(o.items, i, i+1)
		}
		return
	}
}

// overdue returns an item whose notice dooms the machine and that no server has
// acknowledged in time. Each item is returned once. Without such an item it
// returns nil and the time until there may be one (zero: when something changes).
func (o *outbox) overdue(now time.Time) (due *item, wait time.Duration) {
	for _, it := range o.items {
		if !it.dooms() || it.everAcked || it.hookCalled {
			continue
		}
		left := it.firstSeen.Add(fallbackAfter).Sub(now)
		if left <= 0 {
			it.hookCalled = true
			return it, 0
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return nil, wait
}

func (it *item) dooms() bool {
	return it.notice != nil && it.notice.Kind.Dooms() && !it.notice.Cancelled
}
