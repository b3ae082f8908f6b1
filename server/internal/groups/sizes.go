package groups

import (
	"sync"

	"github.com/nstance-go/nstance"
)

// tenantSizes has the sizes of each tenant's groups together, as they are in effect or are
// about to be: an instance on demand is admitted beside an edit whose write is under way. Its
// lock is held for nothing else, since it is taken under the reconciler's.
type tenantSizes struct {
	mu       sync.Mutex
	inEffect map[nstance.TenantID]int
	admitted map[nstance.TenantID]int // by edits that are not in effect yet
}

func (s *tenantSizes) of(tenant nstance.TenantID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.inEffect[tenant], s.admitted[tenant])
}

// admit records what an edit has been checked with, before it is checked.
func (s *tenantSizes) admit(tenant nstance.TenantID, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admitted == nil {
		s.admitted = map[nstance.TenantID]int{}
	}
	s.admitted[tenant] = size
}

// set records what is in effect for a tenant, whose edit is over.
func (s *tenantSizes) set(tenant nstance.TenantID, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inEffect[tenant] = size
	delete(s.admitted, tenant)
}

// setAll records what is in effect. No edit is under way.
func (s *tenantSizes) setAll(v *view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inEffect, s.admitted = map[nstance.TenantID]int{}, nil
	for tenant, u := range v.tenants {
		s.inEffect[tenant] = u.size
	}
}
