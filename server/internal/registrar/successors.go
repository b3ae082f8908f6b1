package registrar

import (
	"strings"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
)

// Successors remember, for one term, which renewed certificates have been used.
// From then on the predecessor is refused, although the record still names both:
// the registrar's next write of the record makes that durable, so that a renewal
// costs one put instead of two. A new leader learns it from the first connection.
type Successors struct {
	mu   sync.Mutex
	used map[string]string // serial by holder
}

// OperatorHolder names an operator or administrator among the holders of
// certificates. An instance is named by its ID, which holds no slash.
func OperatorHolder(tenant nstance.TenantID, name string) string { return string(tenant) + "/" + name }

func holderOf(id nstance.Identity) string {
	if id.Role == nstance.RoleAgent {
		return id.Subject
	}
	return OperatorHolder(id.Tenant, id.Subject)
}

// Use records that a pending certificate has been used.
func (u *Successors) Use(id nstance.Identity) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.used == nil {
		u.used = map[string]string{}
	}
	u.used[holderOf(id)] = id.Serial
}

// promote makes a pending certificate that has been used the current one.
func (u *Successors) promote(holder string, s *registration.Succession) {
	if s.Pending == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	s.Promote(u.used[holder])
}

// Used reports whether the holder's certificate with that serial has been used as
// a successor.
func (u *Successors) Used(holder, serial string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.used[holder] == serial
}

// Operators returns which operators and administrators have used a successor, as
// OperatorHolder names them.
func (u *Successors) Operators() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []string
	for holder := range u.used {
		if strings.Contains(holder, "/") {
			out = append(out, holder)
		}
	}
	return out
}

// Forget drops a deleted instance.
func (u *Successors) Forget(id nstance.InstanceID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.used, string(id))
}
