package registration

import (
	"context"
	"net/netip"
	"time"

	"github.com/nstance-go/nstance"
)

// Records stores registrations. The server implements it with its instance
// records; it must be safe for concurrent use.
type Records interface {
	// Registration returns the registration part of an instance's record, from
	// memory where it is held there. NotFound means that there is no such
	// instance, never that a read failed.
	Registration(ctx context.Context, id nstance.InstanceID) (Registration, error)

	// RefreshRegistration is Registration with a fresh read of storage, because
	// a late write of a former leader may have changed it. It is called only
	// before a refusal.
	RefreshRegistration(ctx context.Context, id nstance.InstanceID) (Registration, error)

	// UpdateRegistration applies fn to the record by one conditional write,
	// durable when it returns. fn may be called again on a newer record. An
	// error of fn is returned so that errors.Is finds it, and nothing is
	// written.
	UpdateRegistration(ctx context.Context, id nstance.InstanceID, fn func(*Registration) error) (Registration, error)

	// ConsumeNonce marks jti as used, permanently, by put-if-absent, and stores r
	// for Operator. It returns the registration stored under jti: r, or that of
	// an earlier call, which is then stored for Operator too, if it was not yet.
	ConsumeNonce(ctx context.Context, jti string, r OperatorRegistration) (OperatorRegistration, error)

	// Operator returns the registration of an operator or administrator, read
	// from storage, or NotFound.
	Operator(ctx context.Context, tenant nstance.TenantID, name string) (OperatorRegistration, error)

	// UpdateOperator is UpdateRegistration for operators and administrators.
	UpdateOperator(ctx context.Context, tenant nstance.TenantID, name string, fn func(*OperatorRegistration) error) (OperatorRegistration, error)
}

// A Registration is the part of an instance's record that concerns its
// certificates. The Registrar changes only the fields from Addresses on.
type Registration struct {
	ID       nstance.InstanceID
	Kind     nstance.InstanceKind // of its definition
	Tenant   nstance.TenantID
	Group    nstance.GroupID
	OnDemand bool
	Deleting bool // durably marked: it is never registered or renewed again

	Addresses    []netip.Addr // as reported by the agent
	Hostname     string       // as reported by the agent
	RegisteredAt time.Time    // zero: issued, but not registered yet
	Succession
}

// An OperatorRegistration is the record of an operator or administrator.
type OperatorRegistration struct {
	Name          string           `json:"name"` // subject of its certificates
	Role          nstance.Role     `json:"role"` // operator or admin
	Tenant        nstance.TenantID `json:"tenant"`
	JTI           string           `json:"jti"`          // of the nonce it registered with
	NonceExpiry   time.Time        `json:"nonce_expiry"` // until then the mark of the nonce's use is needed
	Hostname      string           `json:"hostname,omitempty"`
	RegisteredAt  time.Time        `json:"registered_at"`
	Revoked       bool             `json:"revoked,omitempty"`
	RevokedAt     time.Time        `json:"revoked_at,omitzero"`
	RevokedReason string           `json:"revoked_reason,omitempty"`
	Succession
}

// A KeyRecord describes one issued certificate and its key.
type KeyRecord struct {
	Fingerprint string    `json:"fingerprint"` // of the key, as in nstance.Identity
	PublicKey   []byte    `json:"public_key"`  // Ed25519, 32 bytes
	Serial      string    `json:"serial"`      // lower-case hex
	Issuer      string    `json:"issuer"`      // ID of the authority's key, lower-case hex
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	Certificate []byte    `json:"certificate"` // DER
}

// Succession holds the valid certificates of one holder: the current one, and
// after a renewal also the pending one, until that has been used.
type Succession struct {
	Current *KeyRecord `json:"current,omitempty"`
	Pending *KeyRecord `json:"pending,omitempty"`

	// Open says that the holder is registered with an unknown key: the record of
	// an adopted machine. The first certificate of the cluster that its agent
	// shows becomes the current one.
	Open bool `json:"-"`
}

// Promote makes the pending certificate the current one if it has that serial, and
// reports whether it did. Call it in the next write of the record after
// Registrar.Verify returned promote.
func (s *Succession) Promote(serial string) bool {
	if s.Pending == nil || s.Pending.Serial != serial {
		return false
	}
	s.Current, s.Pending = s.Pending, nil
	return true
}

// holds reports whether id's certificate is valid, and whether it is the pending
// one.
func (s *Succession) holds(id nstance.Identity) (valid, pending bool) {
	is := func(k *KeyRecord) bool { return k != nil && k.Serial == id.Serial && k.Fingerprint == id.Key }
	return is(s.Current) || is(s.Pending), is(s.Pending)
}

// succeed adds next as the successor of id's certificate, which must be valid. If
// the pending certificate is for next's key and has not expired, it is returned
// and nothing changes: the reply to an earlier request was lost.
func (s *Succession) succeed(id nstance.Identity, next *KeyRecord, now time.Time) (issued *KeyRecord, err error) {
	valid, _ := s.holds(id)
	if !valid {
		return nil, errSuperseded
	}
	s.Promote(id.Serial)
	if s.Current.Fingerprint == next.Fingerprint {
		return nil, nstance.FieldError("csr", "make a new key for each renewal", "is for the key of the present certificate")
	}
	if s.Pending != nil && s.Pending.Fingerprint == next.Fingerprint && now.Before(s.Pending.NotAfter) {
		return s.Pending, nil
	}
	s.Pending = next
	return nil, nil
}
