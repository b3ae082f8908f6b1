package pvetest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/sleep"
)

// ticketLife is how long a ticket is good for (pve-access-control, AccessControl.pm).
const ticketLife = 2 * time.Hour

type ticket struct {
	user string
	csrf string
	made time.Time
}

// privileges that exist, for a token without restriction.
var privileges = []string{
	"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit", "Mapping.Audit", "Mapping.Use", "Pool.Allocate", "Pool.Audit",
	"SDN.Use", "Sys.Audit", "Sys.Modify", "VM.Allocate", "VM.Audit", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Cloudinit",
	"VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
}

// An accessControl knows who may call.
type accessControl struct {
	o       *Options
	mu      *sync.Mutex
	tickets map[string]ticket
	denied  []string // messages of refusals with status 403
}

// authenticate finds out who calls: by an API token, or by a ticket that needs
// a second token for whatever changes something.
func (a *accessControl) authenticate(r *http.Request) (*call, error) {
	if auth, ok := strings.CutPrefix(r.Header.Get("Authorization"), "PVEAPIToken="); ok {
		id, secret, _ := strings.Cut(auth, "=")
		if t, ok := a.o.Tokens[id]; ok && t.Secret == secret {
			return &call{Request: r, user: id, acl: t.ACL}, nil
		}
		return nil, a.unknown(r, "no such token or wrong secret")
	}
	cookie, err := r.Cookie("PVEAuthCookie")
	if err != nil {
		return nil, a.unknown(r, "No ticket")
	}
	a.mu.Lock()
	t, ok := a.tickets[cookie.Value]
	a.mu.Unlock()
	if !ok || time.Since(t.made) > ticketLife {
		return nil, a.unknown(r, "invalid PVE ticket")
	}
	if r.Method != http.MethodGet && r.Header.Get("CSRFPreventionToken") != t.csrf {
		return nil, a.unknown(r, "Permission denied - invalid csrf token")
	}
	return &call{Request: r, user: t.user, acl: a.o.Tokens[t.user].ACL}, nil
}

// unknown is the late refusal of a caller.
func (a *accessControl) unknown(r *http.Request, msg string) error {
	sleep.For(r.Context(), a.o.LoginDelay)
	return refuse(401, "%s", msg)
}

// issue gives a user a ticket.
func (a *accessControl) issue(w http.ResponseWriter, r *http.Request) (any, error) {
	var who struct{ Username, Password string }
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil || json.Unmarshal(body, &who) != nil {
		return nil, refuse(400, "unable to decode JSON body")
	}
	if password, ok := a.o.Passwords[who.Username]; !ok || password != who.Password {
		return nil, a.unknown(r, "authentication failure")
	}
	t := ticket{user: who.Username, made: time.Now()}
	t.csrf = fmt.Sprintf("%08X:%s", t.made.Unix(), rand.Text())
	value := fmt.Sprintf("PVE:%s:%08X::%s", t.user, t.made.Unix(), rand.Text())
	a.mu.Lock()
	a.tickets[value] = t
	a.mu.Unlock()
	return map[string]any{
		"username": t.user, "ticket": value, "CSRFPreventionToken": t.csrf, "clustername": "test",
		"cap": map[string]map[string]int{"vms": {"VM.Audit": 1}},
	}, nil
}

// may reports whether the caller has one of the privileges at a path.
func (r *call) may(path string, oneOf ...string) bool {
	if r.acl == nil {
		return true
	}
	for _, p := range r.granted(path) {
		if slices.Contains(oneOf, p) {
			return true
		}
	}
	return false
}

// require refuses a caller who has none of the privileges at a path.
func (r *call) require(path string, oneOf ...string) error {
	if !r.may(path, oneOf...) {
		return denied(path, oneOf...)
	}
	return nil
}

// granted returns the privileges at a path: those of the longest one above it.
func (r *call) granted(path string) []string {
	if r.acl == nil {
		return privileges
	}
	best, found := -1, []string(nil)
	for _, a := range r.acl {
		if (path == a.Path || strings.HasPrefix(path, strings.TrimSuffix(a.Path, "/")+"/")) && len(a.Path) > best {
			best, found = len(a.Path), a.Privileges
		}
	}
	return found
}

// mayVM is the same for a machine, whose pool may give rights too.
func (r *call) mayVM(v *vm, oneOf ...string) bool {
	return r.may("/vms/"+itoa(v.id), oneOf...) || v.pool != "" && r.may("/pool/"+v.pool, oneOf...)
}

// need refuses a caller who lacks one of the privileges on a machine.
func (r *call) need(v *vm, each ...string) error {
	for _, p := range each {
		if !r.mayVM(v, p) {
			return denied("/vms/"+itoa(v.id), p)
		}
	}
	return nil
}

func permissions(r *call) (any, error) {
	paths := map[string]bool{"/": true}
	if p := r.params["path"]; p != "" {
		paths = map[string]bool{p: true}
	} else {
		for _, a := range r.acl {
			paths[a.Path] = true
		}
	}
	out := map[string]map[string]int{}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		for _, p := range r.granted(path) {
			if out[path] == nil {
				out[path] = map[string]int{}
			}
			out[path][p] = 1
		}
	}
	return out, nil
}
