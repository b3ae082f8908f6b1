package web

import (
	"time"

	"github.com/nstance-go/nstance"
)

// A Status is what the status page shows.
type Status struct {
	Version        string          `json:"version"`
	Cluster        string          `json:"cluster"`
	Shard          string          `json:"shard"`
	Leader         bool            `json:"leader"`                   // this server leads
	LeaderAddress  string          `json:"leader_address,omitempty"` // operator API address of the one that leads; absent: not known
	Epoch          uint64          `json:"epoch,omitempty"`
	Standbys       []Standby       `json:"standbys,omitempty"` // of a leader: the shard's other servers
	Time           time.Time       `json:"time"`
	Groups         []Group         `json:"groups"`
	Instances      []Instance      `json:"instances"`
	InstancesTotal int             `json:"instances_total"` // those that are not shown among them
	Interruptions  []Interruption  `json:"interruptions"`   // the latest first
	Events         []nstance.Event `json:"events"`
	Attention      []Attention     `json:"attention"`
	Summary        bool            `json:"summary,omitempty"` // groups, instances, interruptions, events, and what needs attention about them, are left out
}

// An Attention is how much of one kind needs attention. What it is about is for
// those who have logged in: nstance-admin status.
type Attention struct {
	Kind   string    `json:"kind"`
	Count  int       `json:"count"`
	Since  time.Time `json:"since,omitzero"` // of the oldest; absent: not known
	Why    string    `json:"why,omitempty"`  // of what concerns the whole shard and every operator may see
	Remedy string    `json:"remedy,omitempty"`
}

// A Standby is a server that would lead if the present leader did not.
type Standby struct {
	Address       string    `json:"address,omitempty"` // operator API address; absent: its version does not tell
	Version       string    `json:"version,omitempty"`
	AddressFailed bool      `json:"address_failed,omitempty"` // it could not take the shard's movable address
	Since         time.Time `json:"since"`                    // when the leader heard it first
}

// A Group is a group and how many members it has.
type Group struct {
	Tenant  string `json:"tenant"`
	Group   string `json:"group"`
	Size    int    `json:"size"`
	Ready   int    `json:"ready"`
	Booting int    `json:"booting"`
	Leaving int    `json:"leaving"`
	Stale   int    `json:"stale"`
	Standby int    `json:"standby,omitempty"` // in none of the numbers above
	Parked  int    `json:"parked,omitempty"`  // of those
	Holds   []Hold `json:"holds"`
}

// A Hold is why a group does not change.
type Hold struct {
	Kind   string    `json:"kind"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"` // absent: until something changes
}

// An Instance is one row of the instances table.
type Instance struct {
	ID           string    `json:"id"`
	Tenant       string    `json:"tenant"`
	Group        string    `json:"group"`
	State        string    `json:"state"`
	Market       string    `json:"market"`
	InstanceType string    `json:"instance_type,omitempty"`
	Zone         string    `json:"zone,omitempty"`
	ProviderID   string    `json:"provider_id"`
	CreatedAt    time.Time `json:"created_at"`
	ReportedAt   time.Time `json:"reported_at,omitzero"`
	Connected    bool      `json:"connected"`
	CPU          float64   `json:"cpu"`
	Memory       float64   `json:"memory"`
	Deadline     time.Time `json:"deadline,omitzero"` // of its drain
	Note         string    `json:"note,omitempty"`
}

// An Interruption is one notice about an instance, and what has happened since. Times
// that have not come, or are not known, are absent.
type Interruption struct {
	Event                  string    `json:"event"`
	Tenant                 string    `json:"tenant"`
	Group                  string    `json:"group"`
	Instance               string    `json:"instance"`
	Kind                   string    `json:"kind"` // of the notice
	Source                 string    `json:"source,omitempty"`
	Rehearsal              bool      `json:"rehearsal,omitempty"`
	NoticedAt              time.Time `json:"noticed_at"`
	Deadline               time.Time `json:"deadline,omitzero"`
	Replacement            string    `json:"replacement,omitempty"`
	ReplacementRequestedAt time.Time `json:"replacement_requested_at,omitzero"`
	ReplacementReadyAt     time.Time `json:"replacement_ready_at,omitzero"`
	DrainStartedAt         time.Time `json:"drain_started_at,omitzero"`
	DrainedAt              time.Time `json:"drained_at,omitzero"`
	DrainOutcome           string    `json:"drain_outcome,omitempty"`
	DeletedAt              time.Time `json:"deleted_at,omitzero"` // or when the machine was seen to have ended
	Withdrawn              bool      `json:"withdrawn,omitempty"`
	Ignored                string    `json:"ignored,omitempty"` // why it dooms nothing
}
