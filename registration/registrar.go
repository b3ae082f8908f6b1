package registration

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/validate"
)

const (
	maxAddresses = 32  // of one machine, in a request
	maxHostname  = 253 // characters, as in the DNS

	longestLifetime = 825 * 24 * time.Hour
)

// Options configure a Registrar. Cluster and Shard are required.
type Options struct {
	Cluster nstance.ClusterID
	Shard   nstance.ShardID

	AgentLifetime    time.Duration // of agents' certificates; default 24h
	OperatorLifetime time.Duration // of operators' and administrators'; default 24h

	// PerSource limits registrations from one address (by default 50 a second,
	// 200 at once, since a fleet may sit behind one). Global limits registrations
	// altogether (1,000 a second, 2,000 at once).
	PerSource, Global Limit
	// PerHolder limits renewals and recoveries by one holder (by default two a minute, 5 at
	// once: an agent that is refused waits half a minute or more, so each time it hears why).
	PerHolder Limit

	// Alarm is called when two parties use the same nonce or certificate. It must
	// not block. Nil logs.
	Alarm func(nstance.Event)

	// Exposed is called after the alarm about a superseded certificate, with its
	// holder: another party has the holder's key, or the holder has lost its
	// newer certificate. It must not block; nil means no callback.
	Exposed func(id nstance.Identity, why string)

	// Journal is called for every operator and administrator that registers, and
	// for every renewal, once that is durable. It must not block; nil means no
	// callback.
	Journal func(nstance.Event)

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default discards
}

