package sim

import (
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
)

// fired counts what happened in a run, by name: events, and of those that have one their cause, kind
// or reason. It says which rules a seed has reached.
type fired map[string]int

func (f fired) event(e nstance.Event) {
	f["event "+string(e.Type)]++
	kind, _, _ := strings.Cut(e.Reason, ":")
	switch e.Type {
	case nstance.EventHoldStarted:
		f["hold "+kind]++
	case nstance.EventDeleteRequested:
		f["delete for "+kind]++
	case nstance.EventDrainStarted:
		for _, c := range e.Drain.Causes {
			f["drain for "+string(c.Kind)]++
		}
	case nstance.EventCreateFailed, nstance.EventMachineGone:
		if e.Code != "" {
			f[string(e.Type)+" as "+string(e.Code)]++
		}
	}
}

// Rules are the names that seeds have to reach: what no seed reaches is tested by none of them.
func Rules() []string {
	var out []string
	for _, t := range []nstance.EventType{
		nstance.EventGroupReady, nstance.EventNoticeReceived, nstance.EventNoticeIgnored, nstance.EventCreateRequested, nstance.EventReplacementRequested,
		nstance.EventCreated, nstance.EventCreateFailed, nstance.EventRegistered, nstance.EventReady, nstance.EventUnhealthy, nstance.EventMachineGone,
		nstance.EventDrainStarted, nstance.EventDrainTightened, nstance.EventDrainReassigned, nstance.EventDrainCancelled,
		nstance.EventDrainAcknowledged, nstance.EventDrainCutShort, nstance.EventParked, nstance.EventWakeRequested, nstance.EventWoken,
		nstance.EventDeleteRequested, nstance.EventGroupRemoved, nstance.EventDeleted, nstance.EventRolloutHalted, nstance.EventOrphanSeen,
		nstance.EventHoldStarted, nstance.EventHoldEnded, nstance.EventAlarm,
	} {
		out = append(out, "event "+string(t))
	}
	for _, k := range []nstance.CauseKind{
		nstance.CauseNotice, nstance.CauseGone, nstance.CauseRequest, nstance.CauseExpired, nstance.CauseTimeout, nstance.CauseUnhealthy, nstance.CauseRollout,
		nstance.CauseSurplus, nstance.CauseStandby,
	} {
		if k != nstance.CauseGone { // there is nothing to drain
			out = append(out, "drain for "+string(k))
		}
		if k != nstance.CauseStandby { // it is parked
			out = append(out, "delete for "+string(k))
		}
	}
	slices.Sort(out)
	return out
}
