package operators

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/journal"
)

// noticeTypes are the events that begin an interruption.
var noticeTypes = []nstance.EventType{eventtype.NoticeDetected, nstance.EventNoticeReceived}

// interruptionTypes are the events of an interruption.
var interruptionTypes = []nstance.EventType{
	eventtype.NoticeDetected, nstance.EventNoticeReceived, nstance.EventReplacementRequested, nstance.EventReady,
	nstance.EventDrainStarted, nstance.EventDrainAcknowledged, nstance.EventDrainCutShort, nstance.EventDrainCancelled,
	nstance.EventDeleted,
}

// interruptions reads the interruptions by the notices that f selects, latest first. It
// reads only events of the instances concerned.
func interruptions(ctx context.Context, j journal.Journal, f journal.Filter) ([]*apiv1.Interruption, error) {
	notices, err := j.Notices(ctx, f)
	if err != nil || len(notices) == 0 {
		return nil, err
	}
	about := make([]nstance.InstanceID, 0, len(notices))
	for _, n := range notices {
		about = append(about, n.Instance)
	}
	after := notices[len(notices)-1].Seq - 1
	replacements := journal.Filter{Tenant: f.Tenant, After: after, Types: []nstance.EventType{nstance.EventReplacementRequested}, Replaces: about}
	if err := eachEvent(ctx, j, replacements, func(e nstance.Event) { about = append(about, e.Instance) }); err != nil {
		return nil, err
	}
	s := newInterruptionReader()
	if err := eachEvent(ctx, j, journal.Filter{Tenant: f.Tenant, After: after, Types: interruptionTypes, Any: about}, s.add); err != nil {
		return nil, err
	}
	out := make([]*apiv1.Interruption, 0, len(notices))
	for _, n := range notices {
		out = append(out, s.occurrences(n.Instance, n.EventID)...)
	}
	return out, nil
}

// eachEvent calls do with every event that f selects, oldest first, and holds no more
// than a page of them.
func eachEvent(ctx context.Context, j journal.Journal, f journal.Filter, do func(nstance.Event)) error {
	for f.Limit = journalPage; ; {
		events, err := j.Events(ctx, f)
		if err != nil {
			return err
		}
		for _, e := range events {
			do(e)
		}
		if len(events) < f.Limit {
			return nil
		}
		f.After = events[len(events)-1].Seq
	}
}

// interruptionReader assembles interruptions from events in order.
type interruptionReader struct {
	of map[nstance.InstanceID][]*apiv1.Interruption
	by map[nstance.InstanceID]nstance.InstanceID // replacement to what it replaces
}

func newInterruptionReader() *interruptionReader {
	return &interruptionReader{of: map[nstance.InstanceID][]*apiv1.Interruption{}, by: map[nstance.InstanceID]nstance.InstanceID{}}
}

// occurrences returns the interruptions by the notices of one event, the latest first.
// All but the latest were withdrawn.
func (s *interruptionReader) occurrences(id nstance.InstanceID, eventID string) (all []*apiv1.Interruption) {
	for _, i := range slices.Backward(s.of[id]) {
		if i.GetEventId() == eventID {
			all = append(all, i)
		}
	}
	return all
}

func (s *interruptionReader) add(e nstance.Event) {
	at := wire.Time(e.Time)
	switch e.Type {
	case eventtype.NoticeDetected, nstance.EventNoticeReceived:
		s.notice(e)
	case nstance.EventReplacementRequested:
		s.by[e.Instance] = e.Replaces
		s.each(e.Replaces, func(i *apiv1.Interruption) {
			if i.ReplacementRequestedAt == nil {
				i.ReplacementRequestedAt, i.Replacement = at, string(e.Instance)
			}
		})
	case nstance.EventReady:
		s.each(s.by[e.Instance], func(i *apiv1.Interruption) {
			if i.GetReplacement() == string(e.Instance) {
				first(&i.ReplacementReadyAt, at)
			}
		})
	case nstance.EventDrainStarted:
		s.each(e.Instance, func(i *apiv1.Interruption) { first(&i.DrainStartedAt, at) })
	case nstance.EventDrainAcknowledged:
		s.ended(e, e.Reason)
	case nstance.EventDrainCutShort:
		s.ended(e, "cut short")
	case nstance.EventDrainCancelled:
		s.ended(e, "cancelled")
		s.each(e.Instance, func(i *apiv1.Interruption) { i.Withdrawn = true })
	case nstance.EventDeleted:
		s.each(e.Instance, func(i *apiv1.Interruption) { first(&i.DeletedAt, at) })
	}
}

// notice begins an interruption, or adds to it: one notice is detected by the agent and
// received by the server, once more by a new leader without a record of it. The notice of
// an event that returns after it was withdrawn begins another interruption; a detection
// does not, because agents repeat notices that the leader has dropped.
func (s *interruptionReader) notice(e nstance.Event) {
	if e.Notice == nil {
		return
	}
	received := e.Type == nstance.EventNoticeReceived
	known := s.occurrences(e.Instance, e.Notice.EventID)
	if len(known) == 0 || known[0].GetWithdrawn() && received {
		known = []*apiv1.Interruption{s.begin(e)}
	}
	if received && notice.Rehearsed(*e.Notice) { // the agent that detected it does not know that
		known[0].Rehearsal, known[0].Notice = true, wire.Notice(*e.Notice)
	}
	if received { // pages compare this time with that of the record
		first(&known[0].ReceivedAt, wire.Time(cmp.Or(e.Notice.ReceivedAt, e.Time)))
	}
}

func (s *interruptionReader) begin(e nstance.Event) *apiv1.Interruption {
	i := &apiv1.Interruption{
		EventId: e.Notice.EventID, Tenant: string(e.Tenant), Group: string(e.Group), Instance: string(e.Instance),
		Notice: wire.Notice(*e.Notice), Rehearsal: notice.Rehearsed(*e.Notice), DetectedAt: wire.Time(e.Notice.DetectedAt),
	}
	s.of[e.Instance] = append(s.of[e.Instance], i)
	return i
}

func (s *interruptionReader) ended(e nstance.Event, how string) {
	s.each(e.Instance, func(i *apiv1.Interruption) {
		if i.GetDrainedAt() == nil {
			i.DrainedAt, i.DrainOutcome = wire.Time(e.Time), how
		}
	})
}

// each calls do with the interruptions of an instance that were not withdrawn. A
// replacement may be ready long after the machine has gone.
func (s *interruptionReader) each(id nstance.InstanceID, do func(*apiv1.Interruption)) {
	for _, i := range s.of[id] {
		if !i.GetWithdrawn() {
			do(i)
		}
	}
}

// first keeps the earliest time.
func first(to **timestamppb.Timestamp, at *timestamppb.Timestamp) {
	if *to == nil {
		*to = at
	}
}
