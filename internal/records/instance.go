package records

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// ReasonAdopted is the Reason of a record that was made for an orphan on request.
const ReasonAdopted = "adopted"

// An Instance is the durable record of one instance: from its intent, written
// before the provider is asked, to the mark that makes its deletion
// irrevocable. Fields of newer versions survive a rewrite. Durations are
// written in nanoseconds, instants in RFC 3339, bytes in base64.
type Instance struct {
	Header

	// The intent. These never change, except the shape and its token after a
	// definite refusal, and AskedAt.
	ID                  nstance.InstanceID `json:"id"`
	Tenant              nstance.TenantID   `json:"tenant"`
	Group               nstance.GroupID    `json:"group"`
	OnDemand            bool               `json:"on_demand,omitempty"`      // asked for by itself, not a member by size
	Reason              string             `json:"reason,omitempty"`         // why it was created
	Replaces            nstance.InstanceID `json:"replaces,omitempty"`       // the loss that it answers, if that is known
	Request             string             `json:"request,omitempty"`        // on demand: digest of the request, to recognise a repeated one
	LoadBalancers       []string           `json:"load_balancers,omitempty"` // on demand: these replace those of its group; none: the group's
	CreatedAt           time.Time          `json:"created_at"`
	CreatedEpoch        uint64             `json:"created_epoch"` // the only epoch that the machine is ever marked with
	Definition          string             `json:"definition"`    // digest; see Records.Definition
	InfraHash           string             `json:"infra_hash,omitempty"`
	RuntimeHash         string             `json:"runtime_hash,omitempty"`
	Image               string             `json:"image,omitempty"` // resolved
	UserDataDigest      string             `json:"userdata_digest,omitempty"`
	BootstrapData       string             `json:"bootstrap_data,omitempty"` // name; see Records.SealedBootstrapData
	NonceKeyID          string             `json:"nonce_key_id,omitempty"`
	Authorities         []string           `json:"authorities,omitempty"` // IDs of the keys that its user data says to trust
	RegistrationTimeout time.Duration      `json:"registration_timeout_ns,omitempty"`
	LaunchTimeout       time.Duration      `json:"launch_timeout_ns,omitempty"`
	Shape               Shape              `json:"shape"`
	ShapeChoice         string             `json:"shape_choice,omitempty"`   // why it has this shape; empty: not known
	PricePerHour        float64            `json:"price_per_hour,omitempty"` // of the shape when it was granted, in the cloud's currency; 0: not known
	Token               string             `json:"token,omitempty"`          // of the provider's create
	AskedAt             time.Time          `json:"asked_at,omitzero"`        // no call for the machine was sent more than AskedFor after it; zero: not known
	FailedLaunch        *FailedLaunch      `json:"failed_launch,omitempty"`  // on demand: of that create; removed with the next token

	// The registration.
	ProviderID   string       `json:"provider_id,omitempty"`
	Zone         string       `json:"zone,omitempty"` // of the machine with that ID
	Addresses    []netip.Addr `json:"addresses,omitempty"`
	Hostname     string       `json:"hostname,omitempty"`
	RegisteredAt time.Time    `json:"registered_at,omitzero"`
	Current      *KeyRecord   `json:"current,omitempty"`
	Pending      *KeyRecord   `json:"pending,omitempty"`   // renewed, not used yet: both are valid
	ReadyAt      time.Time    `json:"ready_at,omitzero"`   // written with the next change; zero if the leader has changed before that
	Drifted      []string     `json:"drifted,omitempty"`   // fields whose change it was drained for
	Cancelled    []PastDrain  `json:"cancelled,omitempty"` // drains that ended without its deletion, the latest ones

	// Of a member of its group's warm pool; nil: an ordinary one.
	Standby *Standby `json:"standby,omitempty"`

	// The end.
	Drain      *nstance.Drain   `json:"drain,omitempty"`
	Generation uint64           `json:"generation,omitempty"` // of drains; outlives a cancel
	CutShort   bool             `json:"cut_short,omitempty"`  // the deadline came before the drain was over
	Reclaims   int              `json:"reclaims,omitempty"`   // drains for a notice so far; the second is final
	Notices    []nstance.Notice `json:"notices,omitempty"`    // standing when the drain was recorded
	Advice     []nstance.Notice `json:"advice,omitempty"`     // standing notices that doom nothing
	Deleting   *Deletion        `json:"deleting,omitempty"`   // once set it stays
	Preserve   *Preserve        `json:"preserve,omitempty"`
	Rehearsal  *Rehearsal       `json:"rehearsal,omitempty"` // of a reclaim that its machine is to announce
	End        *End             `json:"end,omitempty"`       // written with Deleting
}

