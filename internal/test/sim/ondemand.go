package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
)

// order is a requested instance on demand, with the caller's ID.
type order struct {
	key      nstance.GroupKey
	accepted bool // the request was answered with success
	unwanted bool // its deletion was requested
}

// newOrder returns the ID of a new order.
func (w *World) newOrder(key nstance.GroupKey) nstance.InstanceID {
	id, err := nstance.NewInstanceID("web", time.Now())
	if err != nil {
		panic(err) // a mistake in this package
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.orders[id] = &order{key: key}
	return id
}

func (w *World) orderOf(id nstance.InstanceID) (order, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.orders[id]
	if o == nil {
		return order{}, false
	}
	return *o, true
}

func (w *World) updateOrder(id nstance.InstanceID, note func(*order)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	note(w.orders[id])
}

// request repeats an order until there is a definite answer. A variant is another
// request with the same ID.
func (d *driver) request(id nstance.InstanceID, variant int) error {
	o, _ := d.orderOf(id)
	def := d.currentGroup(o.key).Definition
	def.UserData = content(o.key, "order "+string(id))
	return d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		_, err := r.CreateInstance(ctx, reconcile.OnDemandRequest{
			ID: id, Group: o.key, Definition: def, Digest: fmt.Sprint("request ", variant),
		})
		if err == nil && variant == 0 {
			d.updateOrder(id, func(o *order) { o.accepted = true })
			d.check.checkAccepted(id)
		}
		return err
	})
}

// cancel requests the deletion of an order until it starts.
func (d *driver) cancel(id nstance.InstanceID) {
	d.updateOrder(id, func(o *order) { o.unwanted = true })
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		err := r.Delete(ctx, id, "no longer needed", false)
		if nstance.CodeOf(err) == nstance.Conflict {
			err = nstance.Errorf(nstance.Unavailable, "frozen: repeated later: %w", err)
		}
		return err // NotFound: it is gone
	})
}

// orderOne creates an instance on demand. The caller may miss the answer and repeat the
// request, and another may use the same ID; in the end it is deleted on request, or for
// its age.
func (a act) orderOne() {
	id := a.newOrder(a.group())
	again, another, needed, forgotten := a.rng.IntN(3), a.rng.IntN(4) == 0, a.seconds(0, 240), a.rng.IntN(3) == 0
	if a.request(id, 0) != nil {
		a.cancel(id) // an attempt without answer may have landed
		return
	}
	for range again {
		a.sleep(a.seconds(0, 20))
		_ = a.request(id, 0) // it may be gone
	}
	if another && a.request(id, 1) == nil {
		a.check.violated("order", "%s was given to two requests", id)
	}
	a.sleep(needed)
	if !forgotten {
		a.cancel(id)
	}
}

// checkAccepted checks that an accepted order is durable.
func (c *checker) checkAccepted(id nstance.InstanceID) {
	if !c.w.store.wasThere(id) {
		c.violated("order", "%s was accepted before it was durable", id)
	}
}

// checkOnDemand checks that an instance on demand was requested, and leaves only for permitted
// causes.
func (c *checker) checkOnDemand(old *records.Instance, now records.Instance) {
	if !now.OnDemand {
		return
	}
	o, known := c.w.orderOf(now.ID)
	switch {
	case !known:
		c.violated("order", "%s was created without a request", now.ID)
		return
	case o.key != keyOf(now):
		c.violated("tenant", "%s was created in group %s, requested in %s", now.ID, keyOf(now), o.key)
	}
	if old != nil && leaving(*old) != "" {
		return
	}
	switch why := leaving(now); why {
	case nstance.CauseSurplus, nstance.CauseRollout, nstance.CauseUnhealthy:
		c.violated("order", "%s, on demand, leaves for %s", now.ID, why)
	case nstance.CauseRequest:
		if !o.unwanted && now.Preserve == nil {
			c.violated("order", "%s, on demand, leaves by request, without a request", now.ID)
		}
	}
}

// drillOrder repeats a request for an instance, also while the leader changes, and gets
// one: beside the group's size, and deleted for its age. Another is deleted on request.
func (d *driver) drillOrder() {
	d.setGroup(webToo, func(g *nstance.Group) { g.Expiry.OnDemandAge = 8 * time.Minute })
	one, two := d.newOrder(webToo), d.newOrder(web)
	for range 2 {
		for _, id := range []nstance.InstanceID{one, one, two} {
			if err := d.request(id, 0); err != nil {
				d.check.violated("order", "%s is refused: %v", id, err)
			}
		}
		d.acts.Go(func() { d.act(11).crashLeader() })
		d.pass(time.Second)
	}
	if err := d.request(one, 1); nstance.CodeOf(err) != nstance.Conflict {
		d.check.violated("order", "another request for %s is answered with %v", one, err)
	}
	d.acts.Wait()
	d.pass(3 * time.Minute)
	d.check.checkSettled()
	for _, id := range []nstance.InstanceID{one, two} {
		if _, err := d.cloud.Truth(id); err != nil {
			d.check.violated("order", "%s was requested and does not exist", id)
		}
	}
	d.cancel(two)
	d.pass(drainTimeout + 8*time.Minute)
	for _, id := range []nstance.InstanceID{one, two} {
		if _, err := d.cloud.Truth(id); err == nil {
			d.check.violated("order", "%s has expired and still exists", id)
		}
	}
	d.setGroup(webToo, func(g *nstance.Group) { g.Expiry.OnDemandAge = orderAge })
	d.check.checkSettled()
}
