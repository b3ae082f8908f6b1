package nstance

import "time"

// A Notice is a cloud's announcement about one machine, in one form for all
// clouds. Equal EventIDs mean the same announcement, whenever it was seen.
type Notice struct {
	Kind       NoticeKind `json:"kind"`
	Action     string     `json:"action,omitempty"`    // the cloud's word: terminate, stop, hibernate
	Deadline   time.Time  `json:"deadline,omitzero"`   // the cloud's own; zero where it gives none
	NotBefore  time.Time  `json:"not_before,omitzero"` // earliest start of planned maintenance
	Source     string     `json:"source"`              // such as aws/spot
	EventID    string     `json:"event_id"`
	DetectedAt time.Time  `json:"detected_at"`
	Cancelled  bool       `json:"cancelled,omitempty"` // the cloud withdrew the event with this ID
}

// A NoticeKind says what a notice means for the machine.
type NoticeKind string

// The kinds. Only a reclaim dooms a machine by itself.
const (
	Reclaim     NoticeKind = "reclaim"     // the capacity is taken back
	Rebalance   NoticeKind = "rebalance"   // a reclaim has become likely
	Maintenance NoticeKind = "maintenance" // planned work on the host
	Stop        NoticeKind = "stop"        // somebody stops the machine
	Terminate   NoticeKind = "terminate"   // somebody deletes the machine
)

// Dooms reports whether the machine will be gone whatever its owner does.
func (k NoticeKind) Dooms() bool { return k == Reclaim || k == Stop || k == Terminate }
