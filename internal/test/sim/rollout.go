package sim

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
)

func (a act) redefine() {
	key := a.group()
	a.setGroup(key, func(g *nstance.Group) { g.Definition.UserData = content(key, a.version()) })
}

func (a act) badImage() {
	key := a.group()
	a.setGroup(key, func(g *nstance.Group) { g.Definition.UserData = content(key, badImage) })
}

// pause pauses a rollout for a while.
func (a act) pause() {
	key := a.group()
	_ = a.ask(func(ctx context.Context, r *reconcile.Reconciler) error { return r.Admin().Pause(ctx, key, "drill") })
	a.sleep(a.seconds(10, 300))
	a.resume(key)
}

// resume ends a pause or a halt.
func (d *driver) resume(key nstance.GroupKey) {
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		d.check.recordResume(key)
		return r.Admin().Resume(ctx, key, requester)
	})
}

// rollback rolls back to the last good definition, if there is another, and perhaps
// forward again. A new definition ends it too.
func (a act) rollback() {
	key := a.group()
	a.rollBack(key)
	a.sleep(a.seconds(10, 300))
	if a.rng.IntN(2) == 0 {
		a.check.recordRollbackEnd(key)
		_ = a.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
			return r.Admin().UndoRollback(ctx, key, requester)
		})
	}
}

func (d *driver) rollBack(key nstance.GroupKey) {
	hash := hashOf(d.effectiveDefinition(key))
	err := d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		return r.Admin().Rollback(ctx, key, requester, false)
	})
	if err == nil && hash == hashOf(d.effectiveDefinition(key)) {
		d.check.recordRollback(key, hash)
	}
}

func hashOf(def nstance.Definition) string {
	hash, err := confighash.Infra(def)
	if err != nil {
		panic(err) // a mistake in this package
	}
	return string(hash)
}

// bannedDefinition is a definition that no new member may have.
type bannedDefinition struct {
	since time.Time
	hash  string
}

// violatedBy reports whether a new intent was decided after the ban, by a clock with a small
// error.
func (v bannedDefinition) violatedBy(rec records.Instance, created time.Time) bool {
	return v.hash != "" && rec.InfraHash == v.hash && created.After(v.since.Add(maxStep+time.Second))
}

// recordHalts records the halted definitions as they become durable.
func (c *checker) recordHalts(data []byte) {
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
			g.HaltedHash = "" // no other definition to create members from
		}
		if c.halts[key].hash != g.HaltedHash {
			c.halts[key] = bannedDefinition{since: time.Now(), hash: g.HaltedHash}
		}
	}
}

// recordResume records a request to end a halt: the leader applies it at once, and it is
// durable a little later.
func (c *checker) recordResume(key nstance.GroupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.halts, key.String())
}

// recordRollback records an acknowledged rollback from a definition.
func (c *checker) recordRollback(key nstance.GroupKey, hash string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rolledBack[key] = bannedDefinition{since: time.Now(), hash: hash}
}

// recordRollbackEnd records a request to end a rollback.
func (c *checker) recordRollbackEnd(key nstance.GroupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.rolledBack, key)
}

// recordDefinition records the configured definition of a group: another one ends a rollback.
func (c *checker) recordDefinition(key nstance.GroupKey, def nstance.Definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.rolledBack[key]; ok && v.hash != hashOf(def) {
		delete(c.rolledBack, key)
	}
}

// checkIntent checks a new intent: it must not use the definition of a halted rollout, nor
// the one that was rolled back.
func (c *checker) checkIntent(rec records.Instance) {
	if rec.OnDemand {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.halts[keyOf(rec).String()].violatedBy(rec, c.dates[rec.ID].created) {
		c.violatedLocked("P6", "%s is created from the definition whose rollout is halted", rec.ID)
	}
	if c.rolledBack[keyOf(rec)].violatedBy(rec, c.dates[rec.ID].created) {
		c.violatedLocked("P6", "%s is created from the definition that was rolled back", rec.ID)
	}
}

// drillRollback rolls back at the start of a rollout, across a change of leader, and
// then rolls out the configured definition.
func (d *driver) drillRollback(key nstance.GroupKey) {
	was := d.currentGroup(key).Definition
	d.freeze(key)
	d.setGroup(key, func(g *nstance.Group) { g.Definition.UserData = content(key, d.version()) })
	d.rollBack(key)
	d.thaw(key)
	d.acts.Go(func() { d.act(14).crashLeader() })
	_ = d.cloud.Kill(d.machines(key)[0].ID) // its replacement is new
	d.pass(4 * time.Minute)
	d.acts.Wait()
	d.setGroup(key, func(g *nstance.Group) { g.Definition = was })
	d.pass(2 * time.Minute)
	d.check.checkSettled()
}
