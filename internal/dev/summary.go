package dev

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
)

// A Summary is the last line of a scenario with Options.JSON. Durations are
// whole milliseconds from notice_published; where nothing is published, from
// what the scenario does instead. With several instances they are those of the
// last. What a scenario does not have, or did not come to, is absent.
type Summary struct {
	Time     time.Time `json:"time"`
	Event    string    `json:"event"` // summary
	OK       bool      `json:"ok"`
	Scenario string    `json:"scenario"`
	Stage    string    `json:"stage,omitempty"` // where it failed
	Error    string    `json:"error,omitempty"`
	Count    int       `json:"count,omitempty"` // of the instances that the scenario was about
	Lost     *int      `json:"lost,omitempty"`  // those of them that were not replaced, drained and deleted; with failover and kill: that should be there, and are not

	// What scenarios failover and kill have cost: machines without a record,
	// and more than one for an instance or for a need; the time without a
	// leader (failover).
	Leaked     *int   `json:"leaked,omitempty"`
	Duplicated *int   `json:"duplicated,omitempty"`
	FailoverMS *int64 `json:"failover_ms,omitempty"`

	// LeaderAddressMS is the time from the leader's death until the leader
	// address was at the new leader's interface, where the cloud has one that
	// moves (failover).
	LeaderAddressMS *int64 `json:"leader_address_ms,omitempty"`

	// What scenario kill has done.
	Seed        *uint64 `json:"seed,omitempty"`
	Kills       *int    `json:"kills,omitempty"`
	ServerKills *int    `json:"server_kills,omitempty"` // of those, the others are of machines

	// Bridge has the rounds of scenario bridge; the other durations are those of the last.
	Bridge []BridgeRound `json:"bridge,omitempty"`

	DetectedMS             *int64 `json:"detected_ms,omitempty"`
	ReceivedMS             *int64 `json:"received_ms,omitempty"`
	ReplacementRequestedMS *int64 `json:"replacement_requested_ms,omitempty"`
	DrainedMS              *int64 `json:"drained_ms,omitempty"`
	ReplacementReadyMS     *int64 `json:"replacement_ready_ms,omitempty"`
	DeletedMS              *int64 `json:"deleted_ms,omitempty"`
}

// summary gathers how long everything took.
func (p *play) summary() Summary {
	told, _, _ := p.story.read()
	x := told.index()
	last := func(t nstance.EventType) *int64 {
		var latest time.Time
		for _, id := range p.victims {
			if e, ok := x.find(t, id); ok && e.Time.After(latest) {
				latest = e.Time
			}
		}
		if p.since.IsZero() || latest.IsZero() {
			return nil
		}
		ms := max(0, latest.Sub(p.since).Milliseconds())
		return &ms
	}
	detected := eventtype.NoticeDetected
	if p.o.Scenario == Crash {
		detected = nstance.EventMachineGone
	}
	s := Summary{
		Time: time.Now().UTC(), Event: "summary", Scenario: p.o.Scenario,
		DetectedMS: last(detected), ReceivedMS: last(nstance.EventNoticeReceived),
		ReplacementRequestedMS: last(nstance.EventReplacementRequested), DrainedMS: last(nstance.EventDrainAcknowledged),
		ReplacementReadyMS: last(nstance.EventReady), DeletedMS: last(nstance.EventDeleted),
	}
	if len(p.victims) > 0 && (p.o.Scenario == Mass || p.o.Scenario == Rollout) {
		lost := len(p.victims)
		for _, id := range p.victims {
			if p.followed(x, id) {
				lost--
			}
		}
		s.Count, s.Lost = len(p.victims), &lost
	}
	if p.failoverState.took {
		ms := p.failoverState.failover.Milliseconds()
		s.FailoverMS = &ms
	}
	if p.failoverState.moved > 0 {
		s.LeaderAddressMS = new(p.failoverState.moved.Milliseconds())
	}
	p.killRun.summarize(p.o, &s)
	s.Bridge = p.bridgeRun.rounds
	if p.balance != nil {
		s.Leaked, s.Duplicated, s.Lost = &p.balance.leaked, &p.balance.duplicated, &p.balance.lost
	}
	return s
}

// followed reports whether a victim was replaced, drained and deleted.
func (p *play) followed(x index, id nstance.InstanceID) bool {
	for _, t := range []nstance.EventType{nstance.EventReady, nstance.EventDrainAcknowledged, nstance.EventDeleted} {
		if _, ok := x.find(t, id); !ok {
			return false
		}
	}
	return true
}
