package agent

import (
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// A mailbox is the outbox shared by the agent's goroutines. The lock is never held
// while a message is sent or another part of the agent is called.
type mailbox struct {
	now func() time.Time // the clock of the notices

	mu  sync.Mutex
	box outbox

	changed chan struct{} // wakes the session: a message may be due
	noticed chan struct{} // wakes watchUnacknowledged: a notice came
	unsaved chan struct{} // wakes keepNotices: the notices, or what of them is acknowledged, changed

	observed chan struct{} // wakes drainBeforeStop: a notice came
	releases chan struct{} // wakes acknowledgeEvents: a notice or a release came
}

func newMailbox(now func() time.Time) *mailbox {
	return &mailbox{now: now, changed: make(chan struct{}, 1), noticed: make(chan struct{}, 1), unsaved: make(chan struct{}, 1), releases: make(chan struct{}, 1), observed: make(chan struct{}, 1)}
}

// do calls f with the outbox under the lock.
func (m *mailbox) do(f func(*outbox)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.box)
}

// observe adds a notice of the detector and reports whether it is new or changed.
func (m *mailbox) observe(n nstance.Notice) (changed bool) {
	m.do(func(o *outbox) { changed = o.observe(n, m.now()) })
	if changed {
		signal(m.changed)
		signal(m.noticed)
		signal(m.unsaved)
		signal(m.releases)
		signal(m.observed)
	}
	return changed
}

// ack records an acknowledgement.
func (m *mailbox) ack(a *apiv1.Acknowledgement) {
	m.do(func(o *outbox) { o.ack(a) })
	signal(m.unsaved)
}

// end ends a session, if there is one.
func (m *mailbox) end() {
	m.do(func(o *outbox) { o.end(m.now()) })
	signal(m.noticed)
}

// standing returns every notice that was not withdrawn.
func (m *mailbox) standing() (notices []nstance.Notice) {
	m.do(func(o *outbox) { notices = o.standing() })
	return notices
}

// dooms reports whether a notice stands that dooms the machine.
func (m *mailbox) dooms() bool {
	return slices.ContainsFunc(m.standing(), func(n nstance.Notice) bool { return n.Kind.Dooms() })
}

// stands reports whether the notice of that event stands.
func (m *mailbox) stands(eventID string) bool {
	return slices.ContainsFunc(m.standing(), func(n nstance.Notice) bool { return n.EventID == eventID })
}

func (m *mailbox) isEmpty() (empty bool) {
	m.do(func(o *outbox) { empty = len(o.notices) == 0 })
	return empty
}

// result adds the result of a drain.
func (m *mailbox) result(r *apiv1.DrainResult) {
	m.do(func(o *outbox) { o.result(r) })
	signal(m.changed)
}

// signal wakes the goroutine that waits on c, or the next one that will.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
