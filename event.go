package nstance

import "time"

// An Event is one entry of the journal: a decision or an observation, with its
// reason. Its JSON form is what nstance-admin events and nstance-server dev
// --json print.
type Event struct {
	Seq      Seq        `json:"seq,omitempty"`
	Time     time.Time  `json:"time"`
	Type     EventType  `json:"event"`
	Tenant   TenantID   `json:"tenant,omitempty"`
	Group    GroupID    `json:"group,omitempty"`
	Instance InstanceID `json:"instance,omitempty"`
	Replaces InstanceID `json:"replaces,omitempty"` // for display: the loss that made this create necessary
	Reason   string     `json:"reason,omitempty"`
	Code     Code       `json:"code,omitempty"`
	Error    string     `json:"error,omitempty"`
	Drain    *Drain     `json:"drain,omitempty"`
	Notice   *Notice    `json:"notice,omitempty"`
	Count    uint64     `json:"count,omitempty"` // how many equal events this entry stands for; 0 means 1
}

// An EventType names what happened.
type EventType string

// The types of events that a program may wait for. Tools read these names: they change
// only with the wire version. Types of a server's own decisions have no constant here;
// docs/events.md lists every type.
const (
	EventGroupReady           EventType = "group_ready" // as many ready members as its size
	EventNoticeReceived       EventType = "notice_received"
	EventNoticeIgnored        EventType = "notice_ignored"
	EventCreateRequested      EventType = "create_requested"
	EventReplacementRequested EventType = "replacement_requested"
	EventCreated              EventType = "created"
	EventCreateFailed         EventType = "create_failed"
	EventRegistered           EventType = "registered"
	EventReady                EventType = "ready"
	EventUnhealthy            EventType = "unhealthy"
	EventMachineGone          EventType = "machine_gone"
	EventMarketDiffers        EventType = "market_differs" // the machine is not in the requested market
	EventDrainStarted         EventType = "drain_started"
	EventDrainTightened       EventType = "drain_tightened"
	EventDrainReassigned      EventType = "drain_reassigned" // its executor has disconnected or cannot drain: it has another one now
	EventDrainCancelled       EventType = "drain_cancelled"
	EventDrainedWithoutServer EventType = "drained_without_server" // its agent ran its hook without a command
	EventDrainAcknowledged    EventType = "drain_acknowledged"
	EventDrainCutShort        EventType = "drain_cut_short" // the deadline came first
	EventParked               EventType = "parked"          // a stand-by machine sleeps, or waits without work
	EventWakeRequested        EventType = "wake_requested"  // a stand-by machine is to run in place of others
	EventWoken                EventType = "woken"           // its machine runs; it is ready when its agent has a new certificate and reports
	EventDeleteRequested      EventType = "delete_requested"
	EventGroupRemoved         EventType = "group_removed" // the last managed member of a removed group is gone
	EventDeleted              EventType = "deleted"
	EventRolloutHalted        EventType = "rollout_halted"
	EventRecordUnreadable     EventType = "record_unreadable"
	EventOrphanSeen           EventType = "orphan_seen"  // a machine with our marks and no record
	EventHoldStarted          EventType = "hold_started" // a group, or the whole shard if Group is empty, is kept from changing
	EventHoldEnded            EventType = "hold_ended"
	EventAlarm                EventType = "alarm" // needs attention
)
