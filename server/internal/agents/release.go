package agents

import (
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// release permits the agent to acknowledge events to its cloud, if its machine is
// released. Of machines that share an event, the agent of the last one acknowledges it.
func (s *session) release() {
	if s.agents.isReleased(s.id) {
		s.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Released{
			Released: &apiv1.Released{EventIds: s.agents.notices.release(s.id, s.notices)},
		}})
	}
}

// isReleased reports whether an instance's drain is over, as it should be, and its
// deletion durable.
func (a *Agents) isReleased(id nstance.InstanceID) bool {
	rec, ok := a.shard.Records().Get(id)
	if !ok || rec.Deleting == nil || rec.CutShort {
		return false
	}
	return rec.End == nil || rec.End.Drained == nil || rec.End.Drained.Outcome == nstance.OutcomeDrained
}

// release records with every machine that shares an event with a released one that it is
// released, and returns the events of which all machines are.
func (b *noticeBook) release(id nstance.InstanceID, own *noticeDedup) (complete []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range own.shared() {
		for _, name := range n.Machines {
			if other := b.byInstance[namedInstance(name)]; other != nil {
				other.recordReleased(n.EventID, id)
			}
		}
	}
	return own.complete()
}

// namedInstance returns the instance whose machine has that name: providers name machines
// by instance, and clouds may change the case.
func namedInstance(name string) nstance.InstanceID {
	return nstance.InstanceID(strings.ToLower(name))
}

// shared returns the standing notices that name more machines than this one.
func (d *noticeDedup) shared() (notices []nstance.Notice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, state := range d.byEvent {
		if state.isShared() {
			notices = append(notices, state.notice)
		}
	}
	return notices
}

// complete returns the events of these notices of which all machines are released.
func (d *noticeDedup) complete() (events []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, state := range d.byEvent {
		if state.isShared() && !slices.ContainsFunc(state.notice.Machines, func(name string) bool { return !slices.Contains(state.released, namedInstance(name)) }) {
			events = append(events, id)
		}
	}
	slices.Sort(events)
	return events
}

func (s *noticeState) isShared() bool { return !s.notice.Cancelled && len(s.notice.Machines) > 1 }

func (d *noticeDedup) recordReleased(eventID string, id nstance.InstanceID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if state := d.byEvent[eventID]; state != nil && !slices.Contains(state.released, id) {
		state.released = append(state.released, id)
	}
}
