package registration_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

var (
	epoch  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	source = netip.MustParseAddr("192.0.2.7")
)

const (
	cluster = nstance.ClusterID("prod")
	shard   = nstance.ShardID("eu-1a")
)

// A store is Records in memory. What Registration returns may lag behind, as
// the memory of a new leader does; every other method sees the truth.
type store struct {
	mu        sync.Mutex
	truth     map[nstance.InstanceID]registration.Registration
	memory    map[nstance.InstanceID]registration.Registration // overrides what Registration returns
	nonces    map[string]registration.OperatorRegistration
	operators map[string]registration.OperatorRegistration
	writes    int
	fail      map[string]error                                       // by method; afterwards it has happened if landed
	landed    bool                                                   // a failing write is durable
	meanwhile func(map[nstance.InstanceID]registration.Registration) // once, before the next UpdateRegistration
	revoke    bool                                                   // by another process, before the next UpdateOperator
}

func newStore() *store {
	return &store{
		truth:     map[nstance.InstanceID]registration.Registration{},
		memory:    map[nstance.InstanceID]registration.Registration{},
		nonces:    map[string]registration.OperatorRegistration{},
		operators: map[string]registration.OperatorRegistration{},
		fail:      map[string]error{},
	}
}

func (s *store) get(op string, m map[nstance.InstanceID]registration.Registration, id nstance.InstanceID) (registration.Registration, error) {
	if err := s.fail[op]; err != nil {
		return registration.Registration{}, err
	}
	reg, ok := m[id]
	if !ok {
		return registration.Registration{}, nstance.Errorf(nstance.NotFound, "no record")
	}
	return reg, nil
}

func (s *store) Registration(_ context.Context, id nstance.InstanceID) (registration.Registration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reg, ok := s.memory[id]; ok {
		return reg, nil
	}
	return s.get("Registration", s.truth, id)
}

func (s *store) RefreshRegistration(_ context.Context, id nstance.InstanceID) (registration.Registration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.memory, id)
	return s.get("RefreshRegistration", s.truth, id)
}

func (s *store) UpdateRegistration(_ context.Context, id nstance.InstanceID, fn func(*registration.Registration) error) (registration.Registration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// As after a conflict: fn first sees the lagging record, then the real one.
	if old, ok := s.memory[id]; ok {
		if err := fn(&old); err != nil {
			return registration.Registration{}, err
		}
		delete(s.memory, id)
	}
	if s.meanwhile != nil {
		s.meanwhile(s.truth)
		s.meanwhile = nil
	}
	reg, err := s.get("", s.truth, id)
	if err != nil {
		return reg, err
	}
	if err := fn(&reg); err != nil {
		return registration.Registration{}, err
	}
	if err := s.fail["UpdateRegistration"]; err == nil || s.landed {
		s.truth[id], s.writes = reg, s.writes+1
	}
	return reg, s.fail["UpdateRegistration"]
}

func (s *store) ConsumeNonce(_ context.Context, jti string, r registration.OperatorRegistration) (registration.OperatorRegistration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fail["ConsumeNonce"]; err != nil && !s.landed {
		return registration.OperatorRegistration{}, err
	}
	if old, ok := s.nonces[jti]; ok {
		r = old
	} else {
		s.writes++
	}
	s.nonces[jti] = r
	if _, ok := s.operators[string(r.Tenant)+"/"+r.Name]; !ok {
		s.operators[string(r.Tenant)+"/"+r.Name] = r
	}
	return r, s.fail["ConsumeNonce"]
}

func (s *store) Operator(_ context.Context, tenant nstance.TenantID, name string) (registration.OperatorRegistration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fail["Operator"]; err != nil {
		return registration.OperatorRegistration{}, err
	}
	op, ok := s.operators[string(tenant)+"/"+name]
	if !ok {
		return op, nstance.Errorf(nstance.NotFound, "no such operator")
	}
	return op, nil
}

