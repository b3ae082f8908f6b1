// Package eventtype has the types of events that a program which embeds a part does not
// wait for: decisions of operators and of the configuration, and what agents and servers
// do. The other types are constants of the root package.
package eventtype

import "github.com/nstance-go/nstance"

// What operators decide about groups and instances. The reason names the identity that
// decided.
const (
	RolloutPaused         nstance.EventType = "rollout_paused"
	RolloutResumed        nstance.EventType = "rollout_resumed" // a pause or a halt is over
	RolledBack            nstance.EventType = "rolled_back"     // the last good definition is the desired one
	RollbackEnded         nstance.EventType = "rollback_ended"  // the configured definition is the desired one again
	Frozen                nstance.EventType = "frozen"          // a group, or the whole shard if Group is empty
	Thawed                nstance.EventType = "thawed"
	Preserved             nstance.EventType = "preserved"      // an operator investigates it: it is neither deleted nor counted
	OrphanAdopted         nstance.EventType = "orphan_adopted" // an operator made it a member
	RecordRepaired        nstance.EventType = "record_repaired"
	GroupCreated          nstance.EventType = "group_created"           // through the API
	GroupChanged          nstance.EventType = "group_changed"           // through the API; Reason: which fields
	GroupRemovalRequested nstance.EventType = "group_removal_requested" // through the API: its members are drained and deleted first
	StandbyClaimed        nstance.EventType = "standby_claimed"         // a stand-by machine is to run in place of a node of others
	StandbyReleased       nstance.EventType = "standby_released"
	RemovalRequested      nstance.EventType = "removal_requested" // deletion of one instance, through the API
)

// What happens to the configuration. The reason names the identity that decided.
const (
	ConfigAccepted  nstance.EventType = "config_accepted"  // the configuration is in force
	ConfigHeld      nstance.EventType = "config_held"      // it would change too much at once and waits for confirmation
	ConfigWithdrawn nstance.EventType = "config_withdrawn" // a held configuration was replaced or taken back
	ConfigRefused   nstance.EventType = "config_refused"   // Error: why; the one in force stays
)

// Identities and keys.
const (
	OperatorRegistered nstance.EventType = "operator_registered" // an operator or administrator, with a nonce
	OperatorRevoked    nstance.EventType = "operator_revoked"
	CertificateRenewed nstance.EventType = "certificate_renewed" // of an operator or administrator; of an agent only if its certificate had expired or the signing authority changed
	KeysRotated        nstance.EventType = "keys_rotated"        // a step of a rotation of the cluster's keys
)

// What agents and leaders see.
const (
	NoticePublished nstance.EventType = "notice_published"
	NoticeDetected  nstance.EventType = "notice_detected"
	FilesApplied    nstance.EventType = "files_applied"  // the machine applied its files (Reason: their hash); Error: which file failed, or the command's output
	FilesFailed     nstance.EventType = "files_failed"   // the machine could not apply its files
	EventsDropped   nstance.EventType = "events_dropped" // an identity caused too many entries of one type: how many were not written
	ClockWrong      nstance.EventType = "clock_wrong"    // the leader's clock: deletes by deadline and by age wait
	DrillStarted    nstance.EventType = "drill_started"  // a scheduled rehearsal of a group
	DrillSkipped    nstance.EventType = "drill_skipped"  // one that is due waits: the group is not healthy (Reason: how)
	ClockRight      nstance.EventType = "clock_right"    // the leader's clock is right again: those deletes go on
)

// All returns every type of event.
func All() []nstance.EventType {
	return []nstance.EventType{
		nstance.EventGroupReady, nstance.EventNoticeReceived, nstance.EventNoticeIgnored, nstance.EventCreateRequested,
		nstance.EventReplacementRequested, nstance.EventCreated, nstance.EventCreateFailed, nstance.EventRegistered, nstance.EventReady,
		nstance.EventUnhealthy, nstance.EventMachineGone, nstance.EventMarketDiffers, nstance.EventDrainStarted, nstance.EventDrainTightened,
		nstance.EventDrainReassigned, nstance.EventDrainCancelled, nstance.EventDrainedWithoutServer, nstance.EventDrainAcknowledged, nstance.EventDrainCutShort,
		nstance.EventParked, nstance.EventWakeRequested, nstance.EventWoken,
		nstance.EventDeleteRequested, nstance.EventGroupRemoved, nstance.EventDeleted, nstance.EventRolloutHalted, nstance.EventRecordUnreadable,
		nstance.EventOrphanSeen, nstance.EventHoldStarted, nstance.EventHoldEnded, nstance.EventAlarm,
		NoticePublished, NoticeDetected, FilesApplied, FilesFailed, EventsDropped, RecordRepaired, KeysRotated, OperatorRevoked, ConfigAccepted, ConfigHeld,
		ConfigWithdrawn, ConfigRefused, GroupCreated, GroupChanged, GroupRemovalRequested, OperatorRegistered, CertificateRenewed,
		RemovalRequested, Frozen, Thawed, RolloutPaused, RolloutResumed, RolledBack, RollbackEnded, Preserved, OrphanAdopted, ClockWrong,
		ClockRight, DrillStarted, DrillSkipped, StandbyClaimed, StandbyReleased,
	}
}
