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

// The event types. Tools read these names: they change only with the wire version.
const (
	EventGroupReady           EventType = "group_ready" // as many ready members as its size
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
	EventMarketDiffers        EventType = "market_differs" // the machine is not in the requested market
	EventDrainStarted         EventType = "drain_started"
	EventDrainTightened       EventType = "drain_tightened"
	EventDrainReassigned      EventType = "drain_reassigned" // its executor has disconnected or cannot drain: it has another one now
	EventDrainCancelled       EventType = "drain_cancelled"
	EventDrainAcknowledged    EventType = "drain_acknowledged"
	EventDrainCutShort        EventType = "drain_cut_short" // the deadline came first
	EventDeleteRequested      EventType = "delete_requested"
	EventGroupRemoved         EventType = "group_removed" // the last managed member of a removed group is gone
	EventDeleted              EventType = "deleted"
	EventRolloutHalted        EventType = "rollout_halted"
	EventRolloutPaused        EventType = "rollout_paused"
	EventRolloutResumed       EventType = "rollout_resumed" // a pause or a halt is over
	EventRolledBack           EventType = "rolled_back"     // the last good definition is the desired one
	EventRollbackEnded        EventType = "rollback_ended"  // the configured definition is the desired one again
	EventFrozen               EventType = "frozen"          // a group, or the whole shard if Group is empty
	EventThawed               EventType = "thawed"
	EventFilesApplied         EventType = "files_applied" // the machine applied its files (Reason: their hash); Error: which file failed, or the command's output
	EventFilesFailed          EventType = "files_failed"  // the machine could not apply its files
	EventRecordUnreadable     EventType = "record_unreadable"
	EventPreserved            EventType = "preserved" // an operator investigates it: it is neither deleted nor counted
	EventRecordRepaired       EventType = "record_repaired"
	EventOrphanSeen           EventType = "orphan_seen"    // a machine with our marks and no record
	EventOrphanAdopted        EventType = "orphan_adopted" // an operator made it a member
	EventAlarm                EventType = "alarm"          // needs attention
	EventClockWrong           EventType = "clock_wrong"    // the leader's clock: deletes by deadline and by age wait
	EventClockRight           EventType = "clock_right"    // the leader's clock is right again: those deletes go on
	EventKeysRotated          EventType = "keys_rotated"   // a step of a rotation of the cluster's keys
	EventOperatorRevoked      EventType = "operator_revoked"
)

// Decisions of operators and of the configuration. Their reason names the
// identity that decided.
const (
	EventConfigAccepted        EventType = "config_accepted"         // the configuration is in force
	EventConfigHeld            EventType = "config_held"             // it would change too much at once and waits for confirmation
	EventConfigWithdrawn       EventType = "config_withdrawn"        // a held configuration was replaced or taken back
	EventConfigRefused         EventType = "config_refused"          // Error: why; the one in force stays
	EventGroupCreated          EventType = "group_created"           // through the API
	EventGroupChanged          EventType = "group_changed"           // through the API; Reason: which fields
	EventGroupRemovalRequested EventType = "group_removal_requested" // through the API: its members are drained and deleted first
	EventRemovalRequested      EventType = "removal_requested"       // deletion of one instance, through the API
	EventHoldStarted           EventType = "hold_started"            // a group, or the whole shard if Group is empty, is kept from changing
	EventHoldEnded             EventType = "hold_ended"
	EventOperatorRegistered    EventType = "operator_registered" // an operator or administrator, with a nonce
	EventCertificateRenewed    EventType = "certificate_renewed" // of an operator or administrator; of an agent only if its certificate had expired or the signing authority changed
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
		EventGroupChanged, EventGroupRemovalRequested, EventRemovalRequested, EventHoldStarted, EventHoldEnded, EventOperatorRegistered,
		EventCertificateRenewed,
	}
}
