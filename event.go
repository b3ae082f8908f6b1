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
	Count    uint64     `json:"count,omitempty"` // how many alike this one stands for; 0 and 1: itself
}

// An EventType names what happened.
type EventType string

// The event types. Tools read these names: they change only with the wire version.
const (
	EventGroupReady           EventType = "group_ready" // as many ready members as wanted
	EventNoticePublished      EventType = "notice_published"
	EventNoticeDetected       EventType = "notice_detected"
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
	EventMarketDiffers        EventType = "market_differs" // the machine is in another market than was asked for
	EventDrainStarted         EventType = "drain_started"
	EventDrainTightened       EventType = "drain_tightened"
	EventDrainReassigned      EventType = "drain_reassigned" // its executor has gone or cannot drain: another one carries it out
	EventDrainCancelled       EventType = "drain_cancelled"
	EventDrainAcknowledged    EventType = "drain_acknowledged"
	EventDrainCutShort        EventType = "drain_cut_short" // the deadline came first
	EventDeleteRequested      EventType = "delete_requested"
	EventGroupRemoved         EventType = "group_removed" // the last managed member of a group that was to go is gone
	EventDeleted              EventType = "deleted"
	EventRolloutHalted        EventType = "rollout_halted"
	EventRolloutPaused        EventType = "rollout_paused"
	EventRolloutResumed       EventType = "rollout_resumed" // a pause or a halt is over
	EventRolledBack           EventType = "rolled_back"     // the last good definition is the desired one
	EventRollbackEnded        EventType = "rollback_ended"  // the configured definition is, again
	EventFrozen               EventType = "frozen"          // a group, or the shard where it names none
	EventThawed               EventType = "thawed"
	EventFilesApplied         EventType = "files_applied" // the machine has its files (Reason: their hash); Error: what could not be made, or what the command said
	EventFilesFailed          EventType = "files_failed"  // it has not put them to use
	EventRecordUnreadable     EventType = "record_unreadable"
	EventPreserved            EventType = "preserved" // somebody looks into it
	EventRecordRepaired       EventType = "record_repaired"
	EventOrphanSeen           EventType = "orphan_seen"    // a machine of ours without a record
	EventOrphanAdopted        EventType = "orphan_adopted" // it is a member now, because somebody said so
	EventAlarm                EventType = "alarm"          // a person should look
	EventClockWrong           EventType = "clock_wrong"    // the leader's: deletes by deadline and for age wait
	EventClockRight           EventType = "clock_right"    // again: they go on
	EventKeysRotated          EventType = "keys_rotated"   // a step of a rotation of the cluster's keys
	EventOperatorRevoked      EventType = "operator_revoked"
)

// What else was decided, by whom it says in its reason.
const (
	EventConfigAccepted        EventType = "config_accepted"         // it is in force
	EventConfigHeld            EventType = "config_held"             // it would change too much at once: somebody must confirm it
	EventConfigWithdrawn       EventType = "config_withdrawn"        // it was held, and is proposed no more
	EventConfigRefused         EventType = "config_refused"          // Error: why; the one in force stays
	EventGroupCreated          EventType = "group_created"           // through the API, as what follows
	EventGroupChanged          EventType = "group_changed"           // Reason: which fields
	EventGroupRemovalRequested EventType = "group_removal_requested" // its members are to go, and then it
	EventRemovalRequested      EventType = "removal_requested"       // somebody asked for an instance to go
	EventHoldBegan             EventType = "hold_began"              // something keeps a group, or the shard where it names none, from going on
	EventHoldEnded             EventType = "hold_ended"
	EventOperatorRegistered    EventType = "operator_registered" // an operator or administrator, with a nonce
	EventCertificateRenewed    EventType = "certificate_renewed" // an operator's or administrator's; an agent's only if it had expired, or another authority signs
)

// EventTypes returns every type of event.
func EventTypes() []EventType {
	return []EventType{
		EventGroupReady, EventNoticePublished, EventNoticeDetected, EventNoticeReceived, EventNoticeIgnored, EventCreateRequested,
		EventReplacementRequested, EventCreated, EventCreateFailed, EventRegistered, EventReady, EventUnhealthy, EventMachineGone, EventMarketDiffers,
		EventDrainStarted, EventDrainTightened, EventDrainReassigned, EventDrainCancelled, EventDrainAcknowledged, EventDrainCutShort, EventDeleteRequested,
		EventGroupRemoved, EventDeleted, EventRolloutHalted, EventRolloutPaused, EventRolloutResumed, EventRolledBack,
		EventRollbackEnded, EventFrozen, EventThawed, EventFilesApplied, EventFilesFailed, EventRecordUnreadable, EventPreserved,
		EventRecordRepaired, EventOrphanSeen, EventOrphanAdopted, EventAlarm, EventClockWrong, EventClockRight, EventKeysRotated,
		EventOperatorRevoked, EventConfigAccepted, EventConfigHeld, EventConfigWithdrawn, EventConfigRefused, EventGroupCreated,
		EventGroupChanged, EventGroupRemovalRequested, EventRemovalRequested, EventHoldBegan, EventHoldEnded, EventOperatorRegistered,
		EventCertificateRenewed,
	}
}
