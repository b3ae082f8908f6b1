package web

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/wave"
)

// A Status is what the status page shows. Counts are of everything the shard has; lists are
// cut where they say so, and what is cut is the least urgent.
type Status struct {
	Version               string          `json:"version"`
	Cluster               string          `json:"cluster"`
	Shard                 string          `json:"shard"`
	Leader                bool            `json:"leader"`                   // this server leads
	LeaderAddress         string          `json:"leader_address,omitempty"` // operator API address of the one that leads; absent: not known
	Epoch                 uint64          `json:"epoch,omitempty"`
	Since                 time.Time       `json:"since,omitzero"`     // of a leader: when its term began
	Standbys              []Standby       `json:"standbys,omitempty"` // of a leader: the shard's other servers
	Time                  time.Time       `json:"time"`
	Totals                Totals          `json:"totals"`
	Groups                []Group         `json:"groups"`
	Pools                 []Pool          `json:"pools"`       // the largest first
	PoolsTotal            int             `json:"pools_total"` // also those that are not listed
	Instances             []Instance      `json:"instances"`
	InstancesTotal        int             `json:"instances_total"`       // also those that are not listed
	Waves                 []*wave.Wave    `json:"waves"`                 // those that run first
	WavesTotal            int             `json:"waves_total"`           // also those that are not listed
	Interruptions         []Interruption  `json:"interruptions"`         // those that run first, by their deadlines; then the others, the latest first
	InterruptionsRunning  int             `json:"interruptions_running"` // also those that are not listed
	InterruptionsTotal    int             `json:"interruptions_total"`   // that this server knows, also those that are not listed
	Day                   Day             `json:"day"`
	Events                []nstance.Event `json:"events"`
	Attention             []Attention     `json:"attention"`
	AttentionOmitted      int             `json:"attention_omitted,omitempty"`      // entries that are not listed
	AttentionAcknowledged int             `json:"attention_acknowledged,omitempty"` // entries that are acknowledged, also those that are not listed
	Summary               bool            `json:"summary,omitempty"`                // all but servers and attention that concerns the whole shard is left out
}

// Totals are sums over all groups.
type Totals struct {
	Size        int     `json:"size"`
	Ready       int     `json:"ready"`
	Booting     int     `json:"booting"`
	Leaving     int     `json:"leaving"`
	Stale       int     `json:"stale"`
	Spot        int     `json:"spot"` // members in this market
	OnDemand    int     `json:"on_demand"`
	CostPerHour float64 `json:"cost_per_hour"` // of machines with a known price, at launch, in the cloud's currency
	Unpriced    int     `json:"unpriced"`      // machines without a known price: not in CostPerHour
}

// A Day is what happened in the last 24 hours, or since Known.
type Day struct {
	From  time.Time `json:"from"`           // full quarter of an hour, UTC
	Known time.Time `json:"known,omitzero"` // earlier interruptions of the day are more than this server keeps; absent: all are here
	Slots []Slot    `json:"slots"`          // quarters of an hour in which notices came, oldest first
	Marks []Mark    `json:"marks"`          // the latest 100, oldest first
	Total Slot      `json:"total"`          // of the day
}

// A Slot counts machines by when their notices came. Rehearsals count too.
type Slot struct {
	At         time.Time `json:"at,omitzero"`
	Running    int       `json:"running"`
	Drained    int       `json:"drained"`
	Incomplete int       `json:"incomplete"` // lost, or drained too late or not to the end
}

// A Mark is an event that operators look for afterwards: an alarm, or a decision.
type Mark struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`
	Tenant string    `json:"tenant,omitempty"`
	Group  string    `json:"group,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// An Attention is an entry that needs attention; or, without Subject, a number of entries of
// one kind, whose text is for those who have logged in: nstance-admin status.
type Attention struct {
	Kind         string           `json:"kind"`
	Count        int              `json:"count"`
	Subject      string           `json:"subject,omitempty"`
	Tenant       string           `json:"tenant,omitempty"`
	Group        string           `json:"group,omitempty"`
	Instance     string           `json:"instance,omitempty"`
	Since        time.Time        `json:"since,omitzero"` // of the oldest; absent: not known
	Until        time.Time        `json:"until,omitzero"` // when it ends or is tried again by itself; absent: not known
	Why          string           `json:"why,omitempty"`
	Remedy       string           `json:"remedy,omitempty"`
	Acknowledged *Acknowledgement `json:"acknowledged,omitempty"` // absent: it is not; those that are come last
}

// An Acknowledgement has entries not alert. For a number of entries it has only Until.
type Acknowledgement struct {
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until"` // of several, of the first that ends
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
	Tenant      string         `json:"tenant"`
	Group       string         `json:"group"`
	Size        int            `json:"size"`
	Ready       int            `json:"ready"`
	Booting     int            `json:"booting"`
	Leaving     int            `json:"leaving"`
	Stale       int            `json:"stale"`
	Standby     int            `json:"standby,omitempty"` // in none of the numbers above
	Parked      int            `json:"parked,omitempty"`  // of those
	Spot        int            `json:"spot"`              // members in this market
	OnDemand    int            `json:"on_demand"`
	CostPerHour float64        `json:"cost_per_hour"` // as in Totals
	Unpriced    int            `json:"unpriced"`
	States      map[string]int `json:"states"` // instances by state, also those that are not listed
	Holds       []Hold         `json:"holds"`
}

// A Pool is what a cloud takes capacity back by: machines of one type in one zone and market.
// Empty fields are not known.
type Pool struct {
	InstanceType    string    `json:"instance_type"`
	Zone            string    `json:"zone"`
	Market          string    `json:"market"`
	Members         int       `json:"members"`
	PricePerHour    float64   `json:"price_per_hour,omitempty"` // of the machine that was launched last; absent: not known
	MachineHours    float64   `json:"machine_hours"`            // in the last 30 days
	Reclaims        int       `json:"reclaims"`                 // likewise
	ReclaimsPer100H float64   `json:"reclaims_per_100_hours"`   // that one machine runs
	LastReclaim     time.Time `json:"last_reclaim,omitzero"`
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
	Stale        bool      `json:"stale,omitempty"`   // of another definition than its group has now
	Price        float64   `json:"price,omitempty"`   // per hour, when it was launched
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
	Wave                   string    `json:"wave,omitempty"` // its ID; absent: of no wave
	Result                 string    `json:"result"`         // running, drained, late, cut short, failed, lost, withdrawn, ignored
	InstanceType           string    `json:"instance_type,omitempty"`
	Zone                   string    `json:"zone,omitempty"`
	Market                 string    `json:"market,omitempty"`
	NoticedAt              time.Time `json:"noticed_at"`
	Deadline               time.Time `json:"deadline,omitzero"`       // the cloud's
	DrainDeadline          time.Time `json:"drain_deadline,omitzero"` // when the drain is cut short; absent: it has ended, or has none
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
