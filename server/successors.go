package server

import (
	"strings"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
)

// successors remember, for one term, whose renewed certificate has been shown.
// From then on its predecessor is refused, although the record still names
// both: making that durable is left to the record's next write by the
// registrar, so that a renewal costs one put and not two. A new leader learns
// it again from the first connection.
type successors struct {
	mu    sync.Mutex
	shown map[string]string // serial by holder; no more entries than holders who proved who they are
}

// operatorKey names an operator or administrator. Instance IDs hold no slash.
func operatorKey(tenant nstance.TenantID, name string) string { return string(tenant) + "/" + name }

func holderKey(id nstance.Identity) string {
	if id.Role == nstance.RoleAgent {
		return id.Subject
	}
	return operatorKey(id.Tenant, id.Subject)
}

// note takes down that id has shown its pending certificate.
func (u *successors) note(id nstance.Identity) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.shown == nil {
		u.shown = map[string]string{}
	}
	u.shown[holderKey(id)] = id.Serial
}

// promote makes a pending certificate that has been shown the current one.
func (u *successors) promote(holder string, s *registration.Succession) {
	if s.Pending == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	s.Promote(u.shown[holder])
}

// has reports whether the holder's certificate with that serial has been shown
// as a successor.
func (u *successors) has(holder, serial string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.shown[holder] == serial
}

// operators returns which operators and administrators have shown a successor.
func (u *successors) operators() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []string
	for holder := range u.shown {
		if strings.Contains(holder, "/") {
			out = append(out, holder)
		}
	}
	return out
}

func (u *successors) forget(holder string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.shown, holder)
}