// AskedFor is how long after AskedAt the provider may be asked for a machine: later, AskedAt
// is written again first.
const AskedFor = 10 * time.Second

// A Shape is what this attempt requests from the provider.
type Shape struct {
	InstanceType string             `json:"instance_type,omitempty"`
	Subnet       string             `json:"subnet,omitempty"`
	Market       nstance.MarketType `json:"market,omitempty"`
	MaxPrice     string             `json:"max_price,omitempty"`
}

// A FailedLaunch says that the cloud has accepted a machine and could not start it. The machine
// is deleted, and the instance gets another one, unless its agent has registered meanwhile.
type FailedLaunch struct {
	At    time.Time         `json:"at"`
	Cause nstance.LossCause `json:"cause,omitempty"` // empty: the cloud says it in words only
	Words string            `json:"words,omitempty"`
}

// A Standby is what is durable of a stand-by member. Its drain stays on record while it
// sleeps, so that nothing uses it.
type Standby struct {
	Mode          nstance.ParkMode `json:"mode"`                           // never changes
	Phase         nstance.State    `json:"phase,omitempty"`                // parking: it is to sleep; waking: it is to run in place of others; empty: it was never parked
	Since         time.Time        `json:"since,omitzero"`                 // when the phase began
	Serial        string           `json:"renew_serial,omitempty"`         // waking: of the current certificate, which counts no more; empty: none had been issued
	PendingSerial string           `json:"renew_pending_serial,omitempty"` // waking: of the pending one, likewise: it may be the one in use
}

// Asleep reports whether the instance is to sleep.
func (r *Instance) Asleep() bool { return r.Standby != nil && r.Standby.Phase == nstance.Parking }

// MachineAsleep reports whether the machine itself is to sleep: in mode running it does not.
// Until it is woken nothing may use its identity.
func (r *Instance) MachineAsleep() bool { return r.Asleep() && r.Standby.Mode != nstance.ParkRunning }

// Outlived reports whether the instance slept since it was issued the certificate with a
// serial: it must renew it before anything else.
func (r *Instance) Outlived(serial string) bool {
	s := r.Standby
	return s != nil && s.Phase == nstance.Waking && serial != "" && (s.Serial == serial || s.PendingSerial == serial)
}

// A KeyRecord describes one issued certificate and its key.
type KeyRecord struct {
	Fingerprint string    `json:"fingerprint"` // of the key, as in nstance.Identity
	PublicKey   []byte    `json:"public_key"`
	Serial      string    `json:"serial"` // lower-case hex
	Issuer      string    `json:"issuer"` // ID of the authority's key
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	Certificate []byte    `json:"certificate"` // DER
}

// A Deletion marks an instance that is to be deleted irrevocably.
type Deletion struct {
	At  time.Time     `json:"at"`
	Why nstance.Cause `json:"why"`
}

// MaxCancelled is how many cancelled drains a record keeps.
const MaxCancelled = 8

// A PastDrain is a drain that was cancelled, with the notices that stood then. Without a drain
// it has notices that the cloud took back while nothing followed from them alone.
type PastDrain struct {
	Drain   nstance.Drain    `json:"drain"`
	Notices []nstance.Notice `json:"notices,omitempty"`
	EndedAt time.Time        `json:"ended_at"`
}

// StandingNotices sets the notices that stand, and remembers those that do not stand any more.
func (r *Instance) StandingNotices(standing []nstance.Notice, now time.Time) {
	gone := slices.DeleteFunc(slices.Clone(r.Notices), func(n nstance.Notice) bool {
		return slices.ContainsFunc(standing, func(s nstance.Notice) bool { return s.EventID == n.EventID })
	})
	r.Notices = standing
	if len(gone) > 0 {
		r.remember(PastDrain{Notices: gone, EndedAt: now.UTC()})
	}
}

