package registration

import (
	"context"
	"crypto/x509"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

// IdentityOf returns the identity in a certificate whose chain has been verified: it
// verifies no signature. Fails with Denied when a part is missing, doubled or malformed.
func IdentityOf(cert *x509.Certificate) (nstance.Identity, error) { return pki.IdentityOf(cert) }

// A Memory is Records in memory, for trials, tests, and programs whose machines end
// with them. It is safe for concurrent use.
type Memory struct {
	mu        sync.Mutex
	instances map[nstance.InstanceID]Registration
	nonces    map[string]OperatorRegistration
	operators map[operatorKey]OperatorRegistration
}

type operatorKey struct {
	tenant nstance.TenantID
	name   string
}

var _ Records = (*Memory)(nil)

// NewMemory returns an empty Memory.
func NewMemory() *Memory {
	return &Memory{
		instances: map[nstance.InstanceID]Registration{}, nonces: map[string]OperatorRegistration{},
		operators: map[operatorKey]OperatorRegistration{},
	}
}

// Put adds an instance, or replaces it.
func (m *Memory) Put(r Registration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.instances[r.ID] = r
}

// Remove forgets an instance: it cannot register or renew any more.
func (m *Memory) Remove(id nstance.InstanceID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.instances, id)
}

// Registration implements Records.
func (m *Memory) Registration(_ context.Context, id nstance.InstanceID) (Registration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return found(m.instances, id, "instance "+string(id))
}

// RefreshRegistration implements Records.
func (m *Memory) RefreshRegistration(ctx context.Context, id nstance.InstanceID) (Registration, error) {
	return m.Registration(ctx, id)
}

// UpdateRegistration implements Records.
func (m *Memory) UpdateRegistration(_ context.Context, id nstance.InstanceID, fn func(*Registration) error) (Registration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return updated(m.instances, id, "instance "+string(id), fn)
}

// ConsumeNonce implements Records.
func (m *Memory) ConsumeNonce(_ context.Context, jti string, r OperatorRegistration) (OperatorRegistration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if earlier, used := m.nonces[jti]; used {
		r = earlier
	}
	m.nonces[jti] = r
	key := operatorKey{r.Tenant, r.Name}
	if _, known := m.operators[key]; !known {
		m.operators[key] = r
	}
	return r, nil
}

// Operator implements Records.
func (m *Memory) Operator(_ context.Context, tenant nstance.TenantID, name string) (OperatorRegistration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return found(m.operators, operatorKey{tenant, name}, "operator "+name)
}

// UpdateOperator implements Records.
func (m *Memory) UpdateOperator(_ context.Context, tenant nstance.TenantID, name string, fn func(*OperatorRegistration) error) (OperatorRegistration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return updated(m.operators, operatorKey{tenant, name}, "operator "+name, fn)
}

func found[K comparable, V any](all map[K]V, key K, what string) (V, error) {
	v, ok := all[key]
	if !ok {
		return v, nstance.Errorf(nstance.NotFound, "no %s", what)
	}
	return v, nil
}

func updated[K comparable, V any](all map[K]V, key K, what string, fn func(*V) error) (V, error) {
	v, err := found(all, key, what)
	if err == nil {
		err = fn(&v)
	}
	if err != nil {
		var none V
		return none, err
	}
	all[key] = v
	return v, nil
}
