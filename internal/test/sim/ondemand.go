package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// An order is an instance on demand that somebody asked for, by an ID of their
// own.
type order struct {
	key      nstance.GroupKey
	accepted bool // they were told that it is made
	unwanted bool // they have asked for its end
}

// place chooses the ID of an order.
func (w *World) place(key nstance.GroupKey) nstance.InstanceID {
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

func (w *World) noteOrder(id nstance.InstanceID, note func(*order)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	note(w.orders[id])
}

// request asks for an order until there is an answer that says yes or no for
// good. A variant is another request by the same ID.
func (d *driver) request(id nstance.InstanceID, variant int) error {
	o, _ := d.orderOf(id)
	def := d.wanted(o.key).Definition
	def.UserData = content(o.key, "order "+string(id))
	return d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		_, err := r.CreateInstance(ctx, reconcile.OnDemandRequest{
			ID: id, Group: o.key, Definition: def, Digest: fmt.Sprint("request ", variant),
		})
		if err == nil && variant == 0 {
			d.noteOrder(id, func(o *order) { o.accepted = true })
			d.check.accepted(id)
		}
		return err
	})
}

// cancel asks for the end of an order until it has begun.
func (d *driver) cancel(id nstance.InstanceID) {
	d.noteOrder(id, func(o *order) { o.unwanted = true })
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		err := r.Delete(ctx, id, "nobody needs it any more", false)
		if nstance.CodeOf(err) == nstance.Conflict {
			err = nstance.Errorf(nstance.Unavailable, "frozen: asked again later: %w", err)
		}
		return err // NotFound: it is gone already
	})
}

// orderOne makes an instance on demand. The caller may not have heard the
// answer and ask again, another may use the same ID; in the end somebody deletes
// it, or its age does.
func (a act) orderOne() {
	id := a.place(a.group())
	again, another, needed, forgotten := a.rng.IntN(3), a.rng.IntN(4) == 0, a.seconds(0, 240), a.rng.IntN(3) == 0
	if a.request(id, 0) != nil {
		a.cancel(id) // an attempt of which nothing was heard may have landed
		return
	}
	for range again {
		a.sleep(a.seconds(0, 20))
		_ = a.request(id, 0) // it may be gone by now
	}
	if another && a.request(id, 1) == nil {
		a.check.violated("order", "%s was given to two requests", id)
	}
	a.sleep(needed)
	if !forgotten {
		a.cancel(id)
	}
}

// accepted checks that what a caller was told is durable.
func (c *checker) accepted(id nstance.InstanceID) {
	if !c.w.store.wasThere(id) {
		c.violated("order", "%s was accepted, and storage does not say so", id)
	}
}

// ordered checks that an instance on demand is one that somebody asked for, and
// goes only for what may end it.
func (c *checker) ordered(old *storage.Instance, now storage.Instance) {
	if !now.OnDemand {
		return
	}
	o, known := c.w.orderOf(now.ID)
	switch {
	case !known:
		c.violated("order", "%s is made, and nobody asked for it", now.ID)
		return
	case o.key != keyOf(now):
		c.violated("tenant", "%s is made in group %s, and was asked for in %s", now.ID, keyOf(now), o.key)
	}
	if old != nil && leaving(*old) != "" {
		return
	}
	switch why := leaving(now); why {
	case nstance.CauseSurplus, nstance.CauseRollout, nstance.CauseUnhealthy:
		c.violated("order", "%s, on demand, leaves for %s", now.ID, why)
	case nstance.CauseRequest:
		if !o.unwanted && now.Preserve == nil {
			c.violated("order", "%s, on demand, leaves by request, and nobody asked for that", now.ID)
		}
	}
}

// drillOrder asks for an instance again and again, also while the leader
// changes, and makes one: beside the group's size, and gone when its time is
// over. Another is gone when somebody says so.
func (d *driver) drillOrder() {
	d.want(webToo, func(g *nstance.Group) { g.Expiry.OnDemandAge = 8 * time.Minute })
	one, two := d.place(webToo), d.place(web)
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
	d.check.settled()
	for _, id := range []nstance.InstanceID{one, two} {
		if _, err := d.cloud.Truth(id); err != nil {
			d.check.violated("order", "%s was asked for and is not there", id)
		}
	}
	d.cancel(two)
	d.pass(drainTimeout + 8*time.Minute)
	for _, id := range []nstance.InstanceID{one, two} {
		if _, err := d.cloud.Truth(id); err == nil {
			d.check.violated("order", "%s is over and still there", id)
		}
	}
	d.want(webToo, func(g *nstance.Group) { g.Expiry.OnDemandAge = orderAge })
	d.check.settled()
}