// CancelDrain ends the drain and its notices, and remembers both.
func (r *Instance) CancelDrain(now time.Time) {
	r.remember(PastDrain{Drain: *r.Drain, Notices: r.Notices, EndedAt: now.UTC()})
	r.Drain, r.Notices, r.Drifted = nil, nil, nil
	r.Generation++
}

func (r *Instance) remember(past PastDrain) {
	all := append(r.Cancelled, past)
	r.Cancelled = all[max(0, len(all)-MaxCancelled):]
}

// An End is what was known of an instance when its deletion became durable. Zero
// fields are not known.
type End struct {
	LaunchedAt   time.Time          `json:"launched_at,omitzero"` // by the provider's clock
	InstanceType string             `json:"instance_type,omitempty"`
	Zone         string             `json:"zone,omitempty"`
	Market       nstance.MarketType `json:"market,omitempty"` // as the provider says
	GoneAt       time.Time          `json:"gone_at,omitzero"` // when the provider first said that it does not run
	Loss         nstance.LossCause  `json:"loss,omitempty"`
	Drained      *DrainEnd          `json:"drained,omitempty"` // the latest acknowledgement of its drain
}

// A DrainEnd is an acknowledgement of a drain.
type DrainEnd struct {
	At      time.Time        `json:"at"`
	By      nstance.Executor `json:"by,omitempty"`
	Outcome nstance.Outcome  `json:"outcome"`
	Message string           `json:"message,omitempty"`
}

// A Rehearsal says that the next reclaim which a machine announces until then is not the
// cloud's.
type Rehearsal struct {
	Source string    `json:"source"` // of the notice
	Until  time.Time `json:"until"`
}

// Preserve keeps a machine for inspection.
type Preserve struct {
	Until time.Time `json:"until"`
}

// A Story is what a leader knows of an instance before its record says it. Zero fields
// are not known.
type Story struct {
	ReadyAt      time.Time
	Drifted      []string
	PricePerHour float64
}

// KeepStory adds what the record does not have yet.
func (r *Instance) KeepStory(s Story) {
	if r.ReadyAt.IsZero() {
		r.ReadyAt = s.ReadyAt
	}
	if len(r.Drifted) == 0 {
		r.Drifted = s.Drifted
	}
	r.PricePerHour = cmp.Or(r.PricePerHour, s.PricePerHour)
}

// Key returns the group it belongs to.
func (r *Instance) Key() nstance.GroupKey {
	return nstance.GroupKey{Tenant: r.Tenant, Group: r.Group}
}

// Registered reports whether its agent ever got a certificate.
func (r *Instance) Registered() bool { return !r.RegisteredAt.IsZero() }

// RegisterBy is when its agent must have registered: its nonce expires then.
func (r *Instance) RegisterBy() time.Time {
	return r.CreatedAt.Add(r.LaunchTimeout + r.RegistrationTimeout)
}

// Ref returns the name of its record in a shard.
func (r *Instance) Ref(shard nstance.ShardID) Ref {
	return Ref{Shard: shard, Tenant: r.Tenant, Group: r.Group, ID: r.ID}
}

// DecodeInstance reads the record that stands under key. It fails with Invalid
// when it is damaged, of a newer major format, or of another instance than the
// key says. It never panics, whatever the data.
func DecodeInstance(key string, data []byte) (Instance, error) {
	ref, err := ParseInstanceKey(key)
	if err != nil {
		return Instance{}, err
	}
	rec, _, err := Decode[Instance](key, data)
	if err == nil {
		err = ref.matches(rec)
	}
	if err != nil {
		return Instance{}, err
	}
	return rec, nil
}

// matches fails unless rec is the record that belongs under the key.
func (r Ref) matches(rec Instance) error {
	if got := rec.Ref(r.Shard); got != r {
		return unreadable(r.Key(), "it is the record of %q in %s/%s", got.ID, got.Tenant, got.Group)
	}
	return nil
}