func (s *store) UpdateOperator(ctx context.Context, tenant nstance.TenantID, name string, fn func(*registration.OperatorRegistration) error) (registration.OperatorRegistration, error) {
	op, err := s.Operator(ctx, tenant, name)
	if err != nil {
		return op, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	op = s.operators[string(tenant)+"/"+name]
	op.Revoked = op.Revoked || s.revoke
	if err := fn(&op); err != nil {
		return registration.OperatorRegistration{}, err
	}
	if err := s.fail["UpdateOperator"]; err != nil {
		return registration.OperatorRegistration{}, err
	}
	s.operators[string(tenant)+"/"+name], s.writes = op, s.writes+1
	return op, nil
}

// here is where the nonces of tests are valid.
var here = keyring.Expect{Cluster: cluster, Shard: shard}

// world is one registrar with a clock that the test advances.
type world struct {
	t      testing.TB
	vault  *vault
	ring   *keyring.Keyring
	keys   *keyring.Keys
	store  *store
	reg    *registration.Registrar
	mu     sync.Mutex
	now    time.Time
	alarms []nstance.Event
}

func newWorld(t testing.TB, opts *registration.Options) *world {
	if opts == nil {
		opts = &registration.Options{}
	}
	w := &world{t: t, vault: newVault(), store: newStore(), now: epoch}
	var err error
	w.ring, err = keyring.OpenKeyring(t.Context(), w.vault, w.clock)
	require.NoError(t, err)
	w.keys = w.ring.Keys()
	opts.Cluster, opts.Shard = cluster, shard
	opts.Now = w.clock
	opts.Alarm = func(e nstance.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.alarms = append(w.alarms, e)
	}
	w.reg, err = registration.New(registration.KeysOf(w.keys.Identity, w.keys.Nonces), w.store, opts)
	require.NoError(t, err)
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// instance writes an issued record and returns its nonce.
func (w *world) instance() (nstance.InstanceID, string) {
	id, err := nstance.NewInstanceID("web", w.clock())
	require.NoError(w.t, err)
	w.store.mu.Lock()
	w.store.truth[id] = registration.Registration{ID: id, Kind: "web", Tenant: "default", Group: "web"}
	w.store.mu.Unlock()
	return id, w.mint(agentClaims(id, w.clock()))
}

func (w *world) mint(c keyring.Claims) string {
	token, err := w.keys.Nonces.Mint("", c)
	require.NoError(w.t, err)
	return token
}

func agentClaims(id nstance.InstanceID, now time.Time) keyring.Claims {
	return keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: shard, Tenant: "default", Group: "web",
		ConfigHash: "v1:sha256:00", NotBefore: now, Expiry: now.Add(20 * time.Minute),
	}
}

func operatorClaims(kind nstance.Role, jti string, now time.Time) keyring.Claims {
	return keyring.Claims{
		Kind: kind, Subject: string(cluster), Cluster: cluster, Tenant: "acme", JTI: jti,
		NotBefore: now, Expiry: now.Add(3 * time.Hour),
	}
}

// register uses a nonce with a key.
func (w *world) register(nonce string, key ed25519.PrivateKey) (nstance.Credential, error) {
	return w.reg.Register(w.t.Context(), nstance.RegistrationRequest{
		Nonce: nonce, CSR: csrOf(w.t, key), Source: source, Hostname: "web-1.internal",
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1")},
	})
}

func (w *world) mustRegister(nonce string, key ed25519.PrivateKey) nstance.Identity {
	cred, err := w.register(nonce, key)
	require.NoError(w.t, err)
	return w.identity(cred)
}

// identity verifies a credential as a server would, at the world's time.
func (w *world) identity(cred nstance.Credential) nstance.Identity {
	require.Len(w.t, cred.Chain, 1)
	cert, err := x509.ParseCertificate(cred.Chain[0])
	require.NoError(w.t, err)
	roots, err := pki.NewPool(cred.Roots...)
	require.NoError(w.t, err)
	_, err = cert.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: cert.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	require.NoError(w.t, err)
	id, err := pki.IdentityOf(cert)
	require.NoError(w.t, err)
	require.Equal(w.t, cred.Serial, id.Serial)
	require.Equal(w.t, cred.NotAfter, id.NotAfter)
	return id
}

func (w *world) renew(id nstance.Identity, key ed25519.PrivateKey) (nstance.Credential, error) {
	return w.reg.Renew(w.t.Context(), id, csrOf(w.t, key))
}

func (w *world) mustRenew(id nstance.Identity, key ed25519.PrivateKey) nstance.Identity {
	cred, err := w.renew(id, key)
	require.NoError(w.t, err)
	return w.identity(cred)
}

func csrOf(t testing.TB, key ed25519.PrivateKey) []byte {
	der, err := pki.NewCSR(key, "ignored")
	require.NoError(t, err)
	return der
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }
