package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/buckets"
	"github.com/nstance-go/nstance/internal/eventtype"
)

// Entries of the journal that one agent can cause at will, of each type: so many at once,
// and then one a minute. Beyond that they are counted, and the journal says how many.
const (
	causedPerMinute, causedBurst = 1, 30
	sayDroppedAfter              = time.Minute
)

// causedByAgents are the types of events that an agent can cause as often as it likes.
// Notices have bounds of their own; all other events follow from decisions of the server.
var causedByAgents = map[nstance.EventType]bool{
	eventtype.FilesApplied:            true,
	eventtype.FilesFailed:             true,
	eventtype.CertificateRenewed:      true,
	nstance.EventAlarm:                true,
	nstance.EventDrainReassigned:      true,
	nstance.EventDrainedWithoutServer: true,
}

// eventLimits bound what agents cause in the journal of one term.
type eventLimits struct {
	ctx     context.Context // of the term
	now     func() time.Time
	journal func(nstance.Event) // receives how many events were dropped
	caused  *buckets.Buckets

	mu      sync.Mutex
	dropped map[string]int // by cause, since that was last said
}

func newEventLimits(ctx context.Context, now func() time.Time, journal func(nstance.Event)) *eventLimits {
	return &eventLimits{ctx: ctx, now: now, journal: journal, caused: buckets.New(causedPerMinute/60.0, causedBurst), dropped: map[string]int{}}
}

// admit reports whether an event may be journalled. It never blocks.
func (l *eventLimits) admit(e nstance.Event) bool {
	if !causedByAgents[e.Type] || e.Tenant == "" && e.Instance == "" {
		return true
	}
	cause := string(e.Type) + " " + string(e.Tenant) + "/" + string(e.Instance)
	if l.caused.Allow(cause, time.Now()) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped[cause]++; l.dropped[cause] == 1 {
		time.AfterFunc(sayDroppedAfter, func() { l.sayDropped(cause, e) })
	}
	return false
}

// sayDropped journals how many events like e were dropped.
func (l *eventLimits) sayDropped(cause string, e nstance.Event) {
	l.mu.Lock()
	n := l.dropped[cause]
	delete(l.dropped, cause)
	l.mu.Unlock()
	if l.ctx.Err() == nil {
		l.journal(nstance.Event{
			Time: l.now().UTC(), Type: eventtype.EventsDropped, Tenant: e.Tenant, Group: e.Group, Instance: e.Instance,
			Reason: fmt.Sprintf("%d more entries %s within %v: not written", n, e.Type, sayDroppedAfter),
		})
	}
}