func (o *Options) withDefaults() (Options, error) {
	var out Options
	if o != nil {
		out = *o
	}
	out.AgentLifetime = orDefault(out.AgentLifetime, 24*time.Hour)
	out.OperatorLifetime = orDefault(out.OperatorLifetime, 24*time.Hour)
	out.PerSource = out.PerSource.or(Limit{PerSecond: 50, Burst: 200})
	out.PerHolder = out.PerHolder.or(Limit{PerSecond: 1.0 / 30, Burst: 5})
	out.Global = out.Global.or(Limit{PerSecond: 1000, Burst: 2000})
	if out.Now == nil {
		out.Now = time.Now
	}
	if out.Log == nil {
		out.Log = slog.New(slog.DiscardHandler)
	}
	if out.Exposed == nil {
		out.Exposed = func(nstance.Identity, string) {}
	}
	if out.Journal == nil {
		out.Journal = func(nstance.Event) {}
	}
	if out.Alarm == nil {
		log := out.Log
		out.Alarm = func(e nstance.Event) {
			log.Error("alarm", "instance_id", e.Instance, "tenant", e.Tenant, "reason", e.Reason)
		}
	}
	return out, out.validate()
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

func (o *Options) validate() error {
	if err := validate.Name("cluster", o.Cluster); err != nil {
		return err
	}
	if err := validate.Shard("shard", o.Shard); err != nil {
		return err
	}
	if err := errors.Join(
		validate.Duration("agent_lifetime", o.AgentLifetime, time.Minute, longestLifetime),
		validate.Duration("operator_lifetime", o.OperatorLifetime, time.Minute, longestLifetime),
	); err != nil {
		return err
	}
	if err := o.PerSource.validate("per_source"); err != nil {
		return err
	}
	if err := o.PerHolder.validate("per_holder"); err != nil {
		return err
	}
	return o.Global.validate("global")
}

// A Registrar registers and renews. It is safe for concurrent use, holds no
// lock and no state but its rate limits, and blocks only on its Records.
type Registrar struct {
	authority *keyring.Authority
	nonces    *keyring.NonceKeys
	records   Records
	opts      Options
	limits    *limits
}

var _ nstance.Registrar = (*Registrar)(nil)

// New returns a Registrar that signs with keys. It fails with Invalid when an
// argument or an option is missing or wrong.
func New(keys *Keys, records Records, opts *Options) (*Registrar, error) {
	if err := validate.Given("records", "pass what keeps registrations", records); err != nil {
		return nil, err
	}
	if keys == nil || keys.nonces == nil {
		return nil, nstance.FieldError("keys", "pass those of NewKeys or LoadKeys", "are nil")
	}
	if keys.identity == nil || keys.identity.Name() != keyring.Identity {
		return nil, nstance.FieldError("keys", "pass the identity authority", "have another authority, or none")
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Registrar{authority: keys.identity, nonces: keys.nonces, records: records, opts: o, limits: newLimits(o.PerSource, o.Global, o.PerHolder)}, nil
}

// An applicant is a request whose nonce and key have been verified.
type applicant struct {
	claims    keyring.Claims
	key       ed25519.PublicKey
	keyPrint  string // fingerprint of key
	addresses []netip.Addr
	hostname  string
	now       time.Time
}

// Register implements nstance.Registrar.
func (r *Registrar) Register(ctx context.Context, req nstance.RegistrationRequest) (nstance.Credential, error) {
	register := r.exchange
	if req.Recovery != nil {
		register = r.recoverAgent
	}
	issued, err := register(ctx, req)
	if err != nil {
		return nstance.Credential{}, err
	}
	return r.credential(issued), nil
}

// exchange issues a certificate for a nonce.
func (r *Registrar) exchange(ctx context.Context, req nstance.RegistrationRequest) (*KeyRecord, error) {
	a, err := r.admit(req)
	if err != nil {
		return nil, err
	}
	if a.claims.Kind == nstance.RoleAgent {
		return r.registerAgent(ctx, a)
	}
	return r.registerOperator(ctx, a)
}

// admit verifies a request, the cheap checks first: the rate limits come before
// any cryptography.
func (r *Registrar) admit(req nstance.RegistrationRequest) (applicant, error) {
	now := r.opts.Now()
	if err := r.limits.source(req.Source, now); err != nil {
		return applicant{}, err
	}
	addresses, err := machineAddresses(req)
	if err != nil {
		return applicant{}, err
	}
	claims, err := r.nonces.Authenticate(req.Nonce, keyring.Expect{Cluster: r.opts.Cluster, Shard: r.opts.Shard})
	if err != nil {
		return applicant{}, err
	}
	key, err := keyring.ParseCSR(req.CSR)
	if err != nil {
		return applicant{}, err
	}
	return applicant{claims, key, pki.KeyFingerprint(key), addresses, req.Hostname, now}, nil
}

// machineAddresses validates the hostname and returns the addresses without
// duplicates. The machine reports both; neither is part of an identity
// certificate.
func machineAddresses(req nstance.RegistrationRequest) ([]netip.Addr, error) {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"
	if len(req.Hostname) > maxHostname || strings.Trim(req.Hostname, allowed) != "" {
		return nil, nstance.FieldError("hostname", "use at most 253 letters, digits, dots, hyphens and underscores", "%q is not valid", clip.Quote(req.Hostname))
	}
	if len(req.Addresses) > maxAddresses {
		return nil, nstance.FieldError("addresses", fmt.Sprintf("send at most %d", maxAddresses), "there are %d", len(req.Addresses))
	}
	var out []netip.Addr
	for _, addr := range req.Addresses {
		if !addr.IsValid() {
			return nil, nstance.FieldError("addresses", "leave it out", "one is not an IP address")
		}
		if addr = addr.Unmap().WithZone(""); !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out, nil
}

// issue signs a client's certificate. The caller records it before the reply.
func (r *Registrar) issue(id nstance.Identity, key ed25519.PublicKey, now time.Time) (*KeyRecord, error) {
	lifetime := r.opts.OperatorLifetime
	if id.Role == nstance.RoleAgent {
		lifetime = r.opts.AgentLifetime
	}
	issued, err := r.authority.Issue(keyring.Template{
		Subject: id.Subject, Tenant: id.Tenant, Role: id.Role, Key: key, Lifetime: lifetime, Now: now,
	})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", id.Role, id.Subject, err)
	}
	return (*KeyRecord)(&issued), nil
}

// logIssued logs that a certificate was issued.
func (r *Registrar) logIssued(op string, id nstance.Identity, issued *KeyRecord) {
	r.opts.Log.Info("certificate issued", "op", op, "subject", id.Subject, "role", id.Role, "tenant", id.Tenant,
		"serial", issued.Serial, "not_after", issued.NotAfter)
}

func (r *Registrar) credential(issued *KeyRecord) nstance.Credential {
	return nstance.Credential{
		Chain: [][]byte{slices.Clone(issued.Certificate)}, Roots: r.authority.Certificates(),
		Serial: issued.Serial, NotAfter: issued.NotAfter,
	}
}

// alarm reports that two parties use the same nonce or certificate.
func (r *Registrar) alarm(id nstance.Identity, format string, args ...any) {
	e := r.event(nstance.EventAlarm, id, format, args...)
	e.Code = nstance.Denied
	r.opts.Alarm(e)
}

// event returns an event about the holder of a certificate.
func (r *Registrar) event(typ nstance.EventType, id nstance.Identity, format string, args ...any) nstance.Event {
	e := nstance.Event{
		Time: r.opts.Now().UTC(), Type: typ, Tenant: id.Tenant,
		Reason: fmt.Sprintf("%s %s: ", id.Role, id.Subject) + fmt.Sprintf(format, args...),
	}
	if id.Role == nstance.RoleAgent {
		e.Instance = nstance.InstanceID(id.Subject)
	}
	return e
}
