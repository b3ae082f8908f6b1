// Package notices keeps what was announced about one member: the notices that stand, advice,
// and the acknowledgements that are owed for both.
package notices

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
)

// forgetAfter is how long after its deadline a notice is kept for a machine that runs, as the
// provider says.
const forgetAfter = 10 * time.Minute

// Max is how many notices, and how much advice, one member may have at once: a stolen identity
// can have its own instance replaced, but not fill the memory.
const Max = 16

// A Book is what was announced about one member. The zero Book is empty. It has no lock.
type Book struct {
	Standing []nstance.Notice // those that doom the machine
	Advice   []nstance.Notice // those that doom nothing

	ends    map[string]time.Duration // by event ID: until when, in elapsed time, one with a deadline stands
	dropped []string                 // event IDs of notices that the cloud did not follow up
	aliases map[string]string        // from event IDs of other sources to that of the source which announced the event first
	acks    map[string][]func()      // by event ID: owed once the consequence is durable
}

// Find returns where the notice of an event is; -1: it is not there.
func Find(all []nstance.Notice, eventID string) int {
	return slices.IndexFunc(all, func(n nstance.Notice) bool { return n.EventID == eventID })
}

// Same reports whether two lists say the same.
func Same(a, b []nstance.Notice) bool {
	return slices.EqualFunc(a, b, func(x, y nstance.Notice) bool { return notice.Repeats(x, y) && notice.Repeats(y, x) })
}

// EventID returns the event ID that the event of n is known by: that of the source which
// announced it first.
func (b *Book) EventID(n nstance.Notice) string {
	for _, all := range [][]nstance.Notice{b.Standing, b.Advice} {
		if Find(all, n.EventID) >= 0 {
			return n.EventID
		}
		for i := range all {
			if notice.SameEvent(n, all[i]) {
				b.addAlias(n.EventID, all[i].EventID)
				return all[i].EventID
			}
		}
	}
	return b.FirstEventID(n.EventID)
}

// FirstEventID returns the event ID of the source which announced an event first.
func (b *Book) FirstEventID(eventID string) string { return cmp.Or(b.aliases[eventID], eventID) }

func (b *Book) addAlias(eventID, first string) {
	if b.aliases == nil {
		b.aliases = map[string]string{}
	}
	if len(b.aliases) < 2*Max {
		b.aliases[eventID] = first
	}
}

// Receive sets when n was received and when it ends, and reports whether its deadline has
// passed.
func (b *Book) Receive(n *nstance.Notice, now time.Time, elapsed time.Duration) (overdue bool) {
	n.ReceivedAt = now.UTC().Round(0)
	if n.Deadline.IsZero() {
		return false
	}
	b.end(n.EventID, n.Deadline.Sub(n.ReceivedAt), elapsed)
	return !n.Deadline.After(n.ReceivedAt)
}

// end records when, in elapsed time, a notice with so much time left is dropped if the
// machine still runs.
func (b *Book) end(eventID string, left, elapsed time.Duration) {
	if b.ends == nil {
		b.ends = map[string]time.Duration{}
	}
	b.ends[eventID] = elapsed + left + forgetAfter
}

// Withdraw drops a standing notice.
func (b *Book) Withdraw(eventID string) {
	i := Find(b.Standing, eventID)
	b.Standing = append(b.Standing[:i:i], b.Standing[i+1:]...)
	delete(b.ends, eventID)
	b.forget(eventID)
}

// DropAdvice drops advice, and reports whether there was any.
func (b *Book) DropAdvice(eventID string) bool {
	i := Find(b.Advice, eventID)
	if i < 0 {
		return false
	}
	b.Advice = append(b.Advice[:i:i], b.Advice[i+1:]...)
	b.forget(eventID)
	return true
}

// DropOldestRebalance makes room for other advice, and reports whether it could. A cloud that
// recommends to leave a machine again and again takes nothing of that back.
func (b *Book) DropOldestRebalance() bool {
	i := slices.IndexFunc(b.Advice, func(n nstance.Notice) bool { return n.Kind == nstance.Rebalance })
	return i >= 0 && b.DropAdvice(b.Advice[i].EventID)
}

// forget gives what is owed for an event, and forgets its other IDs: what they announce next
// is another event.
func (b *Book) forget(eventID string) {
	maps.DeleteFunc(b.aliases, func(_, first string) bool { return first == eventID })
	acks := b.acks[eventID]
	delete(b.acks, eventID)
	callAll(acks)
}

// DropExpired drops the notices that the cloud did not act on. The agent may go on reporting
// them: they stay Dropped. Elapsed time decides: a recorded deadline may be by the wrong clock
// of a former leader, so it counts as not earlier than the moment when this term first reads it.
func (b *Book) DropExpired(now time.Time, elapsed time.Duration) {
	var kept []nstance.Notice
	for _, n := range b.Standing {
		if _, known := b.ends[n.EventID]; !known && !n.Deadline.IsZero() {
			b.end(n.EventID, max(0, n.Deadline.Sub(now)), elapsed)
		}
		if n.Deadline.IsZero() || elapsed < b.ends[n.EventID] {
			kept = append(kept, n)
			continue
		}
		b.dropped = append(b.dropped[max(0, len(b.dropped)-Max+1):], n.EventID)
		delete(b.ends, n.EventID)
	}
	b.Standing = kept
}

// Dropped reports whether the notice of an event was dropped.
func (b *Book) Dropped(eventID string) bool { return slices.Contains(b.dropped, eventID) }

// withdrawal begins what is owed for the end of a notice.
const withdrawal = "withdrawn "

// Owe keeps the acknowledgement of a notice, or of its withdrawal, until Settle.
func (b *Book) Owe(eventID string, withdrawn bool, ack func()) {
	if ack == nil {
		return
	}
	if withdrawn {
		eventID = withdrawal + eventID
	}
	if b.acks == nil {
		b.acks = map[string][]func(){}
	}
	owed := b.acks[eventID]
	b.acks[eventID] = append(owed[max(0, len(owed)-Max+1):], ack)
}

// Settle acknowledges each notice whose consequence is durable, and each withdrawal after
// which none is, or that is ignored.
func (b *Book) Settle(durable func(eventID string) bool, withdrawalIgnored bool) {
	for what, acks := range b.acks {
		eventID, ends := strings.CutPrefix(what, withdrawal)
		if durable(eventID) != ends || ends && withdrawalIgnored {
			delete(b.acks, what)
			callAll(acks)
		}
	}
}

func callAll(acks []func()) {
	for _, ack := range acks {
		ack()
	}
}
