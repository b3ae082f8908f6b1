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
	// maxNumbers bounds the numbers under which one message is remembered.
	maxNumbers = 8
	// resendAfter is how long a message waits for its acknowledgement before
	// it is sent again on the same stream. A stream loses nothing, but a
	// server that could not make the message durable says nothing.
	resendAfter = 5 * time.Second
	// hookAfter is how long a doomed machine waits for its server before it
	// empties itself.
	hookAfter = 5 * time.Second
)

// An outbox is what the agent has to say until its server has said that it
// knows: standing notices and drain results. It outlives sessions. It is plain
// data with the present passed in, and not safe for concurrent use.
type outbox struct {
	number     uint64    // of the last message of this session
	items      []*item   // what stands or is owed, oldest first
	report     uint64    // number of the last report
	reportAt   time.Time // when it was sent
	lastReport time.Time // when the last acknowledged report was sent
}

// An item is one message that must arrive: a notice or a drain result.
type item struct {
	notice  *nstance.Notice
	result  *apiv1.DrainResult
	seen    time.Time // first sight, of a notice
	formAt  time.Time // when a notice got its present form
	acked   bool      // in its present form
	known   bool      // the server has acknowledged it in some form
	hooked  bool      // the agent's own hook was called for it
	numbers []uint64  // under which its present form was sent in this session
	sentAt  time.Time
}

// begin starts a session: numbers start again, and what was not acknowledged
// is owed at once.
func (o *outbox) begin() {
	o.number, o.report = 0, 0
	for _, it := range o.items {
		it.numbers, it.sentAt = nil, time.Time{}
	}
}

// observe takes a notice from the detector and reports whether it is news. A
// detector does not bring what is stale: nothing is judged here.
func (o *outbox) observe(n nstance.Notice, now time.Time) bool {
	if it := o.find(n.EventID); it != nil {
		return it.update(n, now)
	}
	if !o.hasRoom() {
		return false
	}
	o.items = append(o.items, &item{notice: &n, seen: now, formAt: now})
	return true
}

// update replaces a notice that changed. The instant of its detection stays:
// an announcement is detected once.
func (it *item) update(n nstance.Notice, now time.Time) bool {
	n.DetectedAt = it.notice.DetectedAt
	if sameNotice(*it.notice, n) {
		return false
	}
	it.notice, it.formAt, it.acked, it.numbers, it.sentAt = &n, now, false, nil, time.Time{}
	return true
}

func sameNotice(a, b nstance.Notice) bool {
	return a.Kind == b.Kind && a.Action == b.Action && a.Source == b.Source && a.Cancelled == b.Cancelled &&
		a.Deadline.Equal(b.Deadline) && a.NotBefore.Equal(b.NotBefore)
}

// hasRoom makes room for one more notice, if need be by dropping the oldest one
// that dooms nothing.
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

// result owes the server the outcome of a drain. The same generation again is
// sent again; of too many the oldest is forgotten.
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

// drop forgets the oldest item of one sort and reports whether there was one.
func (o *outbox) drop(of func(*item) bool) bool {
	i := slices.IndexFunc(o.items, of)
	if i < 0 {
		return false
	}
	o.items = slices.Delete(o.items, i, i+1)
	return true
}

// next returns the next message that is due, or nil and how long nothing will
// be due (zero: until something changes).
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
	o.report, o.reportAt = o.number, now
	w := wire.Report(r)
	for _, it := range o.standingItems() {
		w.Notices = append(w.Notices, it.wire(now))
	}
	return &apiv1.ConnectRequest{Number: o.number, Message: &apiv1.ConnectRequest_Report{Report: w}}
}

// wire returns what is sent of a notice.
func (it *item) wire(now time.Time) *apiv1.Notice { return wire.NoticeAt(*it.notice, it.clock(now)) }

// clock returns the present by the clock that dated the notice: what has elapsed
// since then, even if that clock was set meanwhile.
func (it *item) clock(now time.Time) time.Time { return it.formAt.Round(0).Add(now.Sub(it.formAt)) }

// sendAnswer numbers a message that nobody acknowledges.
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

// ack notes that a message had its effect. A withdrawn notice and a result are
// over with that; a standing notice goes on standing.
func (o *outbox) ack(number uint64) {
	if number != 0 && number == o.report {
		o.lastReport = o.reportAt
	}
	for i, it := range o.items {
		if !slices.Contains(it.numbers, number) {
			continue
		}
		it.acked, it.known = true, true
		if it.result != nil || it.notice.Cancelled {
			o.items = slices.Delete(o.items, i, i+1)
		}
		return
	}
}

// overdue returns an item whose notice dooms the machine and that no server has
// acknowledged in time, once; or else nil and how long until there may be one
// (zero: until something changes).
func (o *outbox) overdue(now time.Time) (due *item, wait time.Duration) {
	for _, it := range o.items {
		if !it.dooms() || it.known || it.hooked {
			continue
		}
		left := it.seen.Add(hookAfter).Sub(now)
		if left <= 0 {
			it.hooked = true
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
