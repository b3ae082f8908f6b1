package sim

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

func (a act) redefine() {
	key := a.group()
	a.want(key, func(g *nstance.Group) { g.Definition.UserData = content(key, a.version()) })
}

func (a act) badImage() {
	key := a.group()
	a.want(key, func(g *nstance.Group) { g.Definition.UserData = content(key, badImage) })
}

// pause stops a rollout for a while.
func (a act) pause() {
	key := a.group()
	_ = a.ask(func(ctx context.Context, r *reconcile.Reconciler) error { return r.Pause(ctx, key, "drill") })
	a.sleep(a.seconds(10, 300))
	a.resume(key)
}

// resume ends a pause, and whatever halted the rollout.
func (d *driver) resume(key nstance.GroupKey) {
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		d.check.resuming(key)
		return r.Resume(ctx, key, asker)
	})
}

// rollback goes back to the last good definition, if there is another, and
// perhaps forward again. A definition that is configured ends it too.
func (a act) rollback() {
	key := a.group()
	a.goBack(key)
	a.sleep(a.seconds(10, 300))
	if a.rng.IntN(2) == 0 {
		a.check.forward(key)
		_ = a.ask(func(ctx context.Context, r *reconcile.Reconciler) error { return r.UndoRollback(ctx, key, asker) })
	}
}

func (d *driver) goBack(key nstance.GroupKey) {
	hash := hashOf(d.made(key))
	err := d.ask(func(ctx context.Context, r *reconcile.Reconciler) error { return r.Rollback(ctx, key, asker, false) })
	if err == nil && hash == hashOf(d.made(key)) {
		d.check.back(key, hash)
	}
}

func hashOf(def nstance.Definition) string {
	hash, err := confighash.InfraOf(def).Hash()
	if err != nil {
		panic(err) // a mistake in this package
	}
	return string(hash)
}

// An aversion is a definition that no member is to be made from.
type aversion struct {
	since time.Time
	hash  string
}

// meets reports whether a new intent was decided on in spite of it, by a clock
// that may be wrong by a little.
func (v aversion) meets(rec storage.Instance, created time.Time) bool {
	return v.hash != "" && rec.InfraHash == v.hash && created.After(v.since.Add(maxStep+time.Second))
}

// judged notes what rollouts are halted for as it became durable.
func (c *checker) judged(data []byte) {
	var state struct {
		Groups map[string]struct {
			HaltedHash   string `json:"halted_hash"`
			LastGoodHash string `json:"last_good_hash"`
		} `json:"groups"`
	}
	if err := json.Unmarshal(data, &state); err != nil {
		c.violated("I7", "the groups' histories cannot be read: %v", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, g := range state.Groups {
		if g.LastGoodHash == "" || g.LastGoodHash == g.HaltedHash {
			g.HaltedHash = "" // there is nothing else to make members from
		}
		if c.halts[key].hash != g.HaltedHash {
			c.halts[key] = aversion{since: time.Now(), hash: g.HaltedHash}
		}
	}
}

// resuming notes that somebody asks for the end of a halt: it is in force with
// the leader at once, and durable a little later.
func (c *checker) resuming(key nstance.GroupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.halts, key.String())
}

// back notes that somebody was told of a rollback from a definition.
func (c *checker) back(key nstance.GroupKey, hash string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.backs[key] = aversion{since: time.Now(), hash: hash}
}

// forward notes that somebody asks for the end of a rollback.
func (c *checker) forward(key nstance.GroupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.backs, key)
}

// wanted notes what is configured of a group: another definition ends a rollback.
func (c *checker) wanted(key nstance.GroupKey, def nstance.Definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.backs[key]; ok && v.hash != hashOf(def) {
		delete(c.backs, key)
	}
}

// chosen checks a new intent: while a rollout is halted, nothing is made from
// what it was halted for, nor while it is rolled back from what it was then.
func (c *checker) chosen(rec storage.Instance) {
	if rec.OnDemand {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.halts[keyOf(rec).String()].meets(rec, c.dates[rec.ID].created) {
		c.note("P6", "%s is made from the definition whose rollout is halted", rec.ID)
	}
	if c.backs[keyOf(rec)].meets(rec, c.dates[rec.ID].created) {
		c.note("P6", "%s is made from the definition that was rolled back", rec.ID)
	}
}

// drillRollback goes back before a rollout has got anywhere, through a change of
// leader, and makes it what is configured.
func (d *driver) drillRollback(key nstance.GroupKey) {
	was := d.wanted(key).Definition
	d.freeze(key)
	d.want(key, func(g *nstance.Group) { g.Definition.UserData = content(key, d.version()) })
	d.goBack(key)
	d.thaw(key)
	d.acts.Go(func() { d.act(14).crashLeader() })
	_ = d.cloud.Kill(d.machines(key)[0].ID) // its replacement is a new one
	d.pass(4 * time.Minute)
	d.acts.Wait()
	d.want(key, func(g *nstance.Group) { g.Definition = was })
	d.pass(2 * time.Minute)
	d.check.settled()
}
