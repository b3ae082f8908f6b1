package sim

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage/lease"
)

const (
	side     = 3 // usual size of every group but the first
	badImage = "bad"

	drainTimeout = 3 * time.Minute
	orderAge     = 20 * time.Minute // of instances on demand
)

// The permanent groups: one for each of two tenants, of the same name, and one with a warm
// pool. Each tenant may have a temporary one.
var (
	web     = nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}
	webToo  = nstance.GroupKey{Tenant: "acme", Group: "web"}
	pooled  = nstance.GroupKey{Tenant: "acme", Group: "pooled"} // with stand-by machines
	tenants = []nstance.TenantID{web.Tenant, webToo.Tenant}
)

// groupState is the desired state of one group.
type groupState struct {
	group    nstance.Group
	inEffect *nstance.Definition // while another definition is pending
	gone     bool                // removed completely
	versions []groupVersion      // all versions so far, for calls in flight
}

// groupVersion is an earlier version of a group, for the checks.
type groupVersion struct {
	at     time.Time
	size   int
	room   int           // size and surge
	drain  time.Duration // timeout
	surge  int
	expiry nstance.Expiry
}

// usualSize is the size of a group without changes.
func (w *World) usualSize(key nstance.GroupKey) int {
	if key == web {
		return w.cfg.Size
	}
	return side
}

// newGroup returns a new group.
func (w *World) newGroup(key nstance.GroupKey, surge int) nstance.Group {
	g := nstance.Group{
		Key: key, Size: w.usualSize(key), DrainTimeout: drainTimeout, Expiry: nstance.Expiry{OnDemandAge: orderAge},
		Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: surge}, HaltAfter: 2},
		Definition: nstance.Definition{
			Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{small, large}, Market: nstance.Market{Type: nstance.Spot},
			UserData: content(key, "v0"), LaunchTimeout: 5 * time.Minute, RegistrationTimeout: 3 * time.Minute,
			LoadBalancers: balancersOf(key),
		},
	}
	if key == pooled {
		g.WarmPool = nstance.WarmPool{Size: poolSize, Mode: nstance.ParkStopped}
	}
	if key == webToo {
		g.Definition.Market = nstance.Market{
			Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: time.Minute, ReturnAfter: returnAfter,
			OnDemandBase: nstance.Count{N: base},
		}
		g.Spread = nstance.Spread{By: nstance.SpreadPool, MaxShare: nstance.Count{N: 50, Percent: true}}
	}
	return g
}

// content is user data that names its group.
func content(key nstance.GroupKey, version string) nstance.UserData {
	return nstance.UserData{Content: key.String() + " " + version}
}

// setGroup changes a group and reports it to the leader.
func (w *World) setGroup(key nstance.GroupKey, change func(*nstance.Group)) {
	w.mu.Lock()
	v := w.groups[key]
	if v == nil {
		v = &groupState{}
		w.groups[key] = v
		w.keys = append(w.keys, key)
	}
	g := &v.group
	change(g)
	v.gone = v.gone && g.Removing
	size := g.Size
	if g.Removing {
		size = 0
	}
	surge := g.Rollout.MaxSurge.Of(size)
	v.versions = append(v.versions, groupVersion{time.Now(), size, size + max(1, surge), g.DrainTimeout, surge, g.Expiry})
	w.mu.Unlock()
	w.check.recordDefinition(key, w.effectiveDefinition(key))
	w.publishDesired()
}

// desiredGroups returns every group that is desired or being removed.
func (w *World) desiredGroups() (out []nstance.Group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range w.keys {
		if v := w.groups[key]; !v.gone {
			out = append(out, v.group)
		}
	}
	return out
}

func (w *World) currentGroup(key nstance.GroupKey) nstance.Group {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.groups[key]; v != nil {
		return v.group
	}
	return nstance.Group{Key: key}
}

// dropRemoved returns the callback of a server for a group that is removed completely: in
// its term, it drops the group.
func (w *World) dropRemoved(t *lease.Term) func(reconcile.GroupView, bool) {
	return func(v reconcile.GroupView, gone bool) {
		if !gone || !v.Removing || v.OnDemand > 0 || t.Err() != nil {
			return
		}
		w.mu.Lock()
		known := w.groups[v.Key]
		removed := known != nil && known.group.Removing // else it is desired again
		if known != nil {
			known.gone = removed
		}
		w.mu.Unlock()
		if removed {
			w.check.recordThaw(v.Key) // a group that is made again is not frozen
		}
	}
}

// eachRecent calls look with every version of the last minutes: the current calls may have
// been decided under an earlier one.
func (w *World) eachRecent(key nstance.GroupKey, look func(groupVersion)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.groups[key]
	if v == nil {
		return
	}
	for i, s := range v.versions {
		if i == len(v.versions)-1 || time.Since(v.versions[i+1].at) < 5*time.Minute {
			look(s)
		}
	}
}

// maxMembers is the largest permitted number of members.
func (w *World) maxMembers(key nstance.GroupKey) (most int) {
	w.eachRecent(key, func(s groupVersion) { most = max(most, s.room) })
	return most
}

