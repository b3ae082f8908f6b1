package sim

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

const (
	side     = 3 // usual size of every group but the first
	badImage = "bad"

	drainTimeout = 3 * time.Minute
	orderAge     = 20 * time.Minute // of instances on demand
)

// The groups that are always there: two tenants', of the same name. Each tenant
// may have one more, which comes and goes.
var (
	web     = nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}
	webToo  = nstance.GroupKey{Tenant: "acme", Group: "web"}
	tenants = []nstance.TenantID{web.Tenant, webToo.Tenant}
)

// A wish is one group as people want it.
type wish struct {
	group    nstance.Group
	inEffect *nstance.Definition // while another one is pending
	gone     bool                // it was removed, and nothing is left of it
	past     []sized             // every wish so far, for what may be under way
}

// sized is what the checks need to know of an earlier wish.
type sized struct {
	at     time.Time
	size   int
	room   int           // size and surge
	drain  time.Duration // timeout
	surge  int
	expiry nstance.Expiry
}

// usual is the size that a group has when nobody has changed it.
func (w *World) usual(key nstance.GroupKey) int {
	if key == web {
		return w.cfg.Size
	}
	return side
}

// newGroup returns a group as it is made.
func (w *World) newGroup(key nstance.GroupKey, surge int) nstance.Group {
	g := nstance.Group{
		Key: key, Size: w.usual(key), DrainTimeout: drainTimeout, Expiry: nstance.Expiry{OnDemandAge: orderAge},
		Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: surge}, HaltAfter: 2},
		Definition: nstance.Definition{
			Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{small, large}, Market: nstance.Market{Type: nstance.Spot},
			UserData: content(key, "v0"), LaunchTimeout: 5 * time.Minute, RegistrationTimeout: 3 * time.Minute,
			LoadBalancers: balancersOf(key),
		},
	}
	if key == webToo {
		g.Definition.Market = nstance.Market{
			Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: time.Minute, ReturnAfter: returnAfter,
			OnDemandBase: nstance.Count{N: base},
		}
	}
	return g
}

// content is user data that says whose it is.
func content(key nstance.GroupKey, version string) nstance.UserData {
	return nstance.UserData{Content: key.String() + " " + version}
}

