package server

import (
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// rehearsalSource begins the source of notices that somebody pretends.
const rehearsalSource = "rehearsal/"

// interruptionTypes are the events that tell what becomes of a notice.
var interruptionTypes = []nstance.EventType{
	nstance.EventNoticeDetected, nstance.EventNoticeReceived, nstance.EventReplacementRequested, nstance.EventReady,
	nstance.EventDrainStarted, nstance.EventDrainAcknowledged, nstance.EventDrainCutShort, nstance.EventDrainCancelled,
	nstance.EventDeleted,
}

// interruptions reads, from what happened in order, each notice's story, in the
// order in which they were received.
func interruptions(events []nstance.Event) []*apiv1.Interruption {
	s := stories{of: map[nstance.InstanceID][]*apiv1.Interruption{}, by: map[nstance.InstanceID]nstance.InstanceID{}}
	for _, e := range events {
		s.hear(e)
	}
	return s.all
}

// stories are interruptions that are being read.
type stories struct {
	all []*apiv1.Interruption
	of  map[nstance.InstanceID][]*apiv1.Interruption
	by  map[nstance.InstanceID]nstance.InstanceID // replacement to what it replaces
}

func (s *stories) hear(e nstance.Event) {
	at := wire.Time(e.Time)
	switch e.Type {
	case nstance.EventNoticeDetected, nstance.EventNoticeReceived:
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

// notice begins a story, or adds to it: one notice is detected by the agent and
// received by the server, and every new leader receives it again.
func (s *stories) notice(e nstance.Event) {
	if e.Notice == nil {
		return
	}
	var i *apiv1.Interruption
	for _, known := range s.of[e.Instance] {
		if known.GetEventId() == e.Notice.EventID {
			i = known
		}
	}
	if i == nil {
		i = &apiv1.Interruption{
			EventId: e.Notice.EventID, Tenant: string(e.Tenant), Group: string(e.Group), Instance: string(e.Instance),
			Notice: wire.Notice(*e.Notice), Rehearsal: strings.HasPrefix(e.Notice.Source, rehearsalSource), DetectedAt: wire.Time(e.Notice.DetectedAt),
		}
		s.all, s.of[e.Instance] = append(s.all, i), append(s.of[e.Instance], i)
	}
	if e.Type == nstance.EventNoticeReceived {
		first(&i.ReceivedAt, wire.Time(e.Time))
	}
}

func (s *stories) ended(e nstance.Event, how string) {
	s.each(e.Instance, func(i *apiv1.Interruption) {
		if i.GetDrainedAt() == nil {
			i.DrainedAt, i.DrainOutcome = wire.Time(e.Time), how
		}
	})
}

// each calls do with the stories of an instance whose notice stands. A
// replacement may be ready long after the machine has gone.
func (s *stories) each(id nstance.InstanceID, do func(*apiv1.Interruption)) {
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