// largest and smallest are the bounds of the recent sizes.
func (w *World) largest(key nstance.GroupKey) (most int) {
	w.eachRecent(key, func(s groupVersion) { most = max(most, s.size) })
	return most
}

func (w *World) smallest(key nstance.GroupKey) int {
	least := math.MaxInt
	w.eachRecent(key, func(s groupVersion) { least = min(least, s.size) })
	return least
}

// anyWithoutSurge reports whether a recent version permits no surge.
func (w *World) anyWithoutSurge(key nstance.GroupKey) (yes bool) {
	w.eachRecent(key, func(s groupVersion) { yes = yes || s.surge == 0 })
	return yes
}

// anyUndrained reports whether a deletion decided at a time, by a server's own clock, may
// have been decided while drains were disabled.
func (w *World) anyUndrained(key nstance.GroupKey, at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.groups[key]
	if v == nil {
		return false
	}
	for i, s := range v.versions {
		ended := i < len(v.versions)-1 && at.Sub(v.versions[i+1].at) > 5*time.Minute
		if s.drain <= 0 && !ended && !s.at.After(at.Add(maxStep)) {
			return true
		}
	}
	return false
}

// group returns a random desired group, the first more often than others.
func (a act) group() nstance.GroupKey {
	first, at := a.rng.IntN(5) < 3, a.rng.Float64()
	if groups := a.desiredGroups(); !first {
		return groups[int(at*float64(len(groups)))].Key
	}
	return web
}

// toggle creates a temporary group for a tenant, or removes it.
func (a act) toggle() {
	key := nstance.GroupKey{Tenant: tenants[a.rng.IntN(len(tenants))], Group: "job"}
	surge, size := a.rng.IntN(2), 1+a.rng.IntN(side)
	a.mu.Lock()
	v := a.groups[key]
	there := v != nil && !v.gone && !v.group.Removing
	a.mu.Unlock()
	if there {
		a.setGroup(key, func(g *nstance.Group) { g.Removing = true })
		return
	}
	a.setGroup(key, func(g *nstance.Group) {
		*g = a.newGroup(key, surge)
		g.Size, g.Definition.UserData = size, content(key, a.version())
	})
}

// checkTenant checks that a machine is created for the tenant and group of its record, with
// their user data.
func (c *checker) checkTenant(spec nstance.MachineSpec, rec records.Instance) {
	key := keyOf(rec)
	switch {
	case spec.Owner.Tenant != rec.Tenant || spec.Group != rec.Group:
		c.violated("tenant", "machine %s of group %s is marked as %s/%s", spec.ID, key, spec.Owner.Tenant, spec.Group)
	case !strings.HasPrefix(rendered(spec), content(key, "").Content):
		c.violated("tenant", "machine %s of group %s is created from %q", spec.ID, key, spec.UserData)
	}
}

func keyOf(rec records.Instance) nstance.GroupKey {
	return nstance.GroupKey{Tenant: rec.Tenant, Group: rec.Group}
}

// machines returns a group's machines at the cloud.
func (d *driver) machines(key nstance.GroupKey) (out []nstance.Machine) {
	for _, m := range d.cloud.Machines() {
		if m.Owner.Tenant == key.Tenant && m.Group == key.Group {
			out = append(out, m)
		}
	}
	return out
}

// drillRemoval creates a group, removes it while it has an instance on demand, which
// stays, and creates it again.
func (d *driver) drillRemoval() {
	key := nstance.GroupKey{Tenant: webToo.Tenant, Group: "brief"}
	begin := func() { d.setGroup(key, func(g *nstance.Group) { *g = d.newGroup(key, 1) }) }
	begin()
	d.pass(2 * time.Minute)
	id := d.newOrder(key)
	if err := d.request(id, 0); err != nil {
		d.check.violated("order", "%s is refused: %v", id, err)
	}
	d.pass(2 * time.Minute)
	d.check.checkSettled()
	d.setGroup(key, func(g *nstance.Group) { g.Removing = true })
	d.pass(drainTimeout + 2*time.Minute)
	if left := d.machines(key); len(left) != 1 || left[0].ID != id {
		d.check.violated("group", "removed group %s still has %v, not only %s", key, ids(left), id)
	}
	d.cancel(id)
	d.pass(drainTimeout + 2*time.Minute)
	if left := d.machines(key); len(left) > 0 {
		d.check.violated("group", "removed group %s still has %v", key, ids(left))
	}
	begin()
	d.pass(2 * time.Minute)
	d.check.checkSettled()
	d.setGroup(key, func(g *nstance.Group) { g.Removing = true })
	d.pass(drainTimeout + 2*time.Minute)
	d.check.checkSettled()
}

func ids(machines []nstance.Machine) (out []nstance.InstanceID) {
	for _, m := range machines {
		out = append(out, m.ID)
	}
	return out
}

// version returns a new name for a definition.
func (d *driver) version() string {
	d.chosen.Lock()
	defer d.chosen.Unlock()
	d.versions++
	return fmt.Sprintf("v%d", d.versions)
}