// want changes what is wanted of a group, and tells whoever leads.
func (w *World) want(key nstance.GroupKey, change func(*nstance.Group)) {
	w.mu.Lock()
	v := w.wishes[key]
	if v == nil {
		v = &wish{}
		w.wishes[key] = v
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
	v.past = append(v.past, sized{time.Now(), size, size + max(1, surge), g.DrainTimeout, surge, g.Expiry})
	w.mu.Unlock()
	w.check.wanted(key, w.made(key))
	w.tell()
}

// standing returns every group that is wanted, or still on its way out.
func (w *World) standing() (out []nstance.Group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range w.keys {
		if v := w.wishes[key]; !v.gone {
			out = append(out, v.group)
		}
	}
	return out
}

func (w *World) wanted(key nstance.GroupKey) nstance.Group {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.wishes[key]; v != nil {
		return v.group
	}
	return nstance.Group{Key: key}
}

// forgets returns what a server does when nothing is left of a group that was
// removed: in its term, it strikes it off.
func (w *World) forgets(t *lease.Term) func(reconcile.GroupView, bool) {
	return func(v reconcile.GroupView, gone bool) {
		if !gone || !v.Removing || v.OnDemand > 0 || t.Err() != nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if known := w.wishes[v.Key]; known != nil {
			known.gone = known.group.Removing // somebody may want it again
		}
	}
}

// recent calls look for every wish of the last minutes: what happens now may
// have been decided under an earlier one.
func (w *World) recent(key nstance.GroupKey, look func(sized)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.wishes[key]
	if v == nil {
		return
	}
	for i, s := range v.past {
		if i == len(v.past)-1 || time.Since(v.past[i+1].at) < 5*time.Minute {
			look(s)
		}
	}
}

// roomiest is the largest number of members that any of them permits.
func (w *World) roomiest(key nstance.GroupKey) (most int) {
	w.recent(key, func(s sized) { most = max(most, s.room) })
	return most
}

// largest and smallest are the sizes between which all of them lie.
func (w *World) largest(key nstance.GroupKey) (most int) {
	w.recent(key, func(s sized) { most = max(most, s.size) })
	return most
}

func (w *World) smallest(key nstance.GroupKey) int {
	least := math.MaxInt
	w.recent(key, func(s sized) { least = min(least, s.size) })
	return least
}

// surgeless reports whether any of them permits no surge.
func (w *World) surgeless(key nstance.GroupKey) (yes bool) {
	w.recent(key, func(s sized) { yes = yes || s.surge == 0 })
	return yes
}

// undrained reports whether a deletion that was decided at an instant, by a
// server's own clock, may have been decided while nothing was to be drained.
func (w *World) undrained(key nstance.GroupKey, at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.wishes[key]
	if v == nil {
		return false
	}
	for i, s := range v.past {
		ended := i < len(v.past)-1 && at.Sub(v.past[i+1].at) > 5*time.Minute
		if s.drain <= 0 && !ended && !s.at.After(at.Add(maxStep)) {
			return true
		}
	}
	return false
}

// group chooses one that is wanted, the first more often than others.
func (a act) group() nstance.GroupKey {
	first, at := a.rng.IntN(5) < 3, a.rng.Float64()
	if groups := a.standing(); !first {
		return groups[int(at*float64(len(groups)))].Key
	}
	return web
}

// toggle makes a group for a tenant, or removes the one that it has.
func (a act) toggle() {
	key := nstance.GroupKey{Tenant: tenants[a.rng.IntN(len(tenants))], Group: "job"}
	surge, size := a.rng.IntN(2), 1+a.rng.IntN(side)
	a.mu.Lock()
	v := a.wishes[key]
	there := v != nil && !v.gone && !v.group.Removing
	a.mu.Unlock()
	if there {
		a.want(key, func(g *nstance.Group) { g.Removing = true })
		return
	}
	a.want(key, func(g *nstance.Group) {
		*g = a.newGroup(key, surge)
		g.Size, g.Definition.UserData = size, content(key, a.version())
	})
}

// belongs checks that a machine is made for the tenant and the group of its
// record, and from what is theirs.
func (c *checker) belongs(spec nstance.MachineSpec, rec storage.Instance) {
	key := keyOf(rec)
	switch {
	case spec.Owner.Tenant != rec.Tenant || spec.Group != rec.Group:
		c.violated("tenant", "machine %s of group %s is marked as %s/%s", spec.ID, key, spec.Owner.Tenant, spec.Group)
	case !strings.HasPrefix(rendered(spec), content(key, "").Content):
		c.violated("tenant", "machine %s of group %s is made from %q", spec.ID, key, spec.UserData)
	}
}

func keyOf(rec storage.Instance) nstance.GroupKey {
	return nstance.GroupKey{Tenant: rec.Tenant, Group: rec.Group}
}

// machines returns what a group has at the cloud.
func (d *driver) machines(key nstance.GroupKey) (out []nstance.Machine) {
	for _, m := range d.cloud.Machines() {
		if m.Owner.Tenant == key.Tenant && m.Group == key.Group {
			out = append(out, m)
		}
	}
	return out
}

// drillRemoval makes a group, removes it while an instance on demand is in it,
// which stays, and makes it again.
func (d *driver) drillRemoval() {
	key := nstance.GroupKey{Tenant: webToo.Tenant, Group: "brief"}
	begin := func() { d.want(key, func(g *nstance.Group) { *g = d.newGroup(key, 1) }) }
	begin()
	d.pass(2 * time.Minute)
	id := d.place(key)
	if err := d.request(id, 0); err != nil {
		d.check.violated("order", "%s is refused: %v", id, err)
	}
	d.pass(2 * time.Minute)
	d.check.settled()
	d.want(key, func(g *nstance.Group) { g.Removing = true })
	d.pass(drainTimeout + 2*time.Minute)
	if left := d.machines(key); len(left) != 1 || left[0].ID != id {
		d.check.violated("group", "of group %s, which was removed, there is left %v, not only %s", key, ids(left), id)
	}
	d.cancel(id)
	d.pass(drainTimeout + 2*time.Minute)
	if left := d.machines(key); len(left) > 0 {
		d.check.violated("group", "of group %s, which was removed, there is left %v", key, ids(left))
	}
	begin()
	d.pass(2 * time.Minute)
	d.check.settled()
	d.want(key, func(g *nstance.Group) { g.Removing = true })
	d.pass(drainTimeout + 2*time.Minute)
	d.check.settled()
}

func ids(machines []nstance.Machine) (out []nstance.InstanceID) {
	for _, m := range machines {
		out = append(out, m.ID)
	}
	return out
}

// version returns a name that no definition has yet.
func (d *driver) version() string {
	d.chosen.Lock()
	defer d.chosen.Unlock()
	d.versions++
	return fmt.Sprintf("v%d", d.versions)
}
